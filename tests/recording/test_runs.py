"""Blocks read together give the same frame as their messages one by one."""

from pathlib import Path

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import encode_frame
from ddptop.protocol.messages import Clock, Layout, Progress, Received, Type
from ddptop.recording.format import CLOCKS
from ddptop.recording.reader import Recording
from ddptop.recording.records import BlockReader
from tests.recording.made_up import a_run, write

DATA = Path(__file__).with_name("data")


@pytest.mark.parametrize("name", ["straggler", "stall"])
@pytest.mark.parametrize("tail", [False, True])
def test_runs_give_the_same_frame(name, tail):
    failures = []
    with Recording.open(DATA / f"{name}.ddptop") as recording:
        one_by_one, together = Reducer(tail=tail), Reducer(tail=tail)
        messages = [*recording.tail(steps=40)] if tail else [*recording.records()]
        for received in messages:
            one_by_one.feed(received)
        for run in recording.tail_runs(steps=40) if tail else recording.runs():
            at = 0
            while at < len(run):
                at = together.feed_run(
                    run, at, lambda: failures.append(1), stop_ns=recording.start_ns + 10**9
                )
        now_ns = recording.end_ns
    assert not failures
    assert together.state.taken == one_by_one.state.taken
    assert encode_frame(together.frame(now_ns)) == encode_frame(one_by_one.frame(now_ns))


def test_blocks_are_searched_for_a_type_only_where_something_lasts(tmp_path, monkeypatch):
    path = tmp_path / "run.ddptop"
    messages = []
    for received in a_run(400):
        messages.append(received)
        if isinstance(received.message, Progress):  # nearly every block of a run over several hosts has some
            t_ns = received.t_ns
            messages.append(Received(t_ns, -1, 7, 0, Clock(t_ns, "b", 0, 1000)))
    write(path, messages)
    searched, may_hold = [], BlockReader.may_hold
    monkeypatch.setattr(
        BlockReader,
        "may_hold",
        lambda reader, entry, type_: searched.append(entry) or may_hold(reader, entry, type_),
    )
    with Recording.open(path) as recording:
        blocks = recording.blocks_until(recording.end_ns)
        lasting = [at for at in range(blocks) if recording.summary(at).lasting % CLOCKS]
        assert [*recording.lasting_with(Type.EVIDENCE)] == []
    assert 0 < len(searched) == len(lasting) < blocks


def test_equal_layouts_of_ranks_are_one_object(tmp_path):
    path = tmp_path / "run.ddptop"
    write(path, a_run(10, world=4))
    with Recording.open(path) as recording:
        messages = [one.message for run in recording.runs() for _, one in run.others]
    layouts = [message for message in messages if isinstance(message, Layout)]
    assert len(layouts) == 4
    assert len({*map(id, layouts)}) == 1
