"""Why the step does not move: who is dead, missing, in another collective, or whether nobody is to blame."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import encode_frame
from ddptop.frames.remedies import next_action
from ddptop.frames.snapshot import snapshot
from ddptop.frames.stall import MAX_POSITIONS
from ddptop.frames.verdict import verdict
from ddptop.protocol.evidence import Stack, StackFrame
from ddptop.protocol.messages import Event, Hello, Phase, Received
from ddptop.render.context import RenderContext
from ddptop.render.evidence import draw_brief
from ddptop.report.sampling import Incidents
from tests.analysis.stalling import ALL_REDUCE, MAIN, NS, START_NS, Stage, op, users, waits
from tests.made_up_run import feed_together

IN_41 = {"step": 41, "bucket": 3, "sequence": 83}
"""Three buckets of step 41 launched."""


@pytest.fixture
def stage(make_world):
    return Stage(make_world(4))


def one_missing(stage: Stage, until_s: float = 17) -> None:
    """Rank 1 has launched two buckets of the step, the others three."""
    ranks = {rank: dict(IN_41) for rank in (0, 2, 3)}
    stage.beat(until_s, {**ranks, 1: {"step": 41, "bucket": 2, "sequence": 82}})


def answer_all(stage: Stage) -> None:
    stage.answer(1, users("tokenize"), groups={"0": 82})
    for rank in (0, 2, 3):
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(82, done=True), op(83)))


def test_the_missing_rank_is_named_with_what_it_lacks_and_where_it_is(stage) -> None:
    one_missing(stage)
    answer_all(stage)
    found = stage.frame()
    stall = found.stall
    assert (stall.kind, stall.ranks, stall.waiting, stall.step) == ("missing", (1,), (0, 2, 3), 41)
    assert stall.sentence == ("rank 1 is missing: it has not entered all_reduce 3 of step 41 (sequence 83)")
    since = time.strftime("%H:%M:%S", time.localtime(stall.since_s))
    assert stall.detail == (
        f"ranks 0, 2 and 3 wait there since {since}",
        "rank 1, node0, pid 4001, is in train.py:88 tokenize",
        "rank 1's process is alive, 3% CPU",
    )
    assert [t.rank for t in stall.positions] == [1, 0, 2, 3]
    first, second = stall.positions[:2]
    assert (first.process, first.sequence, first.operation) == ("alive", 82, "")
    assert (first.user_call.line, first.user_call.function) == (88, "tokenize")
    assert [trace.thread for trace in first.traces] == ["MainThread", "loader"]
    assert (second.sequence, second.operation) == (83, "all_reduce of [[1000]] Float")
    assert second.user_call.function == "step"
    assert found.ranks.state == ("stalled",) * 4
    assert found.run.state == "stalled"


def test_what_torchs_analyser_found_is_added_for_this_stall_and_no_other(stage) -> None:
    one_missing(stage)
    asked_ns = stage.now_ns
    answer_all(stage)
    before = stage.frame().stall.detail

    def tell(asked_ns: int, **texts: str) -> tuple[str, ...]:
        fields = {"asked_ns": asked_ns, **texts}
        stage.feed(Received(stage.now_ns, -1, 0, 0, Event("analyser", stage.now_ns, -1, -1, fields)))
        return stage.frame().stall.detail

    assert tell(asked_ns, text0="rank 1 lacks", text1="rank 2 too") == (
        *before,
        "torch's analyser: rank 1 lacks",
        "torch's analyser: rank 2 too",
    )
    assert stage.said("analyser") == []
    assert tell(asked_ns) == before
    assert tell(stage.last_ns - NS, text0="of an earlier stall") == before
    stage.feed(
        Received(
            stage.now_ns,
            -1,
            0,
            0,
            Event("ras", stage.now_ns, -1, -1, {"asked_ns": asked_ns, "text0": "DEAD"}),
        )
    )
    assert stage.frame().stall.detail == (*before, "NCCL RAS: DEAD")


def test_the_verdict_fits_the_screen_and_names_the_users_function(stage) -> None:
    one_missing(stage)
    answer_all(stage)
    said = verdict(stage.frame())
    assert said.line() == "■ STALLED 16 s · rank 1 is missing: not in all_reduce 3 of step 41"
    assert said.second() == "rank 1 is in train.py:88 tokenize"
    alert = stage.frame().alerts[0]
    assert (alert.kind, alert.rank, alert.evidence["call"]) == ("stall", 1, "train.py:88 tokenize")
    assert (alert.evidence["verdict"], alert.evidence["sequence"]) == ("missing", 82)


def test_who_is_missing_is_known_before_the_answers(stage) -> None:
    one_missing(stage)
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("missing", (1,))
    assert "rank 1, node0, pid 4001, has not answered" in stall.detail


def test_a_rank_behind_by_a_step_is_missing_though_its_sequence_is_not_known(stage) -> None:
    ahead = {rank: {"step": 41, "bucket": -1, "sequence": -1} for rank in (0, 1, 2)}
    stage.beat(17, {**ahead, 3: {"step": 40, "bucket": -1, "sequence": -1, "phase": Phase.DATA}})
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("missing", (3,))
    assert stall.sentence == "rank 3 is missing: still in step 40, the others in 41"


def test_a_rank_that_counts_a_step_with_its_end_is_missing_where_it_launched_less(stage) -> None:
    """Ranks that record fewer steps than others count some when the optimizer has stepped, the others with
    the next forward: both are behind the same optimizer step here."""
    in_barrier = {rank: {"step": 40, "bucket": -1, "sequence": 83} for rank in (0, 1, 2)}
    stage.beat(17, {**in_barrier, 3: {"step": 41, "bucket": -1, "sequence": 82, "phase": Phase.OTHER}})
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("missing", (3,))


def test_a_rank_that_counts_a_step_with_its_end_is_in_no_other_collective(stage) -> None:
    between = {"bucket": -1, "sequence": 83, "phase": Phase.OTHER}
    stage.beat(17, {rank: {"step": 40 + (rank == 3), **between} for rank in range(4)})
    for rank in range(4):
        stage.answer(rank, waits(), groups={"0": 83})
    assert stage.frame().stall.kind == "transport"


def test_by_bucket_where_backends_do_not_count(stage) -> None:
    stage.beat(17, {rank: {"step": 41, "bucket": 1 + (rank != 2), "sequence": -1} for rank in range(4)})
    assert stage.frame().stall.ranks == (2,)


def test_several_ranks_are_missing(stage) -> None:
    behind = {rank: {"step": 41, "bucket": 0, "sequence": 80} for rank in (1, 3)}
    stage.beat(17, {**behind, 0: dict(IN_41), 2: dict(IN_41)})
    stall = stage.frame().stall
    assert stall.ranks == (1, 3)
    assert stall.sentence.startswith(
        "ranks 1 and 3 are missing: they have not entered all_reduce 1 of step 41"
    )


def test_of_two_that_are_behind_the_one_that_the_other_waits_for_is_missing(stage) -> None:
    """Tensor and data parallel groups: 0 waits for 1, 2 and 1 wait for 3."""
    stage.beat(17, {rank: {"step": 41, "bucket": -1, "sequence": -1} for rank in range(4)})
    sequences = {0: {"d0": 5, "t0": 9}, 1: {"d0": 4, "t1": 9}, 2: {"d1": 5, "t0": 9}, 3: {"d1": 4, "t1": 8}}
    for rank, groups in sequences.items():
        stage.answer(rank, users("load") if rank == 3 else waits(), groups=groups)
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("missing", (3,))
    assert stall.sentence.endswith("(sequence 5 of group d1)")


def test_ranks_that_wait_for_each_other_in_different_groups(make_world) -> None:
    stage = Stage(make_world(2))
    stage.beat(17, {rank: {"step": 41, "sequence": -1, "bucket": -1} for rank in range(2)})
    stage.answer(0, waits(ALL_REDUCE), groups={"a": 5, "b": 1}, operations=(op(5, group="a"),))
    stage.answer(1, waits(ALL_REDUCE), groups={"a": 4, "b": 2}, operations=(op(2, group="b"),))
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("mismatch", ())
    assert stall.sentence == (
        "deadlock: rank 0 waits in all_reduce of group a where rank 1 waits in all_reduce of group b"
    )
    assert [one.operation for one in stall.positions] == [
        "all_reduce of [[1000]] Float, group a",
        "all_reduce of [[1000]] Float, group b",
    ]
    assert [line.split(", ")[-1] for line in stall.detail] == ["is in train.py:61 step"] * 2


def test_a_stopped_process_is_stale_and_missing(stage) -> None:
    alive = {rank: {"step": 41, "bucket": 1, "sequence": 81} for rank in (0, 2, 3)}
    stage.tell("process", 1, state="stopped")
    stage.beat(17, alive, there=[1])
    for rank in alive:
        stage.answer(rank, waits(), groups={"0": 81}, operations=(op(81),))
    found = stage.frame()
    assert found.ranks.state == ("stalled", "stale", "stalled", "stalled")
    assert (found.stall.kind, found.stall.ranks) == ("missing", (1,))
    assert found.stall.positions[0].process == "stopped"
    assert "rank 1's process is stopped (SIGSTOP)" in found.stall.detail
    assert verdict(found).second() == "the process of rank 1 is stopped (SIGSTOP)"
    assert stage.said("process") == ["rank 1 was stopped (SIGSTOP)"]
    assert next_action(found) == "kill -CONT 4001 on node0: its process is stopped."
    stage.tell("process", 2, state="stopped")
    assert next_action(stage.frame()) == "kill -CONT 4001 4002 on node0: 2 ranks are stopped."
    for rank in (1, 2):
        stage.tell("process", rank, state="running")
    assert stage.said("process")[-1] == "ranks 1 and 2 were continued (SIGCONT)"


def test_a_silent_rank_is_to_blame_where_nobody_is_behind(stage) -> None:
    """It stopped inside the collective that all are in: something holds its interpreter."""
    stage.beat(0.5, {rank: dict(IN_41) for rank in range(4)})
    stage.beat(17, {rank: dict(IN_41) for rank in (0, 1, 3)}, there=[2])
    for rank in (0, 1, 3):
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(83),))
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks, stall.positions[0].process) == ("missing", (2,), "silent")
    assert stall.sentence == "rank 2 is missing: it does not answer"


def test_all_ranks_in_the_same_collective_is_the_transport(stage) -> None:
    stage.beat(16, {rank: dict(IN_41) for rank in range(4)})
    assert stage.frame().stall.kind == "asking"
    for rank in range(4):
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(83),))
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("transport", ())
    assert stall.sentence == (
        "4 ranks have all launched all_reduce of step 41 (sequence 83) and none completes: transport"
    ), "ranks on CPUs have no device"


def test_ranks_that_all_stand_in_their_own_code_do_not_blame_the_transport(stage) -> None:
    stage.beat(16, {rank: dict(IN_41) for rank in range(4)})
    for rank in range(4):
        stage.answer(rank, users("read_from_dead_disk"), groups={"0": 83}, operations=(op(83, done=True),))
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("missing", (0, 1, 2, 3))
    assert stall.sentence == "4 ranks make no progress in step 41, outside any collective"


def test_of_equal_sequences_the_rank_outside_any_collective_is_missing(stage) -> None:
    stage.beat(16, {rank: dict(IN_41) for rank in range(4)})
    for rank in range(4):
        stage.answer(rank, users("save") if rank == 2 else waits(), groups={"0": 83})
    assert stage.frame().stall.ranks == (2,)


def mismatched(stage: Stage, odd: int, **own) -> None:
    stage.beat(16, {rank: dict(IN_41) for rank in range(4)})
    for rank in range(4):
        call = op(83, **own) if rank == odd else op(83)
        stage.answer(rank, waits(line=70 if rank == odd else 61), groups={"0": 83}, operations=(call,))


def test_different_operations_are_a_mismatch_with_both_sides(stage) -> None:
    mismatched(stage, 2, name="gloo:broadcast")
    found = stage.frame()
    assert (found.stall.kind, found.stall.ranks, found.stall.waiting) == ("mismatch", (2,), (0, 1, 3))
    assert (
        found.stall.sentence == "rank 2 calls broadcast where ranks 0, 1 and 3 call all_reduce (sequence 83)"
    )
    assert [t.rank for t in found.stall.positions[:2]] == [2, 0]
    assert "rank 2, node0, pid 4002, is in train.py:70 step" in found.stall.detail
    assert "rank 0, node0, pid 4000, is in train.py:61 step" in found.stall.detail
    assert verdict(found).second() == "rank 2 is in train.py:70 step, rank 0 is in train.py:61 step"
    alert = next(alert for alert in found.alerts if alert.kind == "mismatch")
    assert (alert.rank, alert.evidence["side0_call"]) == (2, "train.py:70 step")
    assert alert.evidence["side1_operation"] == "all_reduce of [[1000]] Float"


def test_who_is_behind_in_a_collective_of_its_own_is_not_called_missing_before_the_others_tell(stage) -> None:
    ranks = {rank: dict(IN_41) | {"sequence": 84} for rank in (1, 2, 3)}
    stage.beat(16, {**ranks, 0: {"step": 41, "bucket": 2, "sequence": 83}})
    stage.answer(0, waits(line=70), groups={"0": 83}, operations=(op(83, "barrier"),))
    assert stage.frame().stall.kind == "asking"
    for rank in (1, 2, 3):
        stage.answer(rank, waits(), groups={"0": 84}, operations=(op(83), op(84)))
    assert stage.frame().stall.kind == "mismatch"


def test_most_ranks_are_not_called_missing_before_the_answers_of_the_one_ahead_of_them(stage) -> None:
    """Rank 2 left out a barrier in which the others wait, and has launched the first all-reduce."""
    ranks = {rank: {"step": 41, "bucket": 0, "sequence": -1, "phase": Phase.OTHER} for rank in (0, 1, 3)}
    stage.beat(16, {**ranks, 2: {"step": 41, "bucket": 1, "sequence": -1}})
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("asking", ())
    for rank in range(4):
        call = op(83) if rank == 2 else op(83, "barrier")
        stage.answer(rank, waits(), groups={"0": 83}, operations=(call,))
    assert (stage.frame().stall.kind, stage.frame().stall.ranks) == ("mismatch", (2,))


def test_most_ranks_are_missing_where_their_answers_do_not_come(stage) -> None:
    ranks = {rank: {"step": 41, "bucket": 0, "sequence": -1, "phase": Phase.OTHER} for rank in (0, 1, 3)}
    stage.beat(30, {**ranks, 2: {"step": 41, "bucket": 1, "sequence": -1}})
    assert (stage.frame().stall.kind, stage.frame().stall.ranks) == ("missing", (0, 1, 3))


def test_without_their_word_it_is_missing_after_a_while(stage) -> None:
    ranks = {rank: dict(IN_41) | {"sequence": 84} for rank in (1, 2, 3)}
    stage.beat(30, {**ranks, 0: {"step": 41, "bucket": 2, "sequence": 83}})
    stage.answer(0, waits(line=70), groups={"0": 83}, operations=(op(83, "barrier"),))
    assert (stage.frame().stall.kind, stage.frame().stall.ranks) == ("missing", (0,))


def test_different_sizes_are_a_mismatch(stage) -> None:
    mismatched(stage, 0, sizes="[[2000]]")
    assert stage.frame().stall.sentence == (
        "rank 0 calls all_reduce of [[2000]] Float where ranks 1, 2 and 3 call all_reduce of [[1000]] Float "
        "(sequence 83)"
    )


def test_sizes_that_differ_by_nature_are_no_mismatch(stage) -> None:
    stage.beat(16, {rank: dict(IN_41) for rank in range(4)})
    for rank in range(4):
        call = op(83, "scatter", "[[1000]]" if rank else "[]")
        stage.answer(rank, waits(), groups={"0": 83}, operations=(call,))
    assert stage.frame().stall.kind == "transport"


def test_a_skipped_collective_is_told_from_a_missing_rank(stage) -> None:
    """Rank 3 left one out and went on: it is ahead by a step, all have launched 83, none is missing."""
    ranks = {rank: {"step": 40, "bucket": -1, "sequence": 83} for rank in range(3)}
    stage.beat(16, {**ranks, 3: {"step": 41, "bucket": 1, "sequence": 83}})
    for rank in range(4):
        stage.answer(rank, waits(), groups={"0": 83})
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("mismatch", (3,))
    assert stall.sentence == "rank 3 waits in a collective of step 41, the others in one of step 40"


def test_a_rank_that_has_moved_since_it_answered_is_not_compared_with_the_others(stage) -> None:
    """As after a cut link was mended: the others have moved, too, and their messages are still to come."""
    ranks = {rank: {"step": 40, "bucket": -1, "sequence": 83} for rank in range(4)}
    stage.beat(16, ranks)
    for rank in range(4):
        stage.answer(rank, waits(), groups={"0": 83})
    stage.beat(30, {**ranks, 3: {"step": 41, "bucket": 1, "sequence": 83}})
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("asking", ())
    assert stall.sentence == "no progress in step 40: waiting for the ranks' answers"
    stage.answer(3, waits(), groups={"0": 83}, number=8)
    assert (stage.frame().stall.kind, stage.frame().stall.ranks) == ("mismatch", (3,))


def test_a_rank_that_is_gone_comes_before_everything_else(stage) -> None:
    stage.tell("lost_rank", 2, exit_code=None, signal="SIGKILL")
    stage.beat(17, {rank: dict(IN_41) for rank in (0, 1, 3)})
    found = stage.frame()
    assert (found.stall.kind, found.stall.ranks, found.stall.waiting) == ("dead", (2,), (0, 1, 3))
    assert found.stall.sentence == "rank 2 was killed by SIGKILL at step 40 (out of memory?)"
    assert found.run.state == "lost"


def test_a_rank_that_finished_early_is_what_the_others_wait_for(stage) -> None:
    stage.feed(stage.world.bye(1))
    stage.beat(17, {rank: dict(IN_41) for rank in (0, 2, 3)})
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("missing", (1,))
    assert stall.sentence == "rank 1 has finished: the others wait for it in step 41"


def test_a_rank_that_works_on_after_the_others_finished_is_no_stall(stage) -> None:
    for rank in (1, 2, 3):
        stage.feed(stage.world.bye(rank))
    stage.beat(60, {0: {"step": 40, "phase": Phase.OTHER}})
    assert stage.frame().stall is None


def test_a_lone_rank_that_stands_still(make_world) -> None:
    stage = Stage(make_world(1))
    stage.beat(16, {0: {"step": 40, "phase": Phase.DATA}})
    stage.answer(0, users("fetch"))
    stall = stage.frame().stall
    assert (stall.ranks, stall.waiting) == ((0,), ())
    assert stall.sentence == "rank 0 makes no progress in step 40, outside any collective"
    assert "rank 0, node0, pid 4000, is in train.py:88 fetch" in stall.detail


def test_thousands_of_ranks_carry_only_a_page_of_positions(make_world) -> None:
    stage = Stage(make_world(1024), steps=1)
    stage.after_s = 14
    stage.beat(16, {rank: {"step": 1, "bucket": int(rank > 500), "sequence": 1} for rank in range(1024)})
    stall = stage.frame().stall
    assert (len(stall.ranks), len(stall.positions)) == (501, MAX_POSITIONS)
    assert stall.sentence.startswith("501 of 1,024 ranks are missing")
    assert stall.positions[-1].rank == 501, "one that waits is among them"


def test_evaluation_and_declared_phases_are_no_stalls(stage) -> None:
    stage.beat(60, {rank: {"step": 41, "phase": Phase.EVALUATE if rank == 0 else 3} for rank in range(4)})
    assert stage.reducer.stalled_since(stage.now_ns) is None
    evaluated_ns = stage.now_ns
    stage.beat(80, {rank: {"step": 41} for rank in range(4)})
    assert stage.reducer.stalled_since(stage.now_ns) == evaluated_ns


def test_a_rank_that_compiles_is_no_stall_and_is_asked_again(make_world) -> None:
    stage = Stage(make_world(2), steps=0)
    compiler = StackFrame(
        "/v/lib/python3.11/site-packages/torch/_inductor/compile_fx.py", 9, "compile_fx", ""
    )
    stacks = (Stack("MainThread", True, (compiler, *users("main")[1].frames)),)
    beats = {rank: {"step": 0, "sequence": 1, "bucket": -1} for rank in range(2)}
    stage.beat(61, beats)
    assert stage.reducer.stalled_since(stage.now_ns) is not None
    stage.answer(0, stacks)
    assert stage.reducer.stalled_since(stage.now_ns) is None
    frame = stage.frame()
    (alert,) = (alert for alert in frame.alerts if alert.kind == "compiling")
    assert (alert.rank, alert.severity, alert.step) == (0, "info", 0)
    said = verdict(frame)
    assert (said.kind, said.sign) == ("compiling", "busy")
    assert said.sentence.startswith("rank 0 is compiling in step 0, the others wait, for ")
    assert said.detail.startswith("called at train.py:88 main · ")
    assert next_action(frame).startswith("Wait: a first compilation takes minutes")
    stage.answer(0, stacks)
    assert stage.said("compiling") == ["rank 0 was compiling in step 0 (train.py:88 main)"], "logged once"
    stage.beat(122, beats)
    assert stage.reducer.stalled_since(stage.now_ns) is not None, "the collector asks again"
    assert stage.frame().stall is None, "and the screen waits for the answer"
    stage.beat(132, beats)
    assert stage.frame().stall is not None


def test_a_rank_in_forward_may_compile_until_it_had_the_time_to_answer(stage) -> None:
    ranks = {rank: dict(IN_41) for rank in (0, 2, 3)}
    ranks[1] = {"step": 41, "bucket": 2, "sequence": 82, "phase": Phase.FORWARD}
    stage.beat(18, ranks)
    assert stage.reducer.stalled_since(stage.now_ns) is not None, "the collector asks"
    assert stage.frame().stall is None and stage.said("stall") == []
    stage.beat(22, ranks)
    assert stage.frame().stall.ranks == (1,)
    assert stage.said("stall") == ["stall: rank 1 is missing: not in all_reduce 3 of step 41"]


def test_an_answer_to_an_earlier_stall_counts_no_more(stage) -> None:
    stage.beat(17, {rank: dict(IN_41) for rank in range(4)})
    for rank in range(4):
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(83),))
    assert stage.frame().stall.kind == "transport"
    stage.beat(33, {rank: {"step": 42, "bucket": 1, "sequence": 84} for rank in range(4)})
    found = stage.frame()
    assert found.stall.kind == "asking"
    assert found.stall.positions[0].traces == ()


def test_the_log_tells_when_it_began_and_how_long_it_lasted(stage) -> None:
    one_missing(stage, 30)
    assert stage.said("stall") == ["stall: rank 1 is missing: not in all_reduce 3 of step 41"]
    stage.beat(32, {rank: {"step": 42, "bucket": 0, "sequence": 84} for rank in range(4)})
    assert stage.said("stall_end") == [
        "the run continues after 30 s without progress, rank 1 had been missing"
    ]
    assert stage.frame().stall is None
    assert stage.frame().run.state == "live"


@pytest.mark.parametrize(("later_s", "stood_s"), [(1, 32), (20, 51)])
def test_a_stall_lasts_until_all_ranks_have_moved_and_from_its_first(stage, later_s, stood_s) -> None:
    """Rank 1 enters the step half a second before the others, and leaves it before them."""
    ahead, behind = {"step": 42, "bucket": 0, "sequence": 84}, {"step": 41, "bucket": 2, "sequence": 82}
    stage.beat(0.5, {1: behind})
    one_missing(stage, 31)
    stage.beat(31 + later_s, {**{rank: dict(IN_41) for rank in (0, 2, 3)}, 1: ahead})
    assert stage.said("stall_end") == []
    stage.beat(33 + later_s, {rank: dict(ahead, step=43) for rank in range(4)})
    assert len(stage.said("stall")) == 1 + (later_s > 1)
    (end,) = stage.said("stall_end")
    assert end.startswith(f"the run continues after {stood_s} s without progress, ")


def test_the_log_does_not_depend_on_who_looked(make_world) -> None:
    logs = []
    for looks in (False, True):
        stage = Stage(make_world(4))
        for until_s in range(14, 25):
            one_missing(stage, until_s)
            if looks:
                stage.frame()
        answer_all(stage)
        stage.beat(26, {rank: {"step": 42, "bucket": 0, "sequence": 84} for rank in range(4)})
        logs.append((stage.frame().events, snapshot(stage.frame())["alerts"]))
    assert logs[0] == logs[1]


def test_a_finished_or_failed_run_is_no_stall(stage) -> None:
    one_missing(stage)
    assert stage.reducer.stalled_since(stage.now_ns) is not None
    stage.feed(stage.world.run("failed", 1))
    assert stage.reducer.stalled_since(stage.now_ns) is None
    assert stage.frame().stall is None


def test_ranks_that_never_answer_are_told_in_the_log(stage) -> None:
    stage.beat(19, {rank: dict(IN_41) for rank in range(4)})
    assert stage.said("stall") == []
    stage.beat(22, {rank: dict(IN_41) for rank in range(4)})
    assert stage.said("stall") == ["stall: no rank is behind in step 41, and no rank has answered"]


def test_frames_carry_a_page_of_stacks_whatever_ranks_send(stage) -> None:
    one_missing(stage)
    deep = tuple(StackFrame("/home/me/" + "x" * 500, i, "f" * 500, "c" * 500) for i in range(128))
    stacks = tuple(Stack(f"thread {i}", i == 63, deep) for i in range(64))
    for rank in range(4):
        stage.answer(rank, stacks, groups={"0": 82 if rank == 1 else 83})
    found = stage.frame().stall.positions
    assert [len(one.traces) for one in found] == [8, 8, 1, 1]
    assert all(one.traces[0].thread == "thread 63" for one in found)
    assert len(found[0].traces[0].calls) == 40
    assert len(encode_frame(stage.frame())) < 512 * 1024


def test_the_runs_own_patience_holds_also_in_a_replay(stage) -> None:
    stage.tell("settings", -1, stall_s=3.0)
    one_missing(stage, until_s=5)
    assert stage.frame().run.state == "stalled"
    assert not any("settings" in event.message for event in stage.frame().events)


HELD_UP_S = 30


def interrupted(stage: Stage, moving: tuple[int, ...], beating: tuple[int, ...]) -> None:
    """The collector does not run for half a minute, then reads what ranks sent: of rank 3 last of all.

    `moving` ranks took a step each second, the others stood; of those that are not `beating` nothing came.
    """
    end_ns = stage.last_ns + HELD_UP_S * NS
    fields = {"from_ns": stage.last_ns, "seconds": 30.0, "message": "recording interrupted for 30 s"}
    stage.feed(Received(end_ns, -1, 0, 0, Event("interruption", end_ns, -1, -1, fields)))
    sent = [(second, rank) for rank in beating for second in range(1, HELD_UP_S + 1)]
    for at, (second, rank) in enumerate(sent):
        then_us = (stage.last_ns + second * NS - START_NS) // 1000
        step = 41 + second if rank in moving else 41
        said = stage.world.progress(rank, t_us=then_us, **{**IN_41, "step": step})
        stage.feed(said._replace(t_ns=end_ns + at * NS // 1000))
    stage.after_s = HELD_UP_S + 1


def test_a_collector_that_was_held_up_takes_no_rank_for_stalled(stage) -> None:
    incidents = Incidents(stage.reducer)
    feed = stage.reducer.feed
    stage.reducer.feed = lambda received: (feed(received), incidents.after_message(received, received.t_ns))[
        0
    ]
    interrupted(stage, (0, 1, 2, 3), (0, 1, 2, 3))
    stage.beat(40, {rank: {**IN_41, "step": 72} for rank in range(4)})
    assert (stage.frame().run.state, stage.frame().stall, incidents.stalls) == ("live", None, [])
    assert stage.said("stall") == []
    assert stage.said("interruption") == ["recording interrupted for 30 s"]
    assert [alert.kind for alert in incidents.troubles] == ["interruption"]


def test_a_stall_that_began_while_the_collector_was_held_up_is_found_at_once(stage) -> None:
    interrupted(stage, (), (0, 1, 2, 3))
    found = stage.frame()
    assert found.run.state == "stalled"
    assert found.stall.since_s == pytest.approx(stage.reducer.state.unix_s(stage.last_ns), abs=1.5)


def test_nothing_counts_against_a_rank_that_could_not_report(stage) -> None:
    """The whole machine was held: ranks stand for the time, and nothing of it is their own."""
    interrupted(stage, (), ())
    stage.after_s += 0.5
    stage.beat(44, {rank: dict(IN_41) for rank in range(4)})
    assert stage.frame().run.state == "live"
    stage.beat(48, {rank: dict(IN_41) for rank in range(4)})
    assert stage.frame().run.state == "stalled", "held or not, from then on it stands"


def test_a_rank_that_is_silent_after_an_interruption_is_found(stage) -> None:
    interrupted(stage, (0, 1, 2), (0, 1, 2))
    stage.beat(50, {rank: {**IN_41, "step": 72} for rank in (0, 1, 2)})
    assert stage.frame().stall.ranks == (3,)


def test_a_restarted_collector_takes_no_rank_for_stalled(stage) -> None:
    stage.after_s = HELD_UP_S
    stage.feed(Received(stage.now_ns, -1, 0, 0, Event("collector_restart", stage.now_ns, -1, -1)))
    for rank in range(4):
        stage.feed(stage.world.progress(rank, t_us=(stage.now_ns - START_NS) // 1000, **IN_41))
        assert stage.said("stall") == [] and stage.frame().run.state == "live"


def test_no_rank_is_silent_because_the_collector_was_killed_in_a_stall(stage) -> None:
    """The next one takes some seconds to begin, and not all ranks report to it at once."""
    everyone = {rank: dict(IN_41) for rank in range(4)}
    stage.beat(17, everyone)
    for rank in everyone:
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(83),))
    assert stage.frame().stall.kind == "transport"
    stage.after_s = 20
    stage.feed(Received(stage.now_ns, -1, 0, 0, Event("collector_restart", stage.now_ns, -1, -1)))
    stage.after_s = 22
    for until_s in (22.5, 23, 23.5):
        stage.beat(until_s, {rank: dict(IN_41) for rank in range(3)})
        assert stage.frame().stall.kind == "transport"
    stage.beat(31, {rank: dict(IN_41) for rank in range(3)})
    assert stage.frame().stall.ranks == (3,)
    assert [text for text in stage.said("stall") if "missing" in text] == [
        "stall: rank 3 is missing: it does not answer"
    ]


def test_whose_heartbeat_comes_first_when_the_ranks_go_on_is_not_what_the_others_lack(stage) -> None:
    """Nothing was completed for a while, as the network was cut; then all go on together."""
    everyone = {rank: dict(IN_41) for rank in range(4)}
    stage.beat(17, everyone)
    for rank in everyone:
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(83),))
    stage.beat(19, everyone)
    for first in (0, 1):
        stage.after_s += 0.25
        t_us = (stage.now_ns - START_NS) // 1000
        stage.feed(stage.world.progress(first, t_us=t_us, step=41, bucket=4, sequence=84))
        assert stage.frame().stall.kind == "asking"
        assert "stall: rank" not in "".join(stage.said("stall"))
    further = {rank: {"step": 41, "bucket": 4, "sequence": 84} for rank in range(3)}
    stage.beat(20, {**further, 3: dict(IN_41)})  # it has said since that it is still there
    assert stage.frame().stall.ranks == (3,)


def test_steps_that_waited_behind_a_late_hello_are_no_stall(make_world) -> None:
    """A new collector without a recording: every rank says HELLO now, and sends what it has kept."""
    world = make_world(2)
    late_ns = 60 * NS
    sent = [*world.introduce(), *world.steps(200)]
    reducer = Reducer()
    reducer.feed(world.run())
    for received in sent:
        message = received.message
        if isinstance(message, Hello):
            message = replace(message, monotonic_ns=message.monotonic_ns + late_ns)
        reducer.feed(received._replace(message=message, t_ns=START_NS + late_ns))
        assert reducer.stalled_since(START_NS + late_ns) is None


def kernel(stage: Stage, rank: int, waits_in: str, *workers: str) -> None:
    """What the kernel shows of a rank's process and of its DataLoader workers."""
    views = {"": waits_in} | {f"worker{i}_": worker for i, worker in enumerate(workers)}
    fields: dict[str, object] = {}
    for at, (prefix, function) in enumerate(views.items()):
        view = {"pid": 7000 + at, "state": "S", "waits_in": function, "cpu_s": 1.5, "age_s": 60.0}
        fields |= {prefix + name: value for name, value in view.items()}
    stage.tell("kernel", rank, **fields)


