"""What ranks did in a long step that was left out, by their heartbeats in it.

Of such a step only the end is known. For a heartbeat in it, a rank reads its stack, which says the phase that
it is in, a collective, or neither. A rank that reads none, as where two optimizers end a step, only tells the
place behind the newest phase that it has seen: then the step stays not known. The heartbeat also has the
number of the newest collective that the rank has launched. A rank that is in backward or in a collective, and
has launched one that another rank has not, waits for that rank. What the step takes beyond the usual length
is one thing, if all heartbeats in it agree; else it stays not known. Where it began and ended within the step
is not known better than from one heartbeat to the next, 0.5 to 1 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.ledger.step_times import BETWEEN, STEP_CLASSES, WAITING
from ddptop.protocol.messages import STACK_READ_NS, Activity, Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.protocol.message_run import Readings

    Integers = NDArray[np.int64]

LEAST_WITNESSED_MS = 1000.0
"""Shorter steps have no heartbeat of their own: ranks send one in 0.5 to 1 s."""

END_STEPS = 2
"""What made a step long is over so many usual steps before its end."""

LEAST_MOST_BEATS, MOST_OF_RANK = 4096, 8
"""Heartbeats that are kept until their steps are complete, or so many of each rank where that is more."""

JOIN_BEATS = 1024
"""Heartbeats that wait until they are joined to the kept ones."""

RANK, AT_NS, PHASE, ACTIVITY, SEQUENCE, STEP = range(6)
"""Rows of heartbeats; the moment is of the rank's own clock."""

RECORDED_ROWS = SEQUENCE + 1
"""Rows in a recording: all but the step."""

_CLASSES: dict[int, int] = {
    Phase.OTHER: BETWEEN,
    Phase.DATA: STEP_CLASSES.index("data"),
    Phase.FORWARD: STEP_CLASSES.index("forward"),
    Phase.OPTIMIZER: STEP_CLASSES.index("optimizer"),
}
"""The class of what a rank does for itself in a phase. In backward it may also wait for others."""


class Witnessed(NamedTuple):
    """What the ranks did in a long step."""

    classes: Integers
    """(ranks,) indices in STEP_CLASSES."""
    last: int
    """The rank that all others waited for; -1: none waited."""


