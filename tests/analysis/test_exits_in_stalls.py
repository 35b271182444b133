"""Ranks that end while the run is stalled: what is known of the stall stays, and what they did followed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptop.frames.frame import Frame
from ddptop.frames.phrases import death_phrase
from ddptop.frames.remedies import next_action
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import Stack, StackFrame
from ddptop.protocol.messages import FINISHED, LAUNCHER_SIGNAL, Bye, Event, Hello, Phase, Received
from ddptop.recording.reader import Recording
from ddptop.recording.writer import Writer
from ddptop.report.content import Report
from ddptop.sources.player import Player
from tests.analysis.stalling import ALL_REDUCE, BACKWARD, NS, START_NS, Stage, op, users, waits
from tests.analysis.test_deaths import load, raises
from tests.made_up_run import report_from_messages

TIMED_OUT = "RuntimeError: Timed out waiting 20000ms for recv operation to complete"
CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:4242"
SYNCHRONIZE = StackFrame("/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", 900, "synchronize", "")
OTHERS = (0, 2, 3)
MISSING = "rank 1 is missing: not in all_reduce 3 of step 41"


@pytest.fixture
def stage(make_world):
    return Stage(make_world(4))


def stands(stage: Stage, until_s: float, *, answers: bool = True, step: int = 41) -> None:
    """Rank 1 is in its `tokenize`, the others wait for it in the third all-reduce."""
    ranks = {rank: {"step": step, "bucket": 3, "sequence": 83} for rank in OTHERS}
    stage.beat(until_s, {**ranks, 1: {"step": step, "bucket": 2, "sequence": 82}})
    if answers:
        stage.answer(1, users("tokenize"), groups={"0": 82})
        for rank in OTHERS:
            stage.answer(rank, waits(), groups={"0": 83}, operations=(op(82, done=True), op(83)))


def gives_up(stage: Stage, rank: int, reason: str = TIMED_OUT) -> None:
    """It raises in its collective, which gloo then calls done."""
    operations = (op(82, done=True), op(83, done=True))
    trace = (Stack("traceback", True, waits(BACKWARD)[0].frames),)
    stage.answer(rank, trace, groups={"0": 83}, operations=operations, number=0, reason=reason, phase=0)
    stage.say(rank, Bye(stage.now_ns, reason.split(":")[0]))
    stage.tell("exit", rank, exit_code=1, signal=None)


def ends(stage: Stage, *ranks: int, signal: str = "SIGTERM") -> None:
    """The launcher ends these."""
    for rank in ranks:
        stage.tell("lost_rank", rank, exit_code=None, signal=signal)


def fails(stage: Stage) -> None:
    """The launcher reports the end of the run."""
    stage.world.now_us = (stage.now_ns - START_NS) // 1000
    stage.feed(stage.world.run("failed", 1))


def report_of(stage: Stage) -> Report:
    return report_from_messages(stage.messages)


def assert_stall_stays(stage: Stage, followed: str) -> Frame:
    """Screen, `--once`, `--json`, alerts and the report say what was said while the run stood."""
    found = stage.frame()
    said = verdict(found)
    assert said.line() in (f"■ FAILED · {MISSING}", f"■ LOST · {MISSING}")
    assert said.second() == f"rank 1 was in train.py:88 tokenize · {followed}"
    assert next_action(found).startswith("Find out what holds rank 1 in train.py:88 tokenize")
    assert found.alerts[0].message == MISSING
    assert found.alerts[1].message.startswith(followed)
    shown = snapshot(found)["stall"]
    assert (shown["kind"], shown["ranks"], shown["followed"]) == ("missing", [1], followed)
    assert shown["positions"][0]["user_call"]["function"] == "tokenize"
    assert shown["positions"][0]["traces"][0]["calls"][1]["function"] == "tokenize"
    assert all(death.follows for death in found.deaths)
    assert "mismatch" not in {alert.kind for alert in found.alerts}
    report = report_of(stage)
    assert [stall.sentence for stall in report.stalls] == [found.stall.sentence]
    assert report.verdict[0].sentence.startswith("stalled for ")
    assert f"{found.stall.sentence}; {followed}" in report.verdict[0].sentence
    assert [advice.kind for advice in report.advice][:1] == ["stall"]
    assert stage.said("stall") == [f"stall: {MISSING}"]
    return found


def test_ranks_that_time_out_do_not_hide_the_rank_that_they_waited_for(stage) -> None:
    stands(stage, 17)
    stage.beat(20, {})
    gives_up(stage, 0)
    stage.after_s += 0.1
    gives_up(stage, 2)
    assert verdict(stage.frame()).line() == f"■ LOST · {MISSING}"
    ends(stage, 1, 3)
    fails(stage)
    assert_stall_stays(stage, "ranks 0 and 2 gave up waiting after 20 s")


def test_ranks_that_wait_for_one_that_has_died_are_no_stall_beside_its_death(stage) -> None:
    stage.tell("lost_rank", 1, pid=4001, exit_code=None, signal="SIGKILL")
    stage.beat(30, {rank: {"step": 41, "bucket": 3, "sequence": 83} for rank in OTHERS})
    assert stage.frame().stall.kind == "dead"
    ends(stage, *OTHERS)
    fails(stage)
    report = report_of(stage)
    assert [finding.kind for finding in report.verdict] == ["failed", "even"]
    assert report.verdict[0].detail == ()
    assert [advice.kind for advice in report.advice if advice.kind in ("death", "stall")] == ["death"]


def test_a_pause_that_ends_in_a_failure_is_one_finding(stage) -> None:
    paused = {rank: {"step": 40, "sequence": 81, "phase": Phase.OTHER} for rank in range(4)}
    stage.beat(17, paused)
    for rank in range(4):
        stage.answer(rank, users("evaluate"), phase=Phase.OTHER)
    stage.beat(22, paused)
    raises(stage, 1, "ValueError: no such file", load())
    ends(stage, *OTHERS)
    fails(stage)
    report = report_of(stage)
    assert [finding.kind for finding in report.verdict] == ["failed", "even"]
    (before,) = report.verdict[0].detail
    assert before.startswith("before that stalled for 2") and before.endswith(report.stalls[0].sentence)


def test_what_exits_after_a_signal_to_the_launcher_is_no_stall_of_the_report(stage) -> None:
    fields = {"signal": "SIGINT", "host": "node0"}
    stage.feed(Received(stage.now_ns, -1, 0, 0, Event(LAUNCHER_SIGNAL, stage.now_ns, -1, -1, fields)))
    gives_up(stage, 1, "KeyboardInterrupt")
    stage.beat(20, {rank: {"step": 40, "sequence": 83} for rank in OTHERS})
    assert stage.frame().stall is not None
    stage.after_s = 32
    ends(stage, *OTHERS, signal="SIGKILL")
    fails(stage)
    report = report_of(stage)
    assert [finding.kind for finding in report.verdict][:2] == ["ended_from_outside", "even"]
    assert report.stalls == ()


@pytest.mark.parametrize("until_s", [5, 17])
def test_who_reads_only_the_end_of_a_recording_is_told_the_same(make_world, tmp_path, until_s: int) -> None:
    stage = Stage(make_world(4), steps=400)
    stands(stage, until_s, step=401)
    gives_up(stage, 0)
    gives_up(stage, 2)
    ends(stage, 1, 3)
    fails(stage)
    whole = stage.frame()
    writer = Writer(tmp_path / "run.ddptop", limit_bytes=1 << 30)
    for received in stage.messages:
        writer.add(received, encode(received.message))
    writer.close()
    with Recording.open(tmp_path / "run.ddptop") as recording:
        player = Player(recording, whole_rows=0, tail_rows=80)
        player.jump_to(recording.end_ns)
        assert not player.from_start
        found = player.make_frame()
    assert verdict(found) == verdict(whole)
    assert found.stall == whole.stall
    assert found.stall.ranks == (1,)


def test_a_rank_that_comes_late_and_finds_the_others_gone_stays_the_one_that_was_missing(stage) -> None:
    stands(stage, 17)
    gives_up(stage, 0)
    gives_up(stage, 2)
    stage.after_s += 3
    gives_up(stage, 1, CLOSED)
    gives_up(stage, 3, CLOSED)
    fails(stage)
    assert stage.frame().stall.positions[0].user_call.function == "tokenize"
    assert verdict(stage.frame()).line() == f"■ FAILED · {MISSING}"


@pytest.mark.parametrize(
    ("main", "seconds", "waited"),
    [pytest.param(BACKWARD, 180, "3 min", marks=pytest.mark.slow), (SYNCHRONIZE, 60, "60 s")],
    ids=["ddp", "script"],
)
def test_so_do_ranks_that_nccls_watchdog_aborts(
    make_world, main: StackFrame, seconds: int, waited: str
) -> None:
    world = make_world(4)
    hello = world.hello
    world.hello = lambda rank: hello(rank)._replace(message=_on_nccl(hello(rank).message))
    stage = Stage(world)
    stands(stage, 17)
    stage.beat(seconds, {rank: {"step": 41, "bucket": 3, "sequence": 83} for rank in OTHERS})
    for rank in (0, 2):
        stage.answer(rank, waits(main), number=0, reason="Fatal Python error: Aborted")
        ends(stage, rank, signal="SIGABRT")
    ends(stage, 1, 3)
    fails(stage)
    assert_stall_stays(stage, f"ranks 0 and 2 gave up waiting after {waited}")


def _on_nccl(hello: Hello) -> Hello:
    return replace(hello, device=f"cuda:{hello.rank}", backend="nccl")


@pytest.mark.parametrize("reason", ["", "exit code 4"])
def test_so_do_ranks_whose_script_catches_the_error_and_exits(stage, reason: str) -> None:
    stands(stage, 17)
    stage.beat(20, {})
    for rank in (0, 2):
        if reason:
            stage.answer(rank, users("main", 95), groups={"0": 83}, number=0, reason=reason, phase=0)
            stage.say(rank, Bye(stage.now_ns, reason))
        stage.tell("exit" if reason else "lost_rank", rank, exit_code=4, signal=None)
    ends(stage, 1, 3)
    fails(stage)
    assert_stall_stays(stage, "ranks 0 and 2 gave up waiting after 20 s")


def test_so_does_a_rank_that_waited_and_says_that_it_ended_in_good_order(stage) -> None:
    """As where a script calls sys.exit() after it has caught the error: its code is not known to it yet."""
    stands(stage, 17)
    stage.say(0, Bye(stage.now_ns, FINISHED))
    stage.tell("exit", 0, exit_code=1, signal=None)
    ends(stage, 1, 2, 3)
    fails(stage)
    found = stage.frame()
    assert verdict(found).line() == f"■ FAILED · {MISSING}"
    assert (found.stall.ranks, found.stall.followed) == ((1,), "rank 0 gave up waiting after 16 s")


@pytest.mark.parametrize("until_s", [5, 17])
def test_so_do_ranks_that_abort_outside_a_collective(stage, until_s: int) -> None:
    """As NCCL's watchdog does in `loss.item()`, and a script that has caught the error of its collective."""
    stands(stage, until_s)
    for rank in (0, 2):
        stage.answer(
            rank, users("main", 95), groups={"0": 83}, number=0, reason="Fatal Python error: Aborted"
        )
        ends(stage, rank, signal="SIGABRT")
    ends(stage, 1, 3)
    fails(stage)
    assert_stall_stays(stage, f"ranks 0 and 2 gave up waiting after {until_s - 1} s")