def test_a_c_call_that_holds_the_interpreter_lock_is_said_with_what_the_kernel_shows(stage) -> None:
    alive = {rank: dict(IN_41) for rank in (0, 2, 3)}
    stage.beat(17, alive, there=[1])
    kernel(stage, 1, "hrtimer_nanosleep")
    for rank in alive:
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(83),))
    found = stage.frame()
    said = "rank 1 does not answer: a C call holds the interpreter lock"
    assert found.stall.sentence == f"{said} (it sleeps in hrtimer_nanosleep, 3% CPU)"
    assert verdict(found).second() == "rank 1 is in hrtimer_nanosleep of the kernel"
    stage.tell("worker_call", 1, pid=found.stall.positions[0].pid, native="nanosleep < sleep (libc.so.6)")
    assert stage.frame().stall.sentence == f"{found.stall.sentence}: nanosleep < sleep (libc.so.6)"
    first = found.stall.positions[0]
    assert (first.rank, first.process, first.at_s) == (1, "silent", None)
    assert [(trace.thread, trace.calls[0].function) for trace in first.traces] == [
        ("kernel", "hrtimer_nanosleep")
    ]


def test_a_rank_that_does_not_answer_is_where_it_was_read_to_be_from_outside(stage) -> None:
    one_missing(stage)
    kernel(stage, 1, "do_sys_poll")
    pid = stage.frame().stall.positions[0].pid
    stage.tell("worker_call", 1, pid=pid, call="train.py:88 tokenize")
    stall = stage.frame().stall
    assert (stall.positions[0].user_call.line, stall.positions[0].at_s) == (88, None)
    assert f"rank 1, node0, pid {pid}, is in train.py:88 tokenize" in stall.detail
    stage.answer(1, users("next_batch"), groups={"0": 82})
    assert stage.frame().stall.positions[0].user_call.function == "next_batch", "its own answer is newer"


