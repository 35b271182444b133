"""The ledger at a moment is the same after a jump as when all steps before it were played."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.collector.new_history import NewHistory
from ddptop.frames.frame import Frame
from ddptop.frames.ledger import Ledger
from ddptop.frames.verdict import verdict
from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Event, Flag, Phase, Received, Steps
from ddptop.recording import pending_index
from ddptop.recording.format import HEADER, HISTORY
from ddptop.recording.reader import Recording
from ddptop.recording.writer import Writer
from ddptop.report import build
from ddptop.sources import player
from ddptop.sources.player import Player
from tests.made_up_run import GIB, World, collect, feed_together

RANKS, RESTART, LAST = 3, 900, 700


def run_messages() -> Iterator[Received]:
    """Ranks are slow in turn, one is rarely slow by far; one evaluates, one declares phases; a restart."""
    chance = random.Random(5)
    world = World(RANKS, own=True, detail_every=8)
    yield world.run()
    yield from world.introduce()
    for life in range(2):
        for step in range(RESTART if life == 0 else LAST + 1):
            world.delays = {(chance.randrange(RANKS), "forward"): chance.randint(0, 9_000)}
            if step % 150 == 140:
                world.delays[0, "after_optimizer"] = 2_500_000
                at_us = world.now_us + 1_000_000
                yield world.progress(0, at_us, phase=int(Phase.EVALUATE))
            if step % 170 == 165:
                world.delays[1, "after_optimizer"] = 700_000
                phase = {"name": "save"}
                marks = ((100_000, "phase_begins", phase), (650_000, "phase_ends", phase))
                for us, kind, fields in (*marks, (640_000, "saved", {"ns": 200_000_000})):
                    at_ns = world.host_ns("node0", world.now_us + us)
                    event = Event(kind, at_ns, 1, step, fields)
                    yield world.received(1, event, world.now_us + us)
            for received in world.steps(1):
                yield first_batch(received) if step % 100 == 0 else received
        world.session_base, world.incarnation, world.step = 300, 1, 0
        world.now_us += 20_000_000
        world.begin_us = [world.now_us] * RANKS
        if life == 0:
            yield from world.introduce()


def first_batch(received: Received) -> Received:
    message = received.message
    assert isinstance(message, Steps)
    rows = tuple(row._replace(flags=row.flags | int(Flag.FIRST_BATCH)) for row in message.rows)
    return received._replace(message=Steps(0, message.first_step, message.base_ns, rows))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run, recorded by its collector, with the sums of the ledger every 128 steps."""
    target = tmp_path_factory.mktemp("ledger") / "run.ddptop"
    reducer, recorder = Reducer(), Writer(target, limit_bytes=GIB)
    recorder.history = NewHistory(reducer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_index, "INDEX_STEPS", 128)
        collect(recorder, reducer, run_messages())
        recorder.close()
    return target


def rare_events(frame: Frame) -> list[tuple[float, str]]:
    return [(event.unix_s, event.message) for event in frame.events if "in few steps" in event.message]


def test_a_jump_has_the_ledger_of_the_whole_run(recorded: Path) -> None:
    with Recording.open(recorded) as recording:
        assert len(recording.ledgers_until(recording.end_ns, most_rows=GIB).sums) > 8  # type: ignore[union-attr]
        span_ns = recording.end_ns - recording.start_ns
        playing = Player(recording, whole_rows=GIB)
        seen: set[str] = set()
        for percent in range(28, 101, 18):
            t_ns = recording.start_ns + span_ns * percent // 100
            jumping = Player(recording, whole_rows=0, tail_rows=60, next_ns=t_ns)
            jumping.go_to(t_ns)
            playing.go_to(t_ns)
            assert playing.from_start and not jumping.from_start
            jumped, played = jumping.make_frame(), playing.make_frame()
            assert jumped.ledger is not None
            assert repr(jumped.ledger) == repr(played.ledger), percent
            assert verdict(jumped).sentence == verdict(played).sentence
            assert jumped.straggler == played.straggler
            assert {*rare_events(jumped)} <= {*rare_events(played)}, "the others are in the recorded log"
            seen |= {waited.place for waited in jumped.ledger.run.waited_for}
        assert {"evaluation", "phase", "forward"} <= seen
        assert rare_events(played)
        assert jumped.ledger.run.steps == RESTART + LAST + 1
        assert (jumped.ledger.ranks.restart_s > 15).all()
        assert jumped.ledger.ranks.saving_s[1] > 1 and jumped.ledger.ranks.phase_s[1] > 1


