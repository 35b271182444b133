"""What a recording keeps of the steps before those that are read."""

from __future__ import annotations

from typing import Any

from ddptop.protocol.since_start import UNKNOWN, BadLoss, SinceStart, pack_since_start, unpack_since_start

LOSS = BadLoss(rank=1, step=48, since_ns=7, finite_step=UNKNOWN, finite_ns=UNKNOWN, last_finite_step=32)


def packed_with(*losses: object) -> list[Any]:
    known = SinceStart(0, 60, 9, (), (), (LOSS,), None, None, (), (), (), ())
    packed: list[Any] = pack_since_start(known)
    packed[5] = losses
    return packed


def test_the_last_finite_step_of_a_bad_loss_is_kept() -> None:
    assert unpack_since_start(packed_with(LOSS)).bad_losses == (LOSS,)


def test_earlier_versions_did_not_record_the_last_finite_step() -> None:
    known = unpack_since_start(packed_with(LOSS[:5]))
    assert known.bad_losses == (LOSS._replace(last_finite_step=UNKNOWN),)
