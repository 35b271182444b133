"""What is said of a run that a signal from outside ends, and of the ranks that its launcher then ends."""

from __future__ import annotations

import pytest

from ddptop.analysis.health.outside_end import KILL_NS
from ddptop.frames.numbers import clock
from ddptop.frames.remedies import next_action
from ddptop.frames.verdict import verdict
from ddptop.protocol.messages import FINISHED, LAUNCHER_SIGNAL, Bye, Event, Received
from tests.analysis.stalling import NS, Stage, op, users, waits
from tests.analysis.test_deaths import RESET, load, raises
from tests.made_up_run import report_from_messages

SIGTERM = "INTERRUPTED by SIGTERM (time limit, scancel, eviction?)"


@pytest.fixture
def stage(make_world) -> Stage:
    return Stage(make_world(2))


def launcher_receives(stage: Stage, name: str) -> None:
    fields = {"signal": name, "host": "node0"}
    stage.feed(Received(stage.now_ns, -1, 0, 0, Event(LAUNCHER_SIGNAL, stage.now_ns, -1, -1, fields)))


def is_ended(stage: Stage, rank: int, name: str, **fields: object) -> None:
    stage.tell("lost_rank", rank, pid=4000 + rank, exit_code=None, signal=name, **fields)


def kinds(stage: Stage) -> list[str]:
    return [alert.kind for alert in stage.frame().alerts if alert.kind != "lost_records"]


def test_a_signal_to_the_launcher_is_the_cause_live_and_at_the_end(stage: Stage) -> None:
    launcher_receives(stage, "SIGTERM")
    found = verdict(stage.frame())
    assert (found.kind, found.sentence) == ("ended_from_outside", SIGTERM)
    assert (
        found.detail
        == f"the launcher ends its ranks · at {clock(1_700_000_000)}, 0 s ago · last complete step 39"
    )
    for rank in (1, 0):
        is_ended(stage, rank, "SIGTERM")
    stage.after_s = 30.0
    stage.feed(stage.world.run("failed", 1))
    last = stage.frame()
    assert verdict(last).sentence == SIGTERM
    assert (
        verdict(last).detail == f"exit code 1 · at {clock(1_700_000_000)}, 30 s ago · last complete step 39"
    )
    assert (last.deaths, kinds(stage)) == ((), ["ended_from_outside"])
    assert (last.alerts[0].step, dict(last.alerts[0].evidence)) == (
        39,
        {"signal": "SIGTERM", "host": "node0", "stall": None},
    )
    assert next_action(last).startswith("Read the job's log: time limit")
    assert stage.said(LAUNCHER_SIGNAL) == ["the launcher on node0 has received SIGTERM"]
    assert stage.said("lost_rank") == [
        "2 ranks were ended by SIGTERM at step 40 (by its launcher, which was interrupted)"
    ]


def test_ranks_that_had_finished_are_ended_by_the_signal_to_their_launcher(stage: Stage) -> None:
    """A rank takes seconds to exit on a busy machine: its BYE has come long before the signal."""
    for rank in (0, 1):
        stage.say(rank, Bye(stage.now_ns, FINISHED))
    stage.after_s = 8.0
    launcher_receives(stage, "SIGINT")
    for rank in (0, 1):
        stage.tell("exit", rank, exit_code=None, signal="SIGINT")
    stage.feed(stage.world.run("failed", 1))
    assert verdict(stage.frame()).sentence == "INTERRUPTED by SIGINT (Ctrl-C)"


@pytest.mark.parametrize(
    ("name", "sentence", "action"),
    [
        ("SIGINT", "INTERRUPTED by SIGINT (Ctrl-C)", "Start again from the last checkpoint"),
        ("SIGHUP", "INTERRUPTED by SIGHUP (its terminal closed)", "Start it in tmux, or with setsid"),
        ("SIGUSR2", "INTERRUPTED by SIGUSR2", "Start again"),
    ],
)
def test_each_signal_has_its_usual_sender_and_advice(
    stage: Stage, name: str, sentence: str, action: str
) -> None:
    launcher_receives(stage, name)
    raises(stage, 0, "KeyboardInterrupt", load())
    raises(stage, 1, RESET, load())
    stage.feed(stage.world.run("failed", 1))
    assert verdict(stage.frame()).sentence == sentence
    assert next_action(stage.frame()).startswith(action)


