"""What is said of a run whose ranks fail and are started again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.remedies import next_action
from ddptop.frames.verdict import verdict
from ddptop.protocol.evidence import Evidence, Stack, StackFrame
from ddptop.protocol.messages import IN_INITIALIZATION, LAUNCHER_SIGNAL, Bye, Event, Received
from ddptop.report.text import text_page
from tests.analysis.stalling import START_NS, Stage
from tests.analysis.test_deaths import RESET
from tests.made_up_run import feed_together, report_from_messages


def fails(world: Any, rank: int, reason: str, line: int) -> Iterator[Received]:
    """The messages of a rank's last moments."""
    call = StackFrame("/home/me/train.py", line, "<module>", "raise ValueError")
    now_ns = START_NS + world.now_us * 1000
    stacks = (Stack("traceback", True, (call,)),)
    yield world.received(rank, Evidence(now_ns, 0, world.step, 3, 0, reason, (), stacks, ()))
    yield world.received(rank, Bye(now_ns, reason.partition(":")[0]))
    fields = {"session": world.session(rank), "exit_code": 1, "signal": None}
    yield world.received(-1, Event("exit", now_ns, rank, -1, fields))


def attempts(make_world: Any, lines: list[int], world_size: int = 3) -> list[Received]:
    """A run whose rank 2 fails in each attempt, at these lines; the other ranks lose the connection."""
    world, messages = None, []
    for incarnation, line in enumerate(lines):
        options = {} if world is None else {"now_us": world.now_us + 2_000_000}
        world = make_world(
            world_size, incarnation=incarnation, session_base=100 * (incarnation + 1), **options
        )
        messages += [] if incarnation else [world.run()]
        messages += [*world.introduce(), *world.steps(20)]
        for rank in (2, 0, 1):
            reason = "ValueError: bad sample in shard 7" if rank == 2 else RESET
            messages += fails(world, rank, reason, line)
    assert world is not None
    return [*messages, world.run("failed", 1)]


SAMPLE = "rank 2 failed: ValueError: bad sample in shard 7"


def test_a_failure_of_each_attempt_is_one_and_followers_are_those_of_an_attempt(make_world) -> None:
    messages = attempts(make_world, [26, 26, 26, 26])
    reducer = Reducer()
    seen = []
    for received in messages:
        reducer.feed(received)
        seen.append(reducer.frame(received.t_ns).run.state)
    assert set(seen[:-1]) <= {"waiting", "live", "lost"}, "it has not failed while its launcher lives"
    last = reducer.frame(messages[-1].t_ns)
    repeated = "failed 4 times at train.py:26 (3 restarts): "
    assert verdict(last).sentence == f"FAILED · {repeated}{SAMPLE} (train.py:26 <module>)"
    assert [(death.rank, death.incarnation) for death in last.deaths] == [(2, 3), (0, 3), (1, 3)]
    found = report_from_messages(messages)
    assert (
        found.verdict[0].sentence == f"{repeated}{SAMPLE} (exit code 1), in step 20; ranks 0 and 1 followed"
    )
    assert len(found.deaths) == 12
    assert "in elastic restart 3, step 20" in text_page(found, 200)


@pytest.mark.parametrize(("lines", "times"), [([26, 31], 1), ([26, 31, 26], 2), ([26], 1)])
def test_only_attempts_that_failed_alike_are_counted(make_world, lines: list[int], times: int) -> None:
    messages = attempts(make_world, lines)
    reducer = Reducer()
    feed_together(reducer, messages)
    place = f"(train.py:{lines[-1]} <module>)"
    repeated = f"failed {times} times at train.py:26 (2 restarts): " if times > 1 else ""
    assert verdict(reducer.frame(messages[-1].t_ns)).sentence == f"FAILED · {repeated}{SAMPLE} {place}"
    assert report_from_messages(messages).verdict[0].sentence.startswith(f"{repeated}rank 2 failed")


def test_a_rank_that_is_killed_each_time_is_told_without_a_place(make_world) -> None:
    reducer, world = Reducer(), None
    for incarnation in range(2):
        options = {} if world is None else {"now_us": world.now_us + 2_000_000}
        world = make_world(2, incarnation=incarnation, session_base=100 * (incarnation + 1), **options)
        feed_together(reducer, [*([] if incarnation else [world.run()]), *world.introduce(), *world.steps(5)])
        killed = {"session": world.session(1), "exit_code": None, "signal": "SIGKILL"}
        reducer.feed(world.received(-1, Event("lost_rank", 1, 1, -1, killed)))
    assert world is not None
    found = verdict(reducer.frame(START_NS + world.now_us * 1000))
    repeated = "failed 2 times in the same way (1 restart): "
    assert found.sentence == f"LOST · {repeated}rank 1 was killed by SIGKILL at step 5 (out of memory?)"


def in_initialization(stage: Stage, ranks: str, restart: int, for_s: float) -> None:
    fields = {"ranks": ranks, "world": 3, "restart": restart, "for_s": for_s}
    stage.feed(Received(stage.now_ns, -1, 0, 0, Event("in_initialization", stage.now_ns, -1, -1, fields)))