def test_the_missing_rank_that_aborts_or_exits_is_the_cause(stage) -> None:
    stands(stage, 5)
    stage.answer(1, users("tokenize"), number=0, reason="Fatal Python error: Aborted")
    ends(stage, 1, signal="SIGABRT")
    gives_up(stage, 0, CLOSED)
    fails(stage)
    assert verdict(stage.frame()).line().startswith("■ FAILED · rank 1 aborted (SIGABRT)")


@pytest.mark.parametrize("answers", [True, False])
def test_a_timeout_shorter_than_our_own_names_the_rank_from_what_is_known_at_the_exits(
    stage, answers: bool
) -> None:
    stands(stage, 5, answers=answers)
    for rank in (0, 2):
        gives_up(stage, rank, TIMED_OUT.replace("20000", "5000"))
    ends(stage, 1, 3)
    fails(stage)
    if answers:
        assert_stall_stays(stage, "ranks 0 and 2 gave up waiting after 5 s")
        return
    found = stage.frame()
    assert verdict(found).line() == f"■ FAILED · {MISSING}"
    assert verdict(found).second().endswith("ranks 0 and 2 gave up waiting after 5 s")
    assert report_of(stage).stalls[0].ranks == (1,)


def test_a_connection_that_is_lost_early_blames_no_rank_that_is_on_its_way(stage) -> None:
    stands(stage, 1, answers=False)
    gives_up(stage, 0, CLOSED)
    assert stage.frame().stall is None
    assert verdict(stage.frame()).line().startswith("■ LOST · rank 0 failed: RuntimeError: Connection closed")


