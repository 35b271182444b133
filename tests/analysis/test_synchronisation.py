"""Gradients that were not all-reduced, by the ranks' reports: who, since when, why, and what is no fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ddptop.frames.remedies import next_action
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.messages import FINISHED, Bucket, Bye, Event, Layout, Membership, Replica
from tests.analysis.stalling import Stage

EVERY = (0, 1, 2)


@pytest.fixture
def stage(make_world):
    return Stage(make_world(3))


def unreduced(stage: Stage, step: int, count: int, sums: Mapping[int, int | None], **changes: Any) -> None:
    """The ranks of `sums` report a step with gradients that were not all-reduced; values: their checksums."""
    for rank, checksum in sums.items():
        fields = {
            "model": 0,
            "name": "Net",
            "why": "no_sync",
            "count": count,
            "checksum": checksum,
            "waits": 0,
            "averaged": False,
            **changes,
        }
        stage.say(rank, Event("unreduced", stage.now_ns, rank, step, fields))


def equal(value: int | None = 7) -> dict[int, int | None]:
    return dict.fromkeys(EVERY, value)


DIFFERENT: dict[int, int | None] = {0: 1, 1: 2, 2: 3}


def skipped(stage: Stage, step: int, ranks: Sequence[int], *, forwards: int = 1, prepared: int = 1) -> None:
    for rank in ranks:
        fields: Any = {"model": 0, "name": "Net", "forwards": forwards, "prepared": prepared}
        stage.say(rank, Event("skipped_backward", stage.now_ns, rank, step, fields))


def steps(stage: Stage, count: int = 1) -> None:
    stage.feed(*stage.world.steps(count))


def alerts(stage: Stage) -> dict[str, Any]:
    return {alert.kind: alert for alert in stage.frame().alerts}


@pytest.mark.parametrize(
    ("why", "reason", "action"),
    [
        ("bypass", "its forward bypasses DDP", "ddp(x), not ddp.module(x)"),
        ("no_sync", "backward runs under no_sync() before optimizer.step()", "outside no_sync()"),
        ("again", "a second backward after one DDP forward is not all-reduced", "call backward() once"),
    ],
)
def test_it_is_said_at_the_second_step_with_the_model_and_why(
    stage, why: str, reason: str, action: str
) -> None:
    unreduced(stage, 40, 1, equal(), why=why)
    assert "not_synchronised" not in alerts(stage), "the script may yet average the parameters"
    unreduced(stage, 41, 2, DIFFERENT, why=why)
    alert = alerts(stage)["not_synchronised"]
    assert alert.message == f"gradients of Net are not synchronised: {reason} since step 40 (3 ranks)"
    assert (alert.severity, alert.rank, alert.step) == ("critical", None, 40)
    assert alert.evidence["differ_step"] == 41
    assert stage.said("not_synchronised") == [alert.message]
    shown = verdict(stage.frame())
    assert (shown.kind, shown.line()) == ("not_synchronised", f"■ {alert.message}")
    assert shown.detail == "each rank trains a model of its own: their parameters differ since step 41"
    assert action in next_action(stage.frame())
    assert snapshot(stage.frame())["verdict"]["kind"] == "not_synchronised"


def test_gradients_that_the_script_reduces_itself_are_no_fault(stage) -> None:
    for count in range(1, 9):
        unreduced(stage, 39 + count, count, equal(count), waits=12)
    steps(stage, 10)
    assert not alerts(stage)
    assert not stage.said("not_synchronised")


def test_parameters_that_the_script_averages_every_few_steps_end_the_alert_for_good(stage) -> None:
    unreduced(stage, 40, 1, equal())
    for count in range(2, 5):
        unreduced(stage, 39 + count, count, DIFFERENT, waits=4)
    assert "not_synchronised" in alerts(stage)
    unreduced(stage, 44, 5, equal(9), waits=4)
    assert "not_synchronised" not in alerts(stage)
    assert stage.said("averaged") == [
        "the replicas are equal again in step 44: the script averages them itself"
    ]
    unreduced(stage, 45, 6, DIFFERENT, waits=4)
    assert "not_synchronised" not in alerts(stage)


def test_torchs_own_averager_is_never_a_fault(stage) -> None:
    unreduced(stage, 40, 1, equal(), averaged=True)
    unreduced(stage, 41, 2, DIFFERENT, averaged=True)
    assert not alerts(stage)
    assert stage.said("averaged") == ["replicas are averaged now and then (local SGD), gradients are not"]


def test_without_checksums_three_steps_without_any_collective_are_needed(stage) -> None:
    unreduced(stage, 40, 1, equal(None))
    unreduced(stage, 41, 2, equal(None))
    assert not alerts(stage)
    unreduced(stage, 42, 3, equal(None))
    assert alerts(stage)["not_synchronised"].evidence["differ_step"] is None
    assert verdict(stage.frame()).detail == "each rank trains a model of its own"


def test_without_checksums_collectives_of_the_script_may_be_its_all_reduces(stage) -> None:
    for count in range(1, 9):
        unreduced(stage, 39 + count, count, equal(None), waits=1)
    assert not alerts(stage)


def test_one_rank_whose_gradients_the_others_all_reduced_is_named(stage) -> None:
    unreduced(stage, 40, 1, {1: 5})
    assert not alerts(stage), "the others may yet say the same"
    steps(stage)
    alert = alerts(stage)["not_synchronised"]
    assert alert.rank == 1
    assert alert.message.endswith("since step 40 (rank 1)")


def test_ranks_that_report_only_now_and_then_are_not_taken_for_synchronised(stage) -> None:
    for count in range(1, 9):
        unreduced(stage, 31 + count, count, equal(count), waits=1)
    unreduced(stage, 40, 9, {1: 5}, waits=1)
    steps(stage)
    assert not alerts(stage)


def test_ranks_of_another_group_are_not_waited_for(stage) -> None:
    for rank in (0, 1):
        stage.say(rank, Membership(1, "pair", "gloo", (0, 1)))
    unreduced(stage, 40, 1, {0: 1, 1: 1}, model=1)
    unreduced(stage, 41, 2, {0: 1, 1: 2}, model=1)
    message = alerts(stage)["not_synchronised"].message
    assert message == (
        "gradients of Net (DDP model 1) are not synchronised: backward runs under no_sync() before "
        "optimizer.step() since step 40 (ranks 0 and 1)"
    )


def test_it_is_the_cause_of_replicas_that_differ_from_the_first_step_on(stage) -> None:
    unreduced(stage, 40, 1, equal())
    for rank in EVERY:
        stage.say(rank, Replica(40, 0, 4, 0, (rank, rank)))
    drift = alerts(stage)["replica_drift"].message
    assert drift == (
        "replicas of 3 ranks differ since the first check, at step 40: gradients were not all-reduced"
    )
    assert stage.said("replica_drift") == [drift]


def test_replicas_that_differ_although_the_script_reduces_gradients_itself_have_another_cause(stage) -> None:
    for count in (1, 2, 3):
        unreduced(stage, 39 + count, count, equal(count), waits=12)
    for rank in EVERY:
        stage.say(rank, Replica(48, 0, 4, 0, (rank, rank)))
    assert "all-reduced" not in alerts(stage)["replica_drift"].message


def test_a_report_that_is_not_right_is_ignored(stage) -> None:
    for changes in ({"why": "sunspots"}, {"name": 5}, {"waits": "many"}):
        unreduced(stage, 40, 1, equal(None), **changes)
        unreduced(stage, 41, 0, equal(None), **changes)
    unreduced(stage, -1, 3, equal(None))
    steps(stage, 3)
    assert not alerts(stage)


def test_what_some_ranks_never_report_is_bounded(stage) -> None:
    for step in range(40, 400):
        unreduced(stage, step, 1, {1: 5})
        skipped(stage, step, [1])
    steps(stage)
    assert stage.frame() is not None


def test_a_skipped_backward_is_said_with_rank_and_step_and_what_follows(stage) -> None:
    skipped(stage, 40, [1])
    assert not alerts(stage), "the others may yet do the same"
    steps(stage)
    alert = alerts(stage)["skipped_backward"]
    assert alert.message == (
        "rank 1 ran forward without backward in step 40 and is a batch ahead since then: "
        "at the end the other ranks may wait for a last backward"
    )
    assert (alert.severity, alert.rank, alert.step) == ("warning", 1, 40)
    assert stage.said("skipped_backward") == [alert.message]
    assert verdict(stage.frame()).kind == "skipped_backward"
    assert "Skip a batch on all ranks or on none" in next_action(stage.frame())


def test_a_report_that_comes_after_the_others_have_ended_is_said(stage) -> None:
    messages = [*stage.world.steps(1)]
    for message in (m for m in messages if m.rank != 1):
        stage.feed(message)
    for rank in (0, 2):
        stage.say(rank, Bye(stage.now_ns, FINISHED))
    skipped(stage, 39, [1])
    for message in (m for m in messages if m.rank == 1):
        stage.feed(message)
    (said,) = stage.said("skipped_backward")
    assert said.startswith("rank 1 ran forward without backward in step 39 ")


def test_a_batch_that_all_ranks_skip_is_nothing(stage) -> None:
    skipped(stage, 40, EVERY)
    steps(stage)
    assert not alerts(stage)
    assert not stage.said("skipped_backward")


def test_once_all_ranks_have_skipped_as_many_none_is_ahead(stage) -> None:
    skipped(stage, 40, [1])
    steps(stage, 2)
    skipped(stage, 42, [0, 2])
    steps(stage)
    assert "skipped_backward" not in alerts(stage)
    assert stage.said("skipped_backward_end") == [
        "all ranks have skipped as many backwards since step 42: none is ahead any more"
    ]


def test_a_skipped_micro_step_makes_no_rank_ahead(stage) -> None:
    skipped(stage, 40, [1], prepared=0)
    steps(stage)
    assert not alerts(stage)
    assert stage.said("skipped_backward") == [
        "rank 1 ran forward without backward under no_sync() in step 40: that batch is left out"
    ]


def test_many_forwards_of_some_ranks_are_an_evaluation(stage) -> None:
    skipped(stage, 40, [0], forwards=20, prepared=20)
    steps(stage)
    assert not alerts(stage)
    assert stage.said("skipped_backward") == [
        "rank 0 ran forwards without backward in step 40: an evaluation without torch.no_grad()?"
    ]


def test_replicas_differ_with_a_hook_of_the_users_own_which_is_named(stage) -> None:
    bucket = Bucket(0, 0, 8, 8, 1, "float32", "gossip")
    for rank in EVERY:
        stage.say(rank, Layout(9, (bucket,)))
        stage.say(rank, Replica(40, 0, 4, 0, (rank, rank)))
    alert = alerts(stage)["replica_drift"]
    assert alert.severity == "warning"
    assert alert.message == (
        "replicas of 3 ranks differ since the first check, at step 40: "
        "gradients go through the communication hook gossip"
    )
    assert verdict(stage.frame()).line() == f"▲ {alert.message}"
    assert "have the hook return the same gradients" in next_action(stage.frame())


def test_replicas_that_the_script_averages_do_not_drift(stage) -> None:
    unreduced(stage, 40, 1, equal(), averaged=True)
    for rank in EVERY:
        stage.say(rank, Replica(40, 0, 4, 0, (rank, rank)))
    assert not alerts(stage)


def test_a_restart_forgets_it(stage, make_world) -> None:
    unreduced(stage, 40, 1, equal())
    unreduced(stage, 41, 2, DIFFERENT)
    skipped(stage, 40, [1])
    steps(stage)
    assert {"not_synchronised", "skipped_backward"} <= {*alerts(stage)}
    again = make_world(3, session_base=200, incarnation=1, now_us=stage.world.now_us)
    stage.feed(*again.introduce(), *again.steps(3))
    assert not {"not_synchronised", "skipped_backward"} & {*alerts(stage)}
