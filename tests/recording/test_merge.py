"""One recording from that of a run and those that agents kept: everything once, each session in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.cli.main import main
from ddptop.protocol.messages import Clock, Event, Hello, Received, Steps
from ddptop.recording.format import RecordingError
from ddptop.recording.merge import merge_recordings
from ddptop.recording.reader import Recording
from tests.made_up_run import START_NS, a_run, hello, write

AHEAD_NS = 5_000_000_000_000
"""By so much the other host's clock is ahead of the collector's."""


def all_records():
    """A run of two ranks, the second on another host."""
    records = list(a_run(200))
    records.insert(1, Received(START_NS, -1, 0, 0, Event("settings", START_NS, -1, -1, {"stall_s": 15.0})))
    clock = Clock(START_NS + AHEAD_NS, "node1", -AHEAD_NS, 1000, 0, 2000)
    records.insert(2, Received(START_NS, -1, 77, 1, clock))
    return [
        r._replace(message=replace(r.message, host="node1")) if isinstance(r.message, Hello) and r.rank else r
        for r in records
    ]


def local(records, first, stop):
    """What the agent of rank 1 has recorded of it, by its own clock."""
    yield records[0]._replace(t_ns=records[0].t_ns + AHEAD_NS)
    for received in records:
        lasts = received.rank == 1 and received.seq < 3
        if received.session == 77 or (received.rank == 1 and (lasts or first <= received.seq < stop)):
            yield received._replace(t_ns=received.t_ns + AHEAD_NS)


def figures(records):
    """The frame that comes of them, and the steps of each rank in order."""
    reducer, steps = Reducer(), {0: [], 1: []}
    for received in records:
        reducer.feed(received)
        if isinstance(received.message, Steps):
            steps[received.rank].append(received.seq)
    frame = reducer.frame(START_NS + 10**12)
    return steps, [rank.lost_records for rank in reducer.state.ranks], frame.group


def test_what_only_the_agent_has_is_put_in_its_place(tmp_path, capsys):
    records = all_records()
    of_run = [r for r in records if r.rank != 1 or not 8 <= r.seq < 13]
    write(tmp_path / "run.ddptop", of_run)
    write(tmp_path / "run@node1.ddptop", local(records, 6, 15))
    assert figures(of_run)[1] == [0, 50]
    paths = [str(tmp_path / name) for name in ("run@node1.ddptop", "run.ddptop")]
    assert main(["merge", *paths, "-o", str(tmp_path / "whole.ddptop")]) == 0
    assert "2 hosts, 50 records added, 40 known already" in capsys.readouterr().out
    with Recording.open(tmp_path / "whole.ddptop") as whole:
        merged = list(whole.records())
        past = [piece for _, piece in whole.history_pieces()]
    assert past and past[-1].points["step"][-1] > 190, "the group's history goes over all steps"
    numbered = [(r.session, r.seq) for r in merged if r.seq]
    assert len(numbered) == len(set(numbered))
    steps, lost, group = figures(merged)
    assert (steps, lost) == (figures(records)[0], [0, 0])
    assert group.step == 199


def test_a_host_that_never_reached_the_collector_is_added_by_its_wall_clock(tmp_path):
    records = all_records()
    write(tmp_path / "run.ddptop", [r for r in records if r.rank != 1 and r.session != 77])
    alone = [r for r in local(records, 0, 1000) if r.session != 77]
    alone[0] = alone[0]._replace(
        message=replace(alone[0].message, monotonic_ns=alone[0].message.monotonic_ns + AHEAD_NS)
    )
    write(tmp_path / "other.ddptop", alone)
    merged = merge_recordings([tmp_path / "run.ddptop", tmp_path / "other.ddptop"], tmp_path / "whole.ddptop")
    assert merged.added == 200
    with Recording.open(tmp_path / "whole.ddptop") as whole:
        assert figures(whole.records())[:2] == (figures(records)[0], [0, 0])


def test_mistakes_are_one_line_and_nothing_is_written_over(tmp_path, capsys):
    write(tmp_path / "a.ddptop", all_records())
    write(tmp_path / "b.ddptop", [all_records()[0], Received(START_NS, 0, 5, 0, hello(0, 9, session=5))])
    with pytest.raises(RecordingError, match="not of one run: 9 ranks here, 2 there"):
        merge_recordings([tmp_path / "a.ddptop", tmp_path / "b.ddptop"], tmp_path / "c.ddptop")
    write(tmp_path / "later.ddptop", [all_records()[0], Received(START_NS, 0, 5, 0, hello(0, 2, session=5))])
    with pytest.raises(RecordingError, match="not of one run: each has a rank 0 of its own"):
        merge_recordings([tmp_path / "a.ddptop", tmp_path / "later.ddptop"], tmp_path / "c.ddptop")
    a, b = str(tmp_path / "a.ddptop"), str(tmp_path / "b.ddptop")
    assert main(["merge", a]) == 2
    assert main(["merge", a, a]) == 2
    assert main(["merge", a, str(tmp_path / "none.ddptop")]) == 3
    assert main(["merge", a, b, "-o", a]) == 1
    assert main(["merge", a, b, "-o", str(tmp_path / "c.ddptop")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 5
    assert not (tmp_path / "c.ddptop").exists()
