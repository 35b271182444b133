"""What scripts log of their own accord, over all ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ddptop.frames.frame import LoggedScalar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.protocol.messages import Logged

MAX_NAMES = 64
"""Names that are followed: a script that makes a new one in every step must not fill the memory."""


def take(member: RankState, message: Logged) -> None:
    """Note the newest values of a rank."""
    for name, value in message.values.items():
        if name in member.logged or len(member.logged) < MAX_NAMES:
            number = isinstance(value, (int, float))
            member.logged[name] = float(value) if number else math.nan  # type: ignore[arg-type]


def logged(members: Sequence[RankState], focus: int | None) -> tuple[LoggedScalar, ...]:
    """One entry for every name that some rank logged."""
    names = sorted({name for member in members for name in member.logged})[:MAX_NAMES]
    return tuple(_scalar(name, members, focus) for name in names)


def _scalar(name: str, members: Sequence[RankState], focus: int | None) -> LoggedScalar:
    told = {rank: member.logged[name] for rank, member in enumerate(members) if name in member.logged}
    finite = {rank: value for rank, value in told.items() if math.isfinite(value)}
    own = finite.get(focus) if focus is not None else None
    if not finite:
        return LoggedScalar(name, len(told), None, None, None, None, None, own)
    low, high = min(finite, key=finite.__getitem__), max(finite, key=finite.__getitem__)
    mean = math.fsum(finite.values()) / len(finite)
    return LoggedScalar(name, len(told), mean, finite[low], finite[high], low, high, own)
