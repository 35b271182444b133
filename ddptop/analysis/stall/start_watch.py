"""How far each rank has come on the way to its first step, and since when it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.start import MILESTONES
from ddptop.protocol.messages import Phase, Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.rank_table import RankTable
    from ddptop.analysis.ranks import Meeting, NotInitialized, RankState
    from ddptop.frames.start import StartMilestone

NAMES = tuple(MILESTONES)
ORDER = {name: number for number, name in enumerate(NAMES)}
UNSEEN = -1

LATE_STALLS = 2
"""In multiples of `stall_s`, how late a rank may reach init_process_group: imports and first reads of files
take longer on some ranks."""

_MILESTONE_OF_PHASE: Mapping[Phase, StartMilestone] = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "backward",
}


class StartWatch:
    """When each rank was seen to come to its position, until all have finished a step. Looked at by the
    arrival of messages, so that a replay finds the same."""

    def __init__(self) -> None:
        self._positions: NDArray[np.int64] | None = None
        """(ranks, 2) of each its milestone and its collectives; None: there is nothing to watch."""
        self.since_ns: NDArray[np.int64] = np.zeros(0, np.int64)
        self.reached_ns: NDArray[np.int64] = np.zeros((0, len(NAMES)), np.int64)
        """(ranks, milestones) of when a rank was seen to have a milestone as its newest; UNSEEN: never."""
        self.has_milestones = False
        """Whether any rank has reported one: ranks of earlier versions report none."""
        self.not_initialized: dict[int, NotInitialized] = {}
        """Ranks that others wait for in `init_process_group`."""
        self.meeting: Meeting | None = None
        """The ranks that were last reported to be in `init_process_group` after a restart."""

    @property
    def positions(self) -> NDArray[np.int64] | None:
        """(ranks, 2) of each its milestone and the collectives that it has launched; None: all have
        finished a step, or the ranks report from their first DDP model on."""
        return self._positions

    def end(self) -> None:
        """All have finished a step, or report from their first DDP model on."""
        self._positions = None

    def look(self, ranks: Sequence[RankState], table: RankTable, now_ns: int) -> None:
        """Note the positions that the messages until `now_ns` show."""
        collectives = np.nan_to_num(table.newest_values(Progress, "sequence"), nan=-1.0)
        reached = [ORDER[milestone_of(rank)] for rank in ranks]
        positions = np.column_stack([np.array(reached, np.int64), collectives.astype(np.int64)])
        before, self._positions = self._positions, positions
        if before is None or before.shape != positions.shape:
            self.since_ns = np.full(len(positions), now_ns)
        else:
            self.since_ns = np.where((before != positions).any(axis=1), now_ns, self.since_ns)
        self._note_reached(positions[:, 0], now_ns)

    def _note_reached(self, newest: NDArray[np.int64], now_ns: int) -> None:
        if len(self.reached_ns) != len(newest):
            self.reached_ns = np.full((len(newest), len(NAMES)), UNSEEN)
        # A rank that has been started again has lost what came after its newest milestone.
        self.reached_ns[np.arange(len(NAMES)) > newest[:, None]] = UNSEEN
        first_seen = (np.arange(len(NAMES)) == newest[:, None]) & (self.reached_ns == UNSEEN)
        self.reached_ns[first_seen] = now_ns


def milestone_of(rank: RankState) -> StartMilestone:
    """The newest milestone of a rank."""
    if rank.hello is None:
        return ""
    names = [name for name in NAMES if name in rank.milestones]
    beat = rank.progress
    if not rank.before_recording and not rank.failed_early:
        if rank.step > 0:
            return "step"
        phase = None if beat is None else _MILESTONE_OF_PHASE.get(Phase(beat.phase))
        names += [phase] if phase is not None else []
        names += ["batch"] if beat is not None and beat.batch > 0 else []
        names += [] if names else ["model"]  # it reports from its first DDP model on
    return max(names, key=ORDER.__getitem__, default="torch")