class Heartbeats:
    """Heartbeats of ranks whose step has lasted, until it is complete.

    Of those that tell the same of a rank in a step the first and the last are kept: a run may hang for hours.
    """

    def __init__(self) -> None:
        self._kept: Integers = np.zeros((STEP + 1, 0), np.int64)
        self._new: list[Integers] = []
        self._n_new = 0
        self._full_until = -1
        """Too many told of this step and those before it: what is left of them would not be all."""

    def columns(self) -> Integers:
        """(rows, n) those that are kept."""
        if self._new:
            self._kept = self._without_excess(_first_and_last(np.concatenate([self._kept, *self._new], 1)))
            self._new, self._n_new = [], 0
        return self._kept

    def put_back(self, recorded: Integers) -> None:
        """Begin with recorded ones, (RECORDED_ROWS, n)."""
        self.forget()
        self._kept = _first_and_last(np.concatenate([recorded, np.full((1, recorded.shape[1]), -1)]))

    def take(self, ranks: Integers, beats: Readings) -> None:
        """Take the heartbeats of these ranks that tell what their stack showed, or the place of a step that
        is seen."""
        at_ns, since_ns = beats.field("t_ns"), beats.field("since_ns")
        lasts = (since_ns > 0) & (at_ns - since_ns >= STACK_READ_NS) & (beats.field("sequence") >= 0)
        if lasts.any():
            values = (ranks, at_ns, *map(beats.field, ("phase", "activity", "sequence", "step")))
            lasting = np.stack([np.asarray(column, np.int64)[lasts] for column in values])
            self._new.append(lasting[:, lasting[STEP] > self._full_until])
            self._n_new += self._new[-1].shape[1]
            if self._n_new >= JOIN_BEATS:
                self.columns()

    def _without_excess(self, columns: Integers) -> Integers:
        """The newest steps; `columns`: in the order of the steps."""
        most = max(LEAST_MOST_BEATS, MOST_OF_RANK * len(np.unique(columns[RANK])))
        if columns.shape[1] > most:
            self._full_until = int(columns[STEP, -most - 1])
            columns = columns[:, columns[STEP] > self._full_until]
        return columns

    def forget(self) -> None:
        """Ranks restart."""
        self._kept = self._kept[:, :0]
        self._new, self._n_new, self._full_until = [], 0, -1

    def drop_until(self, end_ns: Integers) -> None:
        """Drop those of complete steps; `end_ns`: (ranks,) when the last one of each rank ended."""
        columns = self.columns()
        if not columns.shape[1]:
            return
        ranks = columns[RANK]
        is_known = ranks < len(end_ns)
        is_over = is_known & (columns[AT_NS] <= end_ns[np.where(is_known, ranks, 0)])
        self._kept = columns[:, ~is_over]

    def witness(self, begin_ns: Integers, end_ns: Integers, usual_ms: float) -> Witnessed | None:
        """What the ranks did in a step from `begin_ns` to `end_ns`, (ranks,) each by their own clocks; None:
        a rank has no heartbeat in it, or they do not agree. `usual_ms`: the length of usual steps. As much
        at the end is the rest of a step like these, and not looked at."""
        end_ns = end_ns - int(END_STEPS * usual_ms * 1e6)
        n_ranks = len(begin_ns)
        columns = self.columns()
        columns = columns[:, columns[RANK] < n_ranks]
        ranks, at_ns = columns[RANK], columns[AT_NS]
        columns = columns[:, (at_ns > begin_ns[ranks]) & (at_ns < end_ns[ranks])]
        ranks, _, phases, activities, sequences, _ = columns
        if len(np.unique(ranks)) < n_ranks:
            return None
        least = np.full(n_ranks, np.iinfo(np.int64).max)
        np.minimum.at(least, ranks, sequences)
        newest = np.zeros(n_ranks, np.int64)
        np.maximum.at(newest, ranks, sequences)
        behind = np.flatnonzero(newest == newest.min())
        is_ahead = np.ones(n_ranks, bool)
        is_ahead[behind] = False
        # Of several ranks behind it is not known which one is the last.
        if len(behind) != n_ranks and (len(behind) > 1 or least[is_ahead].min() <= newest.min()):
            return None
        waits = (phases == Phase.BACKWARD) | (activities >= Activity.WAIT)
        if (waits != is_ahead[ranks]).any() or np.isin(activities, _TELL_NOTHING).any():
            return None
        classes = np.full(n_ranks, WAITING)
        for rank in behind.tolist():
            phases_of_rank = np.unique(phases[ranks == rank]).tolist()
            if len(phases_of_rank) > 1 or phases_of_rank[0] not in _CLASSES:
                return None
            classes[rank] = _CLASSES[phases_of_rank[0]]
        return Witnessed(classes, -1 if len(behind) == n_ranks else int(behind[0]))


_TELL_NOTHING = [
    int(Activity.EVALUATE),
    int(Activity.BEFORE_FORWARD),
    int(Activity.BEFORE_BACKWARD),
    int(Activity.BEFORE_OPTIMIZER),
    int(Activity.AFTER_OPTIMIZER),
]
"""How long an evaluation was, the rank tells itself. The places are not of the stack but of the newest phase
that was seen: in a step that is left out, the rank may load data since then."""


def _first_and_last(columns: Integers) -> Integers:
    """The first and the last heartbeat of each rank, step, phase and activity, in the order of the steps: the
    last one has the newest number."""
    order = np.lexsort([columns[row] for row in (AT_NS, ACTIVITY, PHASE, RANK, STEP)])
    columns = columns[:, order]
    differs = (np.diff(columns[[STEP, RANK, PHASE, ACTIVITY]], axis=1) != 0).any(axis=0)
    edge = np.ones(min(1, len(order)), bool)
    return columns[:, np.append(edge, differs) | np.append(differs, edge)]
