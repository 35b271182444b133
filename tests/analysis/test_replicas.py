"""Checksums of parameters: who differs, since when, and when nobody can be blamed."""

from __future__ import annotations

from itertools import permutations

import pytest

from ddptop.analysis.health.replicas import EQUAL_UPDATES
from ddptop.frames.verdict import verdict
from ddptop.protocol.messages import Card, Membership, Replica
from tests.analysis.stalling import Stage


@pytest.fixture
def stage(make_world):
    return Stage(make_world(4))


def check(stage: Stage, step: int, changed=(), *, first=0, ranks=range(4), model=0, pieces=8) -> None:
    """All ranks tell four pieces; `changed` holds (rank, piece) with another value."""
    for rank in ranks:
        places = [(first + i) % pieces for i in range(4)]
        values = tuple(100 * place + step + (rank + 1) * ((rank, place) in changed) for place in places)
        stage.say(rank, Replica(step, model, pieces, first, values))


def drift(stage: Stage):
    return next((alert for alert in stage.frame().alerts if alert.kind == "replica_drift"), None)


def test_equal_replicas_raise_nothing(stage) -> None:
    for step in range(16, 400, 16):
        check(stage, step, first=step // 4 % 8)
    assert drift(stage) is None
    assert [h.kind for h in stage.frame().events] == ["joined"]


def test_the_rank_that_differs_is_named_with_both_steps(stage) -> None:
    for step, first in ((48, 0), (56, 4), (64, 0), (72, 4)):
        check(stage, step, first=first)
    nudged = {(2, 1)}
    check(stage, 80, nudged)
    check(stage, 88, nudged, first=4)
    check(stage, 96, nudged)
    alert = drift(stage)
    assert alert.message == "replica of rank 2 differs since step 80 (equal at step 64)"
    assert (alert.severity, alert.rank, alert.step) == ("critical", 2, 80)
    assert (alert.evidence["equal_step"], alert.evidence["pieces"]) == (64, 1)
    assert stage.said("replica_drift") == [alert.message]
    assert verdict(stage.frame()).line() == f"■ {alert.message}"


def test_it_lasts_until_that_piece_is_equal_again(stage) -> None:
    check(stage, 64)
    check(stage, 80, {(2, 1)})
    check(stage, 88, first=4)
    assert drift(stage) is not None, "the other pieces prove nothing"
    check(stage, 96)
    assert drift(stage) is None
    assert stage.said("replica_drift_end") == ["the replicas agree again at step 96"]


def test_a_missing_broadcast_differs_from_the_first_check_on(stage) -> None:
    check(stage, 0, {(3, place) for place in range(8)})
    assert drift(stage).message == (
        "replica of rank 3 differs since the first check, at step 0: "
        "changed after DDP's constructor, or init_sync=False?"
    )


def test_every_rank_has_its_own(stage) -> None:
    check(stage, 0, {(rank, place) for rank in range(4) for place in range(8)})
    assert drift(stage).message == (
        "replicas of 4 ranks differ since the first check, at step 0: "
        "changed after DDP's constructor, or init_sync=False?; which is right is unknown"
    )
    assert drift(stage).rank is None


def test_of_two_ranks_both_are_named_and_none_is_blamed(make_world) -> None:
    stage = Stage(make_world(2))
    check(stage, 64, ranks=range(2))
    check(stage, 80, {(1, 0)}, ranks=range(2))
    assert drift(stage).message == (
        "replicas of 2 ranks differ since step 80 (equal at step 64); which is right is unknown"
    )
    assert (drift(stage).rank, drift(stage).evidence["majority"]) == (None, False)


def test_a_tie_blames_nobody(stage) -> None:
    stage.say(0, Replica(80, 0, 1, 0, (1,)))
    stage.say(1, Replica(80, 0, 1, 0, (1,)))
    stage.say(2, Replica(80, 0, 1, 0, (2,)))
    stage.say(3, Replica(80, 0, 1, 0, (2,)))
    assert drift(stage).evidence["ranks"] == 4


def test_the_order_of_ranks_changes_nothing(make_world) -> None:
    messages = set()
    for order in permutations(range(3)):
        stage = Stage(make_world(3), steps=1)
        check(stage, 64, ranks=order)
        check(stage, 80, {(1, 3)}, ranks=order)
        messages.add(drift(stage).message)
    assert messages == {"replica of rank 1 differs since step 80 (equal at step 64)"}


def test_nothing_is_said_before_all_living_ranks_have_told(stage) -> None:
    check(stage, 80, {(2, 0)}, ranks=(0, 1, 2))
    assert drift(stage) is None
    check(stage, 80, ranks=(3,))
    assert drift(stage) is not None


def test_ranks_that_are_gone_are_not_waited_for(stage) -> None:
    stage.feed(stage.world.bye(3))
    check(stage, 80, {(2, 0)}, ranks=(0, 1, 2))
    assert drift(stage).rank == 2


def test_a_rank_that_never_answers_does_not_hide_the_others(stage) -> None:
    for step in range(0, 160, 16):
        check(stage, step, {(2, 0)} if step >= 16 else (), ranks=(0, 1, 2))
    assert drift(stage).message.startswith("replica of rank 2 differs since step 16 (equal at step 0)")


def test_a_check_that_waited_in_vain_does_not_undo_a_newer_one(stage) -> None:
    check(stage, 0, ranks=(0, 1, 2))
    for step in range(16, 160, 16):
        check(stage, step, {(2, 0)} if step >= 32 else ())
    check(stage, 160, {(2, 0)}, ranks=(0,))
    for step in range(176, 400, 16):
        check(stage, step, {(2, 0)}, ranks=(0, 1, 2))
    assert drift(stage).message == "replica of rank 2 differs since step 32 (equal at step 16)"
    assert stage.said("replica_drift_end") == []


def test_ranks_that_have_not_introduced_themselves_yet_are_waited_for(make_world) -> None:
    stage = Stage(make_world(2), steps=0)
    again = make_world(2, session_base=200, incarnation=1)
    stage.feed(again.hello(0))
    stage.feed(again.received(0, Replica(0, 0, 1, 0, (1,))))
    stage.feed(again.hello(1))
    stage.feed(again.received(1, Replica(0, 0, 1, 0, (2,))))
    assert drift(stage).evidence["since_step"] == 0


def test_ranks_that_tell_fewer_pieces_do_not_differ(stage) -> None:
    for rank in range(4):
        stage.say(rank, Replica(16, 0, 4, 2, (7, 8, 9)[: 1 + rank % 3]))
    assert drift(stage) is None
    for rank in range(4):
        stage.say(rank, Replica(32, 0, 4, 2, (6, 8 - rank // 3)[: 1 + rank % 3]))
    assert drift(stage) is None
    values = {0: (5, 6), 1: (5, 6), 2: (5,), 3: (5, 0)}
    for rank in range(4):
        stage.say(rank, Replica(48, 0, 4, 2, values[rank]))
    assert drift(stage).message == (
        "replica of rank 3 differs since the first check, at step 48: "
        "changed after DDP's constructor, or init_sync=False?"
    )


def test_equality_among_some_ranks_says_nothing_of_the_others(stage) -> None:
    """Rank 2 checks every fourth time only: what the others agree on in between is not its own."""
    check(stage, 0)
    for step in (16, 32, 48):
        check(stage, step, {(2, 0)}, ranks=(0, 1, 3))
    check(stage, 64, {(2, 0)})
    assert drift(stage).message == "replica of rank 2 differs since step 64 (equal at step 0)"
    check(stage, 80, ranks=(0, 1, 3))
    check(stage, 128, {(2, 0)})
    assert drift(stage).step == 64
    assert stage.said("replica_drift_end") == []


def test_more_answers_than_are_kept_are_still_a_drift(make_world) -> None:
    stage = Stage(make_world(200), steps=1)
    for rank in range(200):
        stage.say(rank, Replica(16, 0, 1, 0, (rank,)))
    assert (drift(stage).evidence["ranks"], drift(stage).evidence["majority"]) == (200, False)


def test_only_ranks_that_share_a_model_are_compared(stage) -> None:
    for rank in range(4):
        stage.say(
            rank, Membership(0, "left" if rank < 2 else "right", "gloo", (0, 1) if rank < 2 else (2, 3))
        )
    for rank in range(4):
        stage.say(rank, Replica(16, 0, 1, 0, (rank // 2,)))
    assert drift(stage) is None
    for rank in range(4):
        stage.say(rank, Replica(32, 0, 1, 0, (max(rank, 2),)))
    assert drift(stage).message.startswith(
        "replicas of ranks 2 and 3 differ since step 32 (equal at step 16)"
    )


def test_a_restart_begins_anew(make_world) -> None:
    stage = Stage(make_world(4))
    check(stage, 80, {(2, 0)})
    again = make_world(4, session_base=200, incarnation=1, now_us=stage.world.now_us)
    stage.feed(*again.introduce())
    assert drift(stage) is None


def test_memory_is_bounded_whatever_the_ranks_send(make_world) -> None:
    stage = Stage(make_world(4), steps=1)
    for step in range(500):
        check(stage, step, ranks=(0,))
    assert len(next(iter(stage.reducer.state.replicas.open_checks.values()))) <= 8


def train_without_ddp(stage: Stage) -> None:
    for rank in range(4):
        stage.say(rank, Card({"training": "collectives"}))


def test_without_ddp_ranks_are_replicas_once_their_updates_were_equal_several_times(stage) -> None:
    train_without_ddp(stage)
    for step in range(0, 16 * (EQUAL_UPDATES + 1), 16):
        check(stage, step)
    check(stage, 96, {(2, 1)})
    alert = drift(stage)
    assert alert.message == "replica of rank 2 differs since step 96 (equal at step 64)"


@pytest.mark.parametrize("differing", [range(1, 9), [1, 2, 3, 5, 6, 7], [3, 4, 7, 8]])
def test_without_ddp_other_parts_of_a_model_and_averages_now_and_then_are_no_drift(stage, differing) -> None:
    train_without_ddp(stage)
    for number in range(9):
        changed = {(rank, place) for rank in range(4) for place in range(4)} if number in differing else ()
        check(stage, 16 * number, changed)
    assert drift(stage) is None


def test_without_ddp_parameters_that_never_change_are_no_replicas(stage) -> None:
    train_without_ddp(stage)
    for step in range(0, 160, 16):
        for rank in range(4):
            stage.say(rank, Replica(step, 0, 8, 0, (1, 2, 3, 4)))
    check(stage, 160, {(2, 1)})
    assert drift(stage) is None
