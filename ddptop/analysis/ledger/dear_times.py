"""How dear steps that were left out are divided: like recorded dear steps of about the same length.

Of a step that was left out only its length is known. Where steps are short, most steps are left out, and with
them most of those that are rare and dear. Only like explains like: dear steps are of one *kind* if their
lengths have the same power of two, and if in all or in none of them a rank is known to save, to evaluate or
to be in a declared phase. What resembles no recorded steps, or too few of them, stays not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.ledger.step_times import STEP_CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ddptop.frames.columns import Column, Indices, Mask

    Integers = NDArray[np.int64]

LEAST_RECORDED = 5
"""Recorded dear steps that are enough to explain those that were left out. If a cause is in at most half of
such steps, five of five have it by chance in 3 % of cases."""

NO_KIND = -(2**31)
"""Stands for the kind of a dear step that explains no other: a first one, one that only some ranks recorded,
or one in which a rank had no batches left."""

WITNESSED = NO_KIND + 1
"""Stands for the kind of a dear step that was left out, and of which heartbeats told (`witnesses.py`)."""

ASIDE_ROWS = [STEP_CLASSES.index(name) for name in ("evaluation", "compiling", "phase", "saving")]
"""Classes whose time is known also in steps that were left out."""

RECORDED, LEFT_OUT, AS_USUAL = range(len(STEP_CLASSES), len(STEP_CLASSES) + 3)
"""Rows behind those of STEP_CLASSES: the length of recorded steps, that of steps that were left out, and what
of the latter is divided like steps of usual length, if nothing explains them."""

N_ROWS = AS_USUAL + 1


@dataclass(frozen=True, slots=True)
class DearTimes:
    """Sums over dear steps of one kind, without the time of ASIDE_ROWS, which nothing has to explain."""

    n_recorded: int
    n_left_out: int
    sums: Column
    """(N_ROWS, ranks) ms; by class the recorded ones."""

    @property
    def by_class(self) -> Column:
        """(STEP_CLASSES, ranks) ms of the recorded ones."""
        return self.sums[:RECORDED]

    def plus(self, more: DearTimes) -> DearTimes:
        """Both together."""
        n_recorded, n_left_out = self.n_recorded + more.n_recorded, self.n_left_out + more.n_left_out
        return DearTimes(n_recorded, n_left_out, self.sums + more.sums)

    def for_ranks(self, n_ranks: int) -> DearTimes:
        """Its sums with columns for more ranks."""
        more = n_ranks - self.sums.shape[1]
        if more <= 0:
            return self
        return DearTimes(self.n_recorded, self.n_left_out, np.pad(self.sums, ((0, 0), (0, more))))


DearSums = dict[int, DearTimes]
"""By kind."""


def add_dear_times(sums: DearSums, kind: int, more: DearTimes) -> None:
    """Add dear steps of one kind."""
    before = sums.get(kind)
    sums[kind] = more if before is None else before.plus(more)


class DearScales(NamedTuple):
    """What dear steps that were left out add to the recorded ones."""

    by_kind: Mapping[int, float]
    """Seconds to add to each second of recorded dear steps of a kind."""
    explained: Mapping[int, Sequence[int]]
    """The kinds of which steps that were left out are explained, and by the recorded steps of which kinds."""

    def as_usual_ms(self, sums: Mapping[int, DearTimes], n_ranks: int) -> Column:
        """(ranks,) ms of explained steps that are not divided like usual ones."""
        return np.asarray(
            sum((sums[kind].sums[AS_USUAL] for kind in self.explained if kind in sums), np.zeros(n_ranks))
        )


NO_SCALES = DearScales({}, {})


def scale_dear(sums: Mapping[int, DearTimes]) -> DearScales:
    """Explain what was left out by recorded steps of the same kind; where these are fewer than
    LEAST_RECORDED, by those of twice and half their length as well.

    A scale is one number for all ranks: so what was waited for a rank remains what the others waited."""
    by_kind: dict[int, float] = {}
    explained: dict[int, Sequence[int]] = {}
    for kind, of_kind in sums.items():
        if not of_kind.n_left_out:
            continue
        for kinds in ((kind,), (kind - 2, kind, kind + 2)):
            alike = [sums[near] for near in kinds if near in sums]
            if sum(times.n_recorded for times in alike) < LEAST_RECORDED:
                continue
            recorded_ms = np.sum([times.sums[RECORDED] for times in alike], axis=0)
            some = recorded_ms > 0
            scale = float((of_kind.sums[LEFT_OUT][some] / recorded_ms[some]).min(initial=np.inf))
            if np.isfinite(scale):
                explained[kind] = kinds
                for near in kinds:
                    by_kind[near] = by_kind.get(near, 0.0) + scale
            break
    return DearScales(by_kind, explained)


def kinds_of_dear_steps(length: Column, is_marked: Mask) -> Integers:
    """(n,) the kind of dear steps of these lengths. `is_marked`: whether a rank is known to save, to evaluate
    or to be in a declared phase in it."""
    return np.asarray(2 * np.frexp(length)[1].astype(np.int64) + is_marked)


class DearSteps(NamedTuple):
    """m dear steps, recorded or left out."""

    steps: Indices
    """(m,) their indices in the batch."""
    kinds: Integers
    is_recorded: Mask
    times: Column
    """(N_ROWS, m, ranks) ms, as in `DearTimes`."""

    def until(self, step: int) -> DearSteps:
        """The steps up to one of the batch."""
        end = int(np.searchsorted(self.steps, step, side="right"))
        return DearSteps(self.steps[:end], self.kinds[:end], self.is_recorded[:end], self.times[:, :end])

    def by_kind(self) -> DearSums:
        """Their sums."""
        sums: DearSums = {}
        for _, kind, times in _sum_alike(self, np.zeros(len(self.steps), np.int64), self.times):
            sums[kind] = times
        return sums

    def by_bin(self, bins: Integers) -> dict[int, DearSums]:
        """Their sums over ranks, by bin of time and kind; `bins`: of each step of the batch."""
        sums: dict[int, DearSums] = {}
        over_ranks = self.times.sum(axis=2, keepdims=True)
        for number, kind, times in _sum_alike(self, bins[self.steps], over_ranks):
            sums.setdefault(number, {})[kind] = times
        return sums


def _sum_alike(dear: DearSteps, bins: Integers, times: Column) -> Iterator[tuple[int, int, DearTimes]]:
    """The sums of steps of the same bin and kind, behind both; `times`: (N_ROWS, m, ranks)."""
    if not len(bins):
        return
    order = np.lexsort((dear.kinds, bins))
    bins, kinds, is_recorded = bins[order], dear.kinds[order], dear.is_recorded[order]
    differs = (np.diff(kinds, prepend=kinds[0]) != 0) | (np.diff(bins, prepend=bins[0] - 1) != 0)
    begins = np.flatnonzero(differs)
    n_steps = np.diff(begins, append=len(bins))
    n_recorded = np.add.reduceat(is_recorded, begins, dtype=np.int64)
    sums = np.add.reduceat(times[:, order], begins, axis=1).swapaxes(0, 1).copy()
    columns = (column.tolist() for column in (bins[begins], kinds[begins], n_recorded, n_steps - n_recorded))
    for number, kind, recorded, left_out, of_kind in zip(*columns, sums, strict=True):
        yield number, kind, DearTimes(recorded, left_out, of_kind)


def dear_steps(
    steps: Indices, kinds: Integers, is_recorded: Mask, by_class: Column, wall: Column, as_usual_ms: Column
) -> DearSteps:
    """m dear steps: `by_class`: (STEP_CLASSES, m, ranks) ms, of those that were left out what is known of
    them; `wall`, `as_usual_ms`: (m, ranks) ms."""
    times = np.zeros((N_ROWS, *wall.shape))
    known_ms = by_class[ASIDE_ROWS].sum(axis=0)
    times[:RECORDED] = by_class
    times[ASIDE_ROWS] = 0.0
    recorded = is_recorded[:, None]
    times[RECORDED] = np.where(recorded, wall - known_ms, 0.0)
    times[LEFT_OUT] = np.where(recorded, 0.0, wall - known_ms)
    times[AS_USUAL] = np.where(recorded, 0.0, as_usual_ms)
    return DearSteps(steps, kinds, is_recorded, times)


def iterate_explained(
    sums: Sequence[Mapping[int, DearTimes]], scales: DearScales, row: int
) -> Iterator[tuple[Column, Column, Column]]:
    """For each kind that is explained, (len(sums),) ms: what was left out, the recorded steps that explain
    it, and what of these is in the class of a row. `sums`: over ranks."""
    for kind, kinds in scales.explained.items():
        left_out, recorded, in_class = np.zeros((3, len(sums)))
        for place, of_all in enumerate(sums):
            if kind in of_all:
                left_out[place] = of_all[kind].sums[LEFT_OUT, 0]
            for near in kinds:
                if near in of_all:
                    recorded[place] += of_all[near].sums[RECORDED, 0]
                    in_class[place] += of_all[near].sums[row, 0]
        yield left_out, recorded, in_class