def test_the_kill_after_30_s_is_the_launchers_and_no_want_of_memory(stage: Stage) -> None:
    launcher_receives(stage, "SIGINT")
    stage.after_s = 31.0
    for rank in (0, 1):
        is_ended(stage, rank, "SIGKILL")
    stage.feed(stage.world.run("failed", 1))
    assert verdict(stage.frame()).sentence == "INTERRUPTED by SIGINT (Ctrl-C)"
    assert stage.frame().deaths == ()
    assert stage.said("lost_rank") == [
        "2 ranks were killed by SIGKILL at step 40 (by its launcher, which was interrupted)"
    ]


def test_a_stall_stays_what_it_was_when_somebody_ends_it(stage: Stage) -> None:
    stage.beat(16.0, {0: {"sequence": 42}, 1: {"sequence": 41, "phase": 1}})
    stage.answer(0, waits(), groups={"0": 42}, operations=(op(42),))
    stage.answer(1, users("tokenize"), groups={"0": 41})
    before = verdict(stage.frame()).sentence.partition(" · ")[2]
    assert "rank 1" in before
    launcher_receives(stage, "SIGINT")
    assert verdict(stage.frame()).sentence == f"INTERRUPTED while stalled: {before}"
    assert "tokenize" in next_action(stage.frame())
    stage.beat(46.0, {0: {"sequence": 42}, 1: {"sequence": 41, "phase": 1}})
    is_ended(stage, 1, "SIGKILL")
    raises(stage, 0, f"KeyboardInterrupt (while handling {RESET})", load())  # as the other one is gone
    stage.tell("exit", 0, exit_code=None, signal="SIGKILL")
    stage.feed(stage.world.run("failed", 1))
    last = stage.frame()
    assert last.stall is not None and last.stall.ranks == (1,)
    assert "tokenize" in next_action(last)
    assert verdict(last).sentence == f"INTERRUPTED while stalled: {before}"
    assert (
        verdict(last).detail
        == f"by SIGINT · exit code 1 · at {clock(1_700_000_016)}, 30 s ago · last complete step 39"
    )
    assert [alert.message for alert in last.alerts][:1] == [f"interrupted while stalled: {before}"]
    assert last.deaths == ()
    advice = [one.action for one in report_from_messages(stage.messages).advice]
    assert "Fix what stalled it, then start again from the last checkpoint." in advice


def test_where_all_processes_get_the_signal_at_once_the_ranks_may_be_seen_first(stage: Stage) -> None:
    """As scancel and an eviction send it."""
    is_ended(stage, 1, "SIGTERM")
    assert kinds(stage) == ["lost_rank"]
    stage.after_s = 0.5
    raises(stage, 0, RESET, load())
    launcher_receives(stage, "SIGTERM")
    stage.feed(stage.world.run("failed", 1))
    assert (verdict(stage.frame()).sentence, kinds(stage)) == (SIGTERM, ["ended_from_outside"])


def test_one_rank_that_somebody_else_ends_is_a_death_of_that_rank(stage: Stage) -> None:
    is_ended(stage, 1, "SIGTERM")
    stage.after_s = 0.1
    is_ended(stage, 0, "SIGTERM")  # by torchrun
    stage.feed(stage.world.run("failed", 1))
    assert verdict(stage.frame()).sentence == "FAILED · rank 1 was ended by SIGTERM at step 40"
    assert [death.rank for death in stage.frame().deaths] == [1, 0]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_rank_that_has_died_before_is_the_cause_and_not_who_ends_the_rest(stage: Stage, name: str) -> None:
    is_ended(stage, 1, name)
    stage.after_s = 10.0
    launcher_receives(stage, "SIGINT")
    is_ended(stage, 0, "SIGINT")
    stage.feed(stage.world.run("failed", 1))
    assert verdict(stage.frame()).sentence.startswith("FAILED · rank 1 was ")
    assert kinds(stage) == ["lost_rank"]


def test_a_kill_for_want_of_memory_is_one_whatever_else_happens(stage: Stage) -> None:
    launcher_receives(stage, "SIGTERM")
    is_ended(stage, 1, "SIGKILL", out_of_memory=True)
    assert kinds(stage) == ["lost_rank"]


def test_a_script_that_ends_in_good_order_after_the_signal_has_finished(stage: Stage) -> None:
    launcher_receives(stage, "SIGTERM")
    for rank in (0, 1):
        stage.say(rank, Bye(stage.now_ns, "finished"))
    stage.feed(stage.world.run("finished", 0))
    assert verdict(stage.frame()).kind == "finished"
    assert kinds(stage) == []