def test_an_abort_in_a_collective_is_no_mismatch_with_a_rank_that_is_in_none(stage) -> None:
    stands(stage, 2)
    stage.answer(0, waits(ALL_REDUCE), number=0, reason="Fatal Python error: Aborted")
    ends(stage, 0, signal="SIGABRT")
    alert = next(alert for alert in stage.frame().alerts if alert.kind == "mismatch")
    assert "tokenize" not in alert.message and alert.evidence["side1_rank"] != 1


def test_a_missing_rank_that_comes_to_another_collective_is_a_mismatch_after_the_stall(stage) -> None:
    """gloo aborts it: what it receives is larger than its own tensor."""
    stands(stage, 17)
    stage.after_s += 5
    stage.answer(1, waits(ALL_REDUCE, line=90), number=0, reason="Fatal Python error: Aborted")
    ends(stage, 1, signal="SIGABRT")
    for rank in OTHERS:
        gives_up(stage, rank, CLOSED)
    fails(stage)
    found = stage.frame()
    assert verdict(found).line() == f"■ FAILED · {MISSING}"
    assert verdict(found).second().startswith("mismatch: rank 1 in all_reduce (train.py:90 step), rank 0 in")
    assert (found.stall.followed, found.stall.positions[0].user_call.function) == ("", "tokenize")
    assert next_action(found) == (
        "Let all ranks call the same collectives in the same order: see train.py:90 step."
    )