def test_a_rank_that_waits_for_its_dataloader_names_the_worker_that_does_not_poll_its_queue(stage) -> None:
    one_missing(stage)
    torch_data = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
    _, main = users("next_batch")
    loader = StackFrame(torch_data, 1200, "_try_get_data", "")
    stage.answer(1, (main._replace(frames=(loader, *main.frames)),), groups={"0": 82})
    kernel(stage, 1, "do_sys_poll", "do_sys_poll", "nfs_wait_bit_killable")
    stall = stage.frame().stall
    worker = "it waits for DataLoader worker pid 7002, which sleeps in nfs_wait_bit_killable"
    assert worker in stall.detail
    for unread, words in {
        "missing": "pip install 'ddptop[stacks]' (py-spy) shows where in its code",
        "denied": "py-spy may not read where in its code: it needs ptrace (docker --cap-add=SYS_PTRACE)",
    }.items():
        stage.tell("worker_call", 1, pid=7002, unread=unread)
        assert f"{worker}; {words}" in stage.frame().stall.detail
        action = next_action(stage.frame())
        assert action.startswith("py-spy dump --pid 7002 on node0")
        assert ("pip install" in action) == (unread == "missing")
    stage.tell("worker_call", 1, pid=7002, call="data.py:41 decode")
    found = stage.frame()
    name = "DataLoader worker pid 7002 in data.py:41 decode"
    assert f"it waits for {name}, which sleeps in nfs_wait_bit_killable" in found.stall.detail
    assert verdict(found).second().startswith(f"rank 1 waits for {name}, in train.py:")
    assert found.alerts[0].evidence["waits_for"] == name
    assert snapshot(found)["stall"]["positions"][0]["waits_for"].startswith(name)  # type: ignore[index]
    assert next_action(found).startswith(f"Find out what holds {name}")
    page = " ".join(str(line).strip() for line in draw_brief(RenderContext(found), 80, 3))
    assert f"it waits for {name}, which sleeps" in page
    assert [trace.thread for trace in stall.positions[0].traces] == [
        "MainThread", "worker process 7001", "worker process 7002",
    ]  # fmt: skip


