"""A recording that has left out steps near its limit: a jump and the report say what the live run said."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.collector.new_history import NewHistory
from ddptop.frames.frame import Frame
from ddptop.protocol.machine import OwnCost
from ddptop.protocol.messages import Event, Received, Steps
from ddptop.recording import pending_index
from ddptop.recording.reader import Recording
from ddptop.recording.writer import Writer
from ddptop.report import build
from ddptop.report.build import read_report
from ddptop.report.sentences import footing_lines
from ddptop.sources.player import Player
from ddptop.training.shadow import LENGTH, PERIOD
from tests.analysis.test_overhead import AROUND, standing_aside
from tests.made_up_run import World, collect, progress

STEPS = 12 * PERIOD + AROUND + LENGTH
LIMIT = 150_000
"""Bytes: of the last thousands of steps most are left out."""


def messages() -> list[Received]:
    """A run with shadow blocks whose ranks tell early what they take."""
    world = World(2, own=True)
    sent = [world.run(), *world.introduce()]
    for received in world.steps(STEPS):
        message, t_ns = received.message, received.t_ns
        if isinstance(message, Steps) and message.first_step % PERIOD < LENGTH <= message.first_step:
            received = received._replace(message=standing_aside(message))
        sent.append(received)
        if isinstance(message, Steps) and message.first_step == 40:
            for reading in (progress(t_ns, 40, cost_pct=3.0), OwnCost(t_ns, 0.5)):
                sent.append(Received(t_ns, received.rank, received.session, 0, reading))
    end_ns = sent[-1].t_ns
    for rank in range(2):
        fields = {"session": world.session(rank), "records": STEPS, "lost": 0}
        counts = Event("counts", end_ns, rank, STEPS, fields)
        sent.append(Received(end_ns, -1, 0, 0, counts))
    return [*sent, world.run(state="finished", exit_code=0)]


@pytest.fixture(scope="module")
def thinned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Frame]:
    """The recording, and the frame of the live run at its end."""
    path = tmp_path_factory.mktemp("thinned") / "run.ddptop"
    reducer, writer = Reducer(), Writer(path, limit_bytes=LIMIT)
    writer.history = NewHistory(reducer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_index, "INDEX_STEPS", 128)
        collect(writer, reducer, messages())
        writer.close()
    assert writer.left_out > STEPS / 4
    return path, reducer.frame(reducer.state.newest_ns)


def test_the_report_and_a_jump_say_the_cost_of_the_live_run(
    thinned: tuple[Path, Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, live = thinned
    monkeypatch.setattr(build, "WHOLE_ROWS", 1000)
    assert live.overhead.is_measured and live.overhead.every_step_pct == 0.5
    with Recording.open(path) as recording:
        jumped = Player(recording, whole_rows=0, next_ns=recording.end_ns).frame_at_end()
        report = read_report(recording)
    assert jumped.overhead.measured_pct == 3.0
    assert {live.overhead.phrase} == {jumped.overhead.phrase, report.overhead.phrase}
    assert live.overhead.phrase != "3.0%", "what is counted"
    footing = "\n".join(footing_lines(report))
    assert "shadow blocks); budget 1.0%" in footing and "3.0%" not in footing
    assert not [suggested for suggested in report.advice if suggested.kind == "recorder_budget"]


def test_the_report_counts_the_last_steps_that_were_left_out(
    thinned: tuple[Path, Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, live = thinned
    monkeypatch.setattr(build, "WHOLE_ROWS", 1000)
    with Recording.open(path) as recording:
        assert int(recording.steps_of_blocks[1].max()) + 1 < STEPS, "the last step was left out"
        reading = read_report(recording).reading
    assert live.group.step == STEPS - 1 and reading.steps == STEPS
    assert reading.read_steps < STEPS * 3 / 4