def test_the_stall_stays_where_the_run_is_interrupted(stage) -> None:
    stands(stage, 17)
    for rank in range(4):
        stage.say(rank, Bye(stage.now_ns, "KeyboardInterrupt"))
    fails(stage)
    found = stage.frame()
    assert (found.stall.ranks, found.stall.followed) == ((1,), "")
    assert found.stall.ended_s is not None
    assert report_of(stage).verdict[0].sentence.startswith("stalled for ")


def test_the_stall_stays_where_ranks_raise_on_an_interruption_and_are_killed_after_it(stage) -> None:
    stands(stage, 17)
    fields = {"signal": "SIGINT", "host": ""}
    stage.feed(Received(stage.now_ns, -1, 0, 0, Event(LAUNCHER_SIGNAL, stage.now_ns, -1, -1, fields)))
    stage.after_s += 30
    stage.say(0, Bye(stage.now_ns, "KeyboardInterrupt (while handling RuntimeError: Connection closed)"))
    stage.tell("exit", 0, exit_code=None, signal="SIGKILL")
    ends(stage, 1, 2, 3, signal="SIGKILL")
    fails(stage)
    found = stage.frame()
    assert verdict(found).line() == f"■ INTERRUPTED while stalled: {MISSING}"
    assert found.stall.positions[0].user_call.function == "tokenize"
    assert [stall.ranks for stall in report_of(stage).stalls] == [(1,)]


def test_that_its_process_was_stopped_stays_known_where_the_run_is_interrupted(stage) -> None:
    stage.tell("process", 1, state="stopped")
    stands(stage, 17, answers=False)
    for rank in OTHERS:
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(82, done=True), op(83)))
    fields = {"signal": "SIGINT", "host": ""}
    stage.feed(Received(stage.now_ns, -1, 0, 0, Event(LAUNCHER_SIGNAL, stage.now_ns, -1, -1, fields)))
    ends(stage, 0, 1, 2, 3, signal="SIGKILL")
    fails(stage)
    found = stage.frame()
    assert found.stall.positions[0].process == "stopped, then killed by SIGKILL"
    assert next_action(found).startswith("Find out who stopped rank 1 on ")


def test_the_stall_stays_where_only_the_run_is_known_to_have_ended(stage) -> None:
    stands(stage, 17)
    fails(stage)
    assert stage.frame().stall.ranks == (1,)


