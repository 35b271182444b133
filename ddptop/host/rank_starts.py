"""Which ranks of this host have not reached `init_process_group`, while others wait there for them.

Before its first process group a rank reports nothing: it leaves an empty file in the run's folder when it
makes that group. The processes of ranks are the launcher's children with RANK in their environment.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ddptop.host.kernel_view import KernelView, children_of, kernel_view
from ddptop.host.start_marks import INITIALIZES, MET
from ddptop.protocol.limits import MAX_SHOWN_WORLD

CHECK_S = 5.0
"""Least lateness that is reported, and the interval of reports. Far below what counts as a stall."""


def count_initializing_ranks(directory: Path) -> int:
    """Number of ranks of this host that have come to their first process group, by their marks."""
    return len(_list_marks(directory, INITIALIZES))


class MeetingRanks(NamedTuple):
    """Ranks of this host that are in `init_process_group` after an elastic restart."""

    ranks: tuple[int, ...]
    world: int
    restart: int
    """Number of the restart."""
    for_s: float
    """Since the last of them has come there."""


class LateRank(NamedTuple):
    """A rank that others wait for in `init_process_group`."""

    rank: int
    world: int
    late_s: float
    """Since the first of the others is there."""
    waiting: tuple[int, ...]
    """The ranks of this host that are there."""
    torch: bool
    """It has loaded torch."""
    view: KernelView


class _Place(NamedTuple):
    rank: int
    world: int
    restart: int


class RankStarts:
    """Compares the marks with the launcher's children."""

    def __init__(self, directory: Path, run_id: str) -> None:
        self._directory = directory
        self._run_id = run_id
        self._launcher = os.getppid()
        self._complete: set[int] = set()
        """Marks with which no rank was missing."""
        self._next_s = self._next_meeting_s = 0.0

    def find_meeting(self) -> MeetingRanks | None:
        """The ranks that have been in `init_process_group` for 5 s or more after a restart, every 5 s; to be
        called once a second. None: there are none."""
        if time.monotonic() < self._next_meeting_s:
            return None
        self._next_meeting_s = time.monotonic() + CHECK_S
        met = _list_marks(self._directory, MET)
        marks = {
            pid: at_s for pid, at_s in _list_marks(self._directory, INITIALIZES).items() if pid not in met
        }
        children = children_of(self._launcher) if marks else ()
        # Only children of the launcher: others leave marks as well, such as ranks of a training that a rank
        # starts.
        places = ((place, pid) for pid in children if pid in marks and (place := self._read_place(pid)))
        inside = [(place, marks[pid]) for place, pid in places if place.restart]
        # The last one that came: before it there was somebody to wait for.
        for_s = time.time() - max((at_s for _, at_s in inside), default=time.time())
        if for_s < CHECK_S:
            return None
        first = inside[0][0]
        return MeetingRanks(
            tuple(sorted(place.rank for place, _ in inside)), first.world, first.restart, for_s
        )

    def find_late(self) -> list[LateRank]:
        """The late ranks, every 5 s; to be called once a second."""
        if time.monotonic() < self._next_s:
            return []
        marks = _list_marks(self._directory, INITIALIZES)
        # The same marks as when nobody was missing: /proc need not be read again.
        if marks.keys() == self._complete:
            return []
        ranks = {pid: place for pid in children_of(self._launcher) if (place := self._read_place(pid))}
        missing = [pid for pid in ranks if pid not in marks]
        # The first that came: how long the others have waited, not how late the last one is.
        since_s = min((marks[pid] for pid in ranks if pid in marks), default=time.time())
        if not missing:
            self._complete = {*marks}
        late_s = time.time() - since_s
        if not missing or late_s < CHECK_S:
            return []
        self._next_s = time.monotonic() + CHECK_S
        waiting = tuple(sorted(place.rank for pid, place in ranks.items() if pid in marks))
        views = ((ranks[pid], kernel_view(pid), _has_torch(pid)) for pid in missing)
        return [
            LateRank(place.rank, place.world, late_s, waiting, torch, view)
            for place, view, torch in views
            if view is not None
        ]

    def _read_place(self, pid: int) -> _Place | None:
        """Rank, world and restart of a process of this run; None of others."""
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            return None
        variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        rank, world = (variables.get(name, "") for name in ("RANK", "WORLD_SIZE"))
        if variables.get("DDPTOP_RUN_ID") != self._run_id or not (rank.isdecimal() and world.isdecimal()):
            return None
        if not int(rank) < int(world) <= MAX_SHOWN_WORLD:
            return None
        # As a rank counts its restarts (`training.launcher_variables.restart_number`).
        counts = (variables.get(name, "") for name in ("TORCHELASTIC_RESTART_COUNT", "DDPTOP_RENDEZVOUS"))
        return _Place(int(rank), int(world), max(int(text) if text.isdecimal() else 0 for text in counts))


def _list_marks(directory: Path, prefix: str) -> dict[int, float]:
    """Process id and time of each mark."""
    marks = {}
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            number = entry.name.removeprefix(prefix)
            if number != entry.name and number.isdecimal():
                marks[int(number)] = entry.stat(follow_symlinks=False).st_mtime
    return marks


def _has_torch(pid: int) -> bool:
    try:
        return b"libtorch" in Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False