def test_a_worker_that_is_stopped_is_named_as_such_wherever_it_was_in_its_code(stage) -> None:
    one_missing(stage)
    torch_data = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
    _, main = users("next_batch")
    loader = StackFrame(torch_data, 1200, "_try_get_data", "")
    stage.answer(1, (main._replace(frames=(loader, *main.frames)),), groups={"0": 82})
    workers = {"worker0_pid": 7001, "worker0_state": "S", "worker0_waits_in": "futex_wait"}
    workers |= {"worker1_pid": 7002, "worker1_state": "T", "worker1_waits_in": "do_signal_stop"}
    stage.tell("kernel", 1, pid=7000, state="S", waits_in="do_sys_poll", **workers)
    stage.tell("worker_call", 1, pid=7002, call="data.py:41 decode")
    found = stage.frame()
    assert (
        verdict(found)
        .second()
        .startswith("rank 1 waits for DataLoader worker pid 7002, stopped (SIGSTOP), in train.py:")
    )
    assert next_action(found) == "kill -CONT 7002 on node0: a worker of rank 1 is stopped."


def test_a_rank_that_has_not_reached_init_process_group_is_named_though_none_has_reported(make_world) -> None:
    world = make_world(4)
    reducer = Reducer()
    reducer.feed(world.run())

    def late(after_s: float) -> None:
        now_ns = START_NS + int(after_s * NS)
        view = {"pid": 4711, "state": "S", "waits_in": "hrtimer_nanosleep", "cpu_s": 2.0, "age_s": 60.0}
        fields = {"world": 4, "late_s": after_s, "torch": True, "waiting": "0 1 3", **view}
        reducer.feed(Received(now_ns, -1, 0, 0, Event("not_initialized", now_ns, 2, -1, fields)))

    late(20)
    assert reducer.frame(START_NS + 20 * NS).stall is None, "imports may take so long"
    late(40)
    found = reducer.frame(START_NS + 41 * NS)
    said = "rank 2 has not reached init_process_group: it sleeps in hrtimer_nanosleep, 2.0 s of CPU"
    assert verdict(found).line() == f"■ STALLED 41 s · {said}, torch imported"
    assert (found.stall.kind, found.stall.ranks, found.stall.waiting) == ("missing", (2,), (0, 1, 3))
    assert (found.stall.positions[0].pid, found.stall.positions[0].process) == (4711, "alive")
    assert len(encode_frame(found)) > 0 and snapshot(found)["run"]["state"] == "stalled"
    assert reducer.frame(START_NS + 60 * NS).stall is None, "not late any more"
    feed_together(reducer, [*world.introduce(), *world.steps(5)])
    assert reducer.frame(START_NS + 41 * NS).group.step == 4