def test_a_rank_that_ends_for_a_reason_of_its_own_is_the_cause_and_the_report_keeps_the_stall(stage) -> None:
    stands(stage, 17)
    ends(stage, 2, signal="SIGKILL")
    gives_up(stage, 0, CLOSED)
    ends(stage, 1, 3)
    fails(stage)
    found = stage.frame()
    assert verdict(found).line().startswith("■ FAILED · rank 2 was killed by SIGKILL")
    assert [(death.rank, death.follows) for death in found.deaths][:2] == [(2, False), (0, True)]
    report = report_of(stage)
    assert "rank 2 was killed by SIGKILL" in report.verdict[0].sentence
    assert report.stalls[0].sentence.startswith("rank 1 is missing")


def test_a_rank_that_the_launcher_kills_since_sigterm_did_not_end_it_is_no_cause(stage) -> None:
    """As trainers do that save a checkpoint when SIGTERM comes: torchrun kills them 30 s later."""
    stands(stage, 17)
    for rank in OTHERS:
        gives_up(stage, rank)
    stage.after_s += 30
    ends(stage, 1, signal="SIGKILL")
    fails(stage)
    found = assert_stall_stays(stage, "ranks 0, 2 and 3 gave up waiting after 20 s")
    assert death_phrase(found.deaths[3]) == (
        "rank 1 was killed by SIGKILL (by its launcher, for SIGTERM had not ended it)"
    )


def test_so_is_the_missing_rank_where_it_raises(stage) -> None:
    stands(stage, 17)
    stage.answer(1, users("tokenize"), number=0, reason="ValueError: bad document")
    stage.say(1, Bye(stage.now_ns, "ValueError"))
    for rank in OTHERS:
        gives_up(stage, rank, CLOSED)
    assert verdict(stage.frame()).line().startswith("■ LOST · rank 1 failed: ValueError: bad document")


@pytest.mark.parametrize("code", [1, None], ids=["both exit", "the launcher ends one while it exits"])
def test_ranks_that_raise_the_same_have_both_failed_and_none_has_followed(stage, code) -> None:
    for rank, exit_code in ((2, 1), (0, code)):
        stage.answer(rank, users("load"), number=0, reason="FileNotFoundError: data.bin")
        stage.say(rank, Bye(stage.now_ns, "FileNotFoundError"))
        stage.tell("exit", rank, exit_code=exit_code, signal=None if exit_code else "SIGTERM")
    ends(stage, 1, 3)
    fails(stage)
    assert report_of(stage).verdict[0].sentence == (
        "ranks 0 and 2 failed: FileNotFoundError: data.bin (exit code 1), in step 40; ranks 1 and 3 followed"
    )


def test_a_group_that_begins_anew_is_not_in_the_stall_of_the_one_before(stage) -> None:
    stands(stage, 17)
    for rank in OTHERS:
        gives_up(stage, rank)
    ends(stage, 1)
    assert stage.frame().stall is not None
    again = type(stage.world)(4, incarnation=1, session_base=200, unix_ns=stage.world.unix_ns + 60 * NS)
    again.now_us = (stage.now_ns - START_NS) // 1000
    stage.feed(*again.introduce(), *again.steps(3))
    assert stage.reducer.frame(START_NS + again.now_us * 1000).stall is None


def test_a_pause_that_ended_before_it_was_logged_is_in_no_report(stage) -> None:
    stage.beat(15.3, {rank: {"step": 40, "sequence": 80} for rank in range(4)})
    stage.world.now_us = (stage.now_ns - START_NS) // 1000
    stage.feed(*stage.world.steps(40))
    assert stage.said("stall") == []
    assert report_of(stage).stalls == ()


def test_the_report_tells_a_mismatch_once_as_the_stall_that_it_is(stage) -> None:
    in_41 = {rank: {"step": 41, "bucket": 3, "sequence": 83} for rank in range(4)}
    stage.beat(17, in_41)
    for rank in range(4):
        call = op(83, "gloo:broadcast") if rank == 2 else op(83)
        stage.answer(rank, waits(), groups={"0": 83}, operations=(call,))
    stage.beat(40, in_41)
    (alert,) = (alert for alert in stage.frame().alerts if alert.kind == "mismatch")
    fails(stage)
    report = report_of(stage)
    assert [stall.sentence for stall in report.stalls] == [alert.message]
    assert "mismatch" not in {one.kind for one in (*report.troubles, *report.verdict)}
