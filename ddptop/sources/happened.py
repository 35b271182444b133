"""What had happened by a moment of a recording, where only a part of what led there was read."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from ddptop.analysis.frames import Happening
from ddptop.analysis.happenings import KEPT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddptop.recording.past import Found


class Happened:
    """All that a recording's collector wrote down, in order of time. Not thread-safe."""

    def __init__(self) -> None:
        self._told: list[Happening] = []
        self._told_s = float("-inf")
        """The collector has told of everything up to here."""

    def add(self, found: Iterable[Found], started_s: float, until_s: float) -> None:
        """What was told up to `until_s`; `started_s`: when the run began. Seconds since 1970."""
        self._told += [Happening(started_s + one.at_s, *one[1:]) for one in found]
        self._told.sort(key=_when)
        self._told_s = until_s

    def by(self, now_s: float, own: Sequence[Happening]) -> tuple[Happening, ...]:
        """The last ones at `now_s`, oldest first; `own`: what a reducer found that began shortly before.

        Such a reducer finds anew what had begun long before, and nothing of what had ended: as far as the
        collector has told, that is what counts. Of what both know (messages that last: a rank joined) the
        reducer tells better: it may have seen more ranks do the same.
        """
        told = self._told[: bisect_right(self._told, now_s, key=_when)]
        written = {_key(one) for one in told}
        known = [one for one in own if one.unix_s > self._told_s or _key(one) in written]
        better = {_key(one) for one in known}
        return tuple(sorted([*known, *(one for one in told if _key(one) not in better)], key=_when)[-KEPT:])


def _when(happening: Happening) -> float:
    return happening.unix_s


def _key(happening: Happening) -> tuple[float, str]:
    return round(happening.unix_s, 3), happening.kind