def test_sums_that_a_full_disk_did_not_take_are_in_the_next_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_index, "INDEX_STEPS", 128)
    refused, written = [], os.write

    def write_if_room(descriptor: int, data: memoryview) -> int:
        is_history = len(data) > HEADER.size and HEADER.unpack_from(data)[1] == HISTORY
        if is_history and (refused.append(len(data)) or len(refused) % 3):
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(descriptor, data)

    monkeypatch.setattr(os, "write", write_if_room)
    reducer, recorder = Reducer(), Writer(tmp_path / "run.ddptop", limit_bytes=GIB)
    recorder.history = NewHistory(reducer)
    collect(recorder, reducer, run_messages())
    recorder.close()
    assert len(refused) > 8
    with Recording.open(tmp_path / "run.ddptop") as recording:
        t_ns = recording.start_ns + (recording.end_ns - recording.start_ns) * 85 // 100
        playing = Player(recording, whole_rows=GIB)
        jumping = Player(recording, whole_rows=0, tail_rows=60, next_ns=t_ns)
        for player_ in (playing, jumping):
            player_.go_to(t_ns)
        assert not jumping.from_start
        jumped, played = jumping.make_frame(), playing.make_frame()
        assert jumped.ledger is not None
        assert repr(jumped.ledger) == repr(played.ledger)


def test_of_very_many_ranks_a_jump_reads_as_many_steps_as_sums_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are more than a jump reads else."""
    monkeypatch.setattr(pending_index, "INDEX_STEPS", 8)
    for name in ("RECALLED_ROWS", "LEAST_TAIL_ROWS"):
        monkeypatch.setattr(player, name, 0)
    reducer, recorder = Reducer(), Writer(tmp_path / "run.ddptop", limit_bytes=GIB)
    recorder.history = NewHistory(reducer)
    world = World(RANKS, own=True)
    messages = [world.run(), *world.introduce(), *world.steps(500)]
    for first in range(0, len(messages), 12):
        feed_together(reducer, messages[first : first + 12])
        for received in messages[first : first + 12]:
            recorder.add(received, encode(received.message))
        recorder.flush()
    recorder.close()
    with Recording.open(tmp_path / "run.ddptop") as recording:
        for percent in range(70, 101, 5):
            t_ns = recording.start_ns + (recording.end_ns - recording.start_ns) * percent // 100
            jumping = Player(recording, whole_rows=0, tail_rows=60)
            jumping.jump_to(t_ns)
            assert not jumping.from_start and jumping.make_frame().ledger is not None


def choose_first_and_last(recording: Recording, _steps: int) -> Iterator[range]:
    """Blocks that a report reads of a recording that it does not read whole."""
    end = recording.blocks_until(recording.end_ns)
    yield from (range(1), range(end - 1, end))


def choose_all(recording: Recording, steps: int) -> Iterator[range]:
    yield range(recording.blocks_until(recording.end_ns))


def test_a_report_adds_up_all_steps_where_an_earlier_version_has_recorded_no_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "WHOLE_ROWS", 0)
    monkeypatch.setattr(build, "choose_stretches", choose_first_and_last)
    world = World(RANKS, own=True, delays={(1, "forward"): 9_000})
    messages = [world.run(), *world.introduce(), *world.steps(300), world.run("finished", 0)]
    ledgers = []
    for name in ("now", "earlier"):
        reducer, recorder = Reducer(), Writer(tmp_path / name, limit_bytes=GIB)
        if name == "now":
            recorder.history = NewHistory(reducer)
        collect(recorder, reducer, messages)
        recorder.close()
        with Recording.open(tmp_path / name) as recording:
            recorded_sums = recording.ledgers_until(recording.end_ns, most_rows=GIB)
            assert recorded_sums is not None and bool(recorded_sums.sums) == (name == "now")
            ledgers.append(build.read_report(recording).ledger)
    assert ledgers[0] is not None and ledgers[0].run.steps == 300
    assert repr(ledgers[0]) == repr(ledgers[1])
    monkeypatch.setattr(build, "SUMMED_ROWS", 100)
    with Recording.open(tmp_path / "earlier") as recording:
        assert build.read_report(recording).ledger is None, "it is too large"
        monkeypatch.setattr(build, "choose_stretches", choose_all)
        assert repr(build.read_report(recording).ledger) == repr(ledgers[0]), "it has read all steps"


def test_without_recorded_sums_a_jump_far_into_a_run_has_no_ledger(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ledger_at_end() -> Ledger | None:
        with Recording.open(recorded) as recording:
            jumping = Player(recording, whole_rows=0, tail_rows=60, next_ns=recording.end_ns)
            return jumping.frame_at_end().ledger

    whole = ledger_at_end()
    assert whole is not None
    monkeypatch.setattr("ddptop.analysis.ledger.recorded.VERSION_LENGTHS", {})  # those of another version
    assert ledger_at_end() is None
