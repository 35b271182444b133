"""Made-up ranks: their story holds together, and a real receiver takes all that they say."""

from __future__ import annotations

import math
import time
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.collector.simulated_hosts import MESSAGES, SimulatedHosts
from ddptop.protocol.messages import Bye, Flag, Hello, Received, Run, Steps
from ddptop.sources.simulation import ranks as simulated
from ddptop.sources.simulation.ranks import SimulatedRanks
from ddptop.sources.simulation.story import DEATH, NAN, STRAGGLER, Story, usual_rate
from ddptop.transport.receiver import AckedReceiver
from ddptop.transport.sockets import new_context

DEADLINE_S = 120

FASTER = 10
"""The ranks of a test live so many times as fast."""


def part(story: Story, share: float) -> int:
    """A step in this part of the story."""
    return int(share * story.cycle_steps)


def test_nobody_ends_a_collective_before_the_last_has_arrived() -> None:
    story = Story(24, 20.0)
    for step in (0, part(story, STRAGGLER[0]) + 5, part(story, NAN[0]) + 1):
        wall, rows = story.make_rows(step, 7)
        assert len(rows) == 24
        cells = np.array([row.cells for row in rows]).reshape(24, -1, 3)
        ready, end = cells[:, :, 1], cells[:, :, 1] + cells[:, :, 2]
        assert (end == end[0]).all()
        assert (end[0] > ready.max(axis=0)).all()
        for row in rows:
            assert row.data_us + row.forward_us + row.backward_us + row.optimizer_us <= row.wall_us == wall
            assert row.flags == Flag.DETAIL
            assert row.backward_at_us + row.backward_us <= row.optimizer_at_us
            own = row.own
            assert own is not None
            assert row.forward_at_us == row.data_us + own.before_forward
            assert row.backward_at_us == row.forward_at_us + row.forward_us + own.before_backward
            backward_end = row.backward_at_us + row.backward_us
            assert backward_end == row.optimizer_at_us - own.before_optimizer == row.cells[-2] + own.exposed


def test_the_straggler_is_late_in_its_part_of_the_story_alone() -> None:
    story = Story(24, 20.0)
    quiet, late = (story.make_rows(part(story, share), 0) for share in (0.05, STRAGGLER[0] + 0.01))
    rank = story.slow_rank
    assert late[0] > quiet[0] * 1.25
    assert late[1][rank].data_us > 5 * max(row.data_us for at, row in enumerate(late[1]) if at != rank)
    assert story.make_rows(part(story, STRAGGLER[1]) + 1, 0)[0] < late[0] * 0.8


def test_one_rank_s_loss_is_nan_for_a_while_and_the_others_fall() -> None:
    story = Story(8, 20.0)
    begin, during = (story.make_rows(part(story, share), 0)[1] for share in (0.0, NAN[0] + 0.005))
    for rank in range(8):
        assert math.isnan(during[rank].loss or 0.0) is (rank == story.nan_rank)
    assert (during[0].loss or 9.0) < (begin[0].loss or 0.0)


def test_a_group_of_one_has_nobody_to_wait_for_and_lives() -> None:
    story = Story(1, 20.0)
    assert not any(story.late_us(step) or story.is_last_of(step) for step in range(2 * story.cycle_steps))


class Played(NamedTuple):
    """What a real receiver and reducer have taken of simulated ranks."""

    reducer: Reducer
    refused: int
    incarnations: set[int]
    failed: list[int]
    n_rows: int


def play(story: Story, steps: int, folder: Path) -> Played:
    """Have the ranks of a story live FASTER, to the end of so many steps."""
    endpoint = f"ipc://{folder}/ingest"
    context = new_context()
    receiver = AckedReceiver(context, endpoint, epoch=1, also=MESSAGES)
    hosts = SimulatedHosts()
    reducer = Reducer()
    began = time.monotonic_ns()
    run = Run(1, "id", "made-up", "", (), time.time_ns(), began, "live", None, True)
    reducer.feed(Received(began, -1, 0, 0, run))
    ranks = SimulatedRanks(story, endpoint, "id", steps=steps)
    incarnations, failed, rows = set(), [], []

    def hear() -> None:
        now_ns = time.monotonic_ns()
        for received, _ in receiver.drain_messages(now_ns):
            message = received.message
            if isinstance(message, Hello):
                incarnations.add(message.incarnation)
            elif isinstance(message, Bye) and message.reason != "finished":
                failed.append(received.rank)
            elif isinstance(message, Steps):
                rows.append(len(message.rows))
            reducer.feed(hosts.of_agent(received) or received)

    try:
        deadline = time.monotonic() + DEADLINE_S
        while ranks.await_collector(began):
            assert time.monotonic() < deadline and not rows, "no step is sent before the collector answers"
            hear()
        while ranks.work_due(began + FASTER * (time.monotonic_ns() - began)):
            assert time.monotonic() < deadline
            hear()
    finally:
        closing = Thread(target=ranks.close, args=(DEADLINE_S,))
        closing.start()
    while closing.is_alive() or {member.bye is not None for member in reducer.state.ranks} != {True}:
        assert time.monotonic() < deadline
        hear()
    closing.join()
    receiver.close()
    context.term()
    return Played(reducer, receiver.refused, incarnations, failed, sum(rows))


def test_everything_arrives_is_understood_and_the_dead_are_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "RESTART_AFTER_S", 1.0)
    monkeypatch.setattr(Story, "cycle_steps", 400)
    steps = int(DEATH * 400) + 1 + 200
    played = play(Story(20, 100.0), steps, tmp_path)
    frame = played.reducer.frame(time.monotonic_ns())
    assert (played.incarnations, played.failed) == ({0, 1}, [19])
    assert played.n_rows == 20 * steps
    assert (frame.group.step, frame.lost_records, played.refused) == (199, 0, 0)
    assert (frame.source, frame.run.nodes, len(frame.buckets)) == ("simulated", 3, 4)
    assert set(frame.ranks.state) == {"finished"}
    assert "straggler" in {one.kind for one in frame.events}
    assert [host.name for host in frame.hosts] == ["node000", "node001", "node002"]
    assert [host.collector for host in frame.hosts] == [True, False, False]
    assert all(host.clock_drift_ppm and host.cpu_pct for host in frame.hosts[1:])
    assert all(abs(host.clock_offset_ms or 0.0) < 100 for host in frame.hosts)
    assert {(one.kind, one.rank) for one in frame.events if one.kind == "failed_rank"} == {
        ("failed_rank", 19)
    }


@pytest.mark.slow
def test_the_lesson_is_over_once_the_slow_rank_was_flagged_and_is_even_again(tmp_path: Path) -> None:
    """Without a screen a simulated run ends there."""
    story = Story(8, usual_rate(8))
    frame = play(story, story.steps_of_lesson, tmp_path).reducer.frame(time.monotonic_ns())
    flags = [(event.kind, event.rank) for event in frame.events if event.kind.startswith("straggler")]
    assert flags[:1] == [("straggler", story.slow_rank)]
    assert frame.straggler is None