def test_a_run_that_goes_on_after_the_signal_fails_for_reasons_of_its_own(stage: Stage) -> None:
    """A script under `--ddptop-exec` may make something else of a signal."""
    launcher_receives(stage, "SIGHUP")
    assert kinds(stage) == ["ended_from_outside"]
    stage.after_s = KILL_NS / NS + 1
    raises(stage, 1, "ValueError: bad batch", load())
    assert verdict(stage.frame()).sentence == "LOST · rank 1 failed: ValueError: bad batch (train.py:88 load)"


def without_launcher(stage: Stage) -> None:
    fields = {"stall_s": 15.0, "launcher": False}
    stage.feed(Received(stage.now_ns, -1, 0, 0, Event("settings", stage.now_ns, -1, -1, fields)))


def test_without_a_launcher_of_ours_the_ranks_alone_tell_as_far_as_they_can(stage: Stage) -> None:
    without_launcher(stage)
    is_ended(stage, 1, "SIGTERM")
    stage.after_s = 0.1
    assert kinds(stage) == ["lost_rank"]
    is_ended(stage, 0, "SIGTERM")
    message = (
        "2 ranks were ended by SIGTERM: all of them at once (time limit, scancel, eviction?), or one first"
    )
    assert verdict(stage.frame()).sentence == f"ENDED · {message}"
    assert stage.frame().deaths == ()


def test_ctrl_c_in_a_terminal_reaches_all_ranks(stage: Stage) -> None:
    without_launcher(stage)
    for rank in (0, 1):
        raises(stage, rank, "KeyboardInterrupt", load())
    assert verdict(stage.frame()).sentence == "INTERRUPTED by SIGINT (Ctrl-C)"


@pytest.mark.parametrize("reason", [RESET, "ValueError: bad batch"])
def test_nor_is_the_end_of_one_rank_taken_for_that_of_all(stage: Stage, reason: str) -> None:
    without_launcher(stage)
    is_ended(stage, 1, "SIGTERM")
    raises(stage, 0, reason, load())
    assert "ended_from_outside" not in kinds(stage)


def test_of_several_hosts_the_one_whose_launcher_was_told_is_named(make_world) -> None:
    world = make_world(4, hosts=("node0", "node1"), offset_ns={"node1": 5 * NS})
    stage = Stage(world)
    stage.feed(world.host_message("node0", own=True), world.host_message("node1"))
    stage.feed(world.compared("node1", 0.1))
    for rank in (0, 1):
        raises(stage, rank, RESET, load())  # the connections to the other host close first
    signal = {"signal": "SIGTERM", "host": "node1"}
    sent_ns = world.host_ns("node1", world.now_us)
    stage.after_s = 0.4
    stage.feed(world.of_agent("node1", Event(LAUNCHER_SIGNAL, sent_ns, -1, -1, signal)))
    for rank in (2, 3):
        is_ended(stage, rank, "SIGTERM")
    stage.feed(world.run("failed", 1))
    found = verdict(stage.frame())
    assert found.sentence == "INTERRUPTED by SIGTERM on node1 (time limit, scancel, eviction?)"
    assert stage.reducer.state.end.launcher_signal.t_ns < stage.now_ns
    assert stage.frame().deaths == ()


def test_the_others_begin_again_without_the_host_that_got_the_signal(make_world) -> None:
    """An elastic run shrinks: what ended is asked for while its rank is still one of the group."""
    stage = Stage(make_world(3))
    launcher_receives(stage, "SIGTERM")
    for rank in (2, 1, 0):
        is_ended(stage, rank, "SIGTERM")
    later_us = stage.world.now_us + 5_000_000
    smaller = make_world(2, hosts=("node1",), session_base=200, incarnation=1, now_us=later_us)
    stage.feed(*smaller.introduce(), *smaller.steps(5))
    assert (stage.frame().run.world_size, stage.frame().group.incarnation) == (2, 1)


def test_ranks_that_had_just_been_restarted_are_ended_by_the_signal_to_their_launcher(make_world) -> None:
    """They report once they have imported torch, which may be after the signal."""
    stage = Stage(make_world(2))
    raises(stage, 1, "RuntimeError: flaky disk", load())
    is_ended(stage, 0, "SIGTERM")
    stage.after_s = 9.0
    launcher_receives(stage, "SIGINT")
    stage.world = make_world(2, session_base=200, incarnation=1, now_us=stage.world.now_us + 10_000_000)
    stage.after_s = 10.0
    stage.feed(*stage.world.introduce())
    for rank in (0, 1):
        raises(stage, rank, "KeyboardInterrupt", load())
    stage.feed(stage.world.run("failed", 1))
    assert verdict(stage.frame()).sentence == "INTERRUPTED by SIGINT (Ctrl-C)"