BARRIER = ALL_REDUCE._replace(function="barrier")


def checkpoint(stage: Stage, step: int, *, until_s: float) -> None:
    """Rank 0 saves, the others wait for it in a barrier that `main` calls, up to `until_s`."""
    ranks = {rank: {"step": step, "bucket": -1, "sequence": 2 * step + (rank > 0)} for rank in range(4)}
    stage.beat(until_s, {rank: {**at, "phase": Phase.OTHER} for rank, at in ranks.items()})
    stage.answer(0, users("save_checkpoint"), groups={"0": 2 * step})
    for rank in (1, 2, 3):
        waiting = (Stack("MainThread", True, (BARRIER, MAIN)),)
        operations = (op(2 * step + 1, "barrier", ""),)
        stage.answer(rank, waiting, groups={"0": 2 * step + 1}, operations=operations)
    stage.beat(until_s + 3, {rank: {**at, "phase": Phase.OTHER} for rank, at in ranks.items()})


def test_a_checkpoint_is_called_by_its_function_and_is_a_stall_only_past_its_usual_length(stage) -> None:
    checkpoint(stage, 41, until_s=27)  # 30 s
    said = "rank 0 is in save_checkpoint, 3 ranks wait in barrier"
    assert stage.frame().stall.sentence == said
    checkpoint(stage, 42, until_s=30 + 13)  # it is asked before it would count as a stall
    for after_s, stalled in ((50, False), (80, False), (100, True)):
        checkpoint(stage, 42, until_s=after_s)
        found = stage.frame().stall
        assert (found is not None and found.sentence == said) == stalled, after_s
    assert stage.said("stall")[-1] == f"stall: {said}"