def test_ranks_that_never_meet_again_after_a_restart_are_named(make_world) -> None:
    stage = Stage(make_world(3))
    stage.tell("lost_rank", 2, pid=4002, exit_code=1, signal=None)
    assert verdict(stage.frame()).kind == "lost"
    stage.after_s = 8.0
    in_initialization(stage, "0 1", 1, 6.0)
    assert (stage.frame().run.state, verdict(stage.frame()).kind) == ("waiting", "waiting")
    stage.after_s = 30.0
    in_initialization(stage, "0 1 2", 1, 28.0)
    found = stage.frame()
    assert found.run.state == "stalled"
    assert verdict(found).kind == "stalled"
    assert "restart 1: ranks 0 to 2 are in init_process_group since " in verdict(found).sentence
    assert [alert.kind for alert in found.alerts if alert.severity == "critical"] == ["stall"]
    interrupted = Reducer()
    fields = {"signal": "SIGINT", "host": "node0"}
    signal = Received(stage.now_ns, -1, 0, 0, Event(LAUNCHER_SIGNAL, stage.now_ns, -1, -1, fields))
    feed_together(interrupted, [*stage.messages, signal])
    last = interrupted.frame(stage.now_ns)
    assert "restart 1: ranks 0 to 2 are in init_process_group since " in verdict(last).sentence
    assert "tart it again with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. " in next_action(last)
    stage.after_s = 31.0
    again = make_world(3, incarnation=1, session_base=200, now_us=(stage.now_ns - START_NS) // 1000)
    stage.feed(*again.introduce(), *again.steps(3))
    assert verdict(stage.reducer.frame(START_NS + again.now_us * 1000)).kind not in ("stalled", "waiting")


def test_ranks_of_a_first_start_are_told_otherwise(make_world) -> None:
    """A late one among them is reported by itself."""
    stage = Stage(make_world(3), steps=0)
    in_initialization(stage, "0 1 2", 0, 60.0)
    assert "init_process_group" not in verdict(stage.frame()).sentence


@pytest.mark.parametrize("is_seen", [False, True], ids=["at once", "after it was seen in init_process_group"])
def test_the_report_counts_attempts_in_which_one_rank_alone_was_heard_of(make_world, is_seen: bool) -> None:
    """Another rank each time, which has failed before its first DDP model: its process replaces none."""
    messages = attempts(make_world, [26])[:-1]
    for incarnation, rank in enumerate((0, 2, 1), 1):
        now_us = (messages[-1].t_ns - START_NS) // 1000 + 2_000_000
        world = make_world(3, incarnation=incarnation, session_base=100 * (incarnation + 1), now_us=now_us)
        fields = {"ranks": str(rank), "world": 3, "restart": incarnation, "for_s": 1.0}
        told_ns = START_NS + 1000 * now_us
        told = Received(told_ns, -1, 0, 0, Event(IN_INITIALIZATION, told_ns, -1, -1, fields))
        messages += [told] if is_seen else []
        messages.append(world.hello(rank))
        messages += fails(world, rank, "RuntimeError: Gloo connectFullMesh failed", 4)
    messages.append(world.run("failed", 1))
    reducer = Reducer()
    feed_together(reducer, messages)
    repeated = "failed 3 times at train.py:4 (3 restarts): rank 1 failed: RuntimeError: Gloo"
    last = reducer.frame(messages[-1].t_ns)
    assert verdict(last).sentence.startswith(f"FAILED · {repeated}")
    assert next_action(last).startswith("Start it again with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. ")
    found = report_from_messages(messages)
    assert found.verdict[0].sentence.startswith(repeated)
    (before,) = found.verdict[0].detail
    assert before.startswith("the first failure: rank 2 failed: ValueError: bad sample")
    assert [death.rank for death in found.deaths if not death.follows] == [2, 0, 2, 1]
    assert found.hosts == (), "ranks that have not come again are on no other host"


def test_ranks_that_failed_in_the_same_way_in_a_collective_are_told_together_in_the_report(
    make_world,
) -> None:
    messages = attempts(make_world, [26])[:-1]
    now_us = (messages[-1].t_ns - START_NS) // 1000 + 2_000_000
    world = make_world(3, incarnation=1, session_base=200, now_us=now_us)
    messages += [world.hello(rank) for rank in range(3)]
    for rank in range(3):
        messages += fails(
            world, rank, "RuntimeError: Gloo connectFullMesh failed with timed out connecting", 4
        )
    messages.append(world.run("failed", 1))
    reducer = Reducer()
    feed_together(reducer, messages)
    said = "3 ranks failed: RuntimeError: Gloo connectFullMesh failed with timed out connecting"
    assert verdict(reducer.frame(messages[-1].t_ns)).sentence == f"FAILED · {said} (train.py:4 <module>)"
    who = "ranks 0, 1 and 2" + said.removeprefix("3 ranks")
    assert report_from_messages(messages).verdict[0].sentence == f"{who} (exit code 1), in step 0"
