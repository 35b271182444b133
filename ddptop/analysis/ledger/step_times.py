"""The time of complete steps by the classes of the ledger, and what was waited in them for whom.

A wait is for the rank that came last: the one with the shortest exposed communication, or with the shortest
wait in a collective of the script's own. What that rank spends there is transfer, for all ranks. Its place is
where it took longer than the others since their last all-reduce: in this step, or behind backward in the step
before it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.own_times import PART_COLUMNS, PLACES
from ddptop.frames.statistics import reduce_rows
from ddptop.protocol.messages import Flag, Phase
from ddptop.protocol.step_columns import FLAGS, MICRO_STEPS, WAITED
from ddptop.protocol.step_words import CELL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ddptop.analysis.steps.complete_steps import StepBlock
    from ddptop.analysis.steps.kept import Peers
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.vocabulary import LedgerClass, OwnPlace

STEP_CLASSES: tuple[LedgerClass, ...] = (
    "data",
    "forward",
    "own_backward",
    "optimizer",
    "between",
    "gc",
    "transfer",
    "waiting",
    "evaluation",
    "phase",
    "first_batch",
    "saving",
    "compiling",
)
"""The classes of a complete step. What is in none of them is not known."""

DATA, _, _, _, BETWEEN, GC, TRANSFER, WAITING, _, _, FIRST_BATCH, _, _ = range(len(STEP_CLASSES))

WAIT_PLACES: tuple[OwnPlace, ...] = (
    *PLACES,
    "gc",
    "start",
    "first_batch",
    "evaluation",
    "saving",
    "phase",
    "compiling",
    "between_steps",
    "unknown",
)
"""Where a rank may be while others wait for it. `between_steps` stands for `before_forward` in steps without
a DataLoader: nothing parts it from the end of the optimizer then."""

OUTSIDE = frozenset(map(WAIT_PLACES.index, ("data", "first_batch", *PLACES[4:], "between_steps")))
"""The places in which an evaluation, a save or a declared phase lies."""

AsidePlace = Literal["evaluation", "phase", "saving", "compiling"]
"""What a rank does beside training."""

EXPLAINED_SHARE = 0.25
"""Least share of the longest wait that the last rank's place has to explain. Below it, the wait comes from
the transport or from work that has no stamps."""

GC_SHARE = 0.8
"""Least share of the last rank's excess that garbage collection has to be, to be its place."""


SAVE_SHARE = 0.5
"""Least share of the longest wait that a save has to last, to be its place: small ones come in any step."""


class StepWaits(NamedTuple):
    """Waits of one kind in m steps, (m,) each."""

    steps: Indices
    """Their indices in the batch."""
    last: Indices
    """The rank that came last."""
    place: Indices
    """Where that rank was, as an index in WAIT_PLACES."""
    total_ms: Column
    """What all ranks together have waited for it."""
    longest_ms: Column
    """The longest wait of one rank."""


class AsideTime(NamedTuple):
    """Time of a rank in one step that lies in an evaluation, in a save, in a declared phase or in
    torch.compile."""

    step: int
    """Index in the batch."""
    rank: int
    place: AsidePlace
    ms: float
    """It is at most so long."""
    data_ms: float = 0.0
    """The part of it that is known to be in fetching batches."""
    phase: int = Phase.OTHER
    """The phase that it lies in. It is always OTHER but in torch.compile."""


class ClassTimes(NamedTuple):
    """n steps by class."""

    by_class: Column
    """(STEP_CLASSES, n, ranks) ms."""
    waits: list[StepWaits]
    tail: Column
    """(TAIL, ranks) ms of the last step."""


TAIL = [PLACES.index("optimizer"), PLACES.index("before_optimizer")]
"""The places behind the last all-reduce of a step: who is slow there is waited for in the next step."""


def round_to_us(ms: Column) -> Column:
    """Milliseconds rounded to 2^-10 ms, about a microsecond: sums of such numbers do not depend on their
    order."""
    return np.asarray(np.rint(ms * 1024.0) / 1024.0)


class _WaitKind(NamedTuple):
    """What ranks spend in one kind of communication, (n, ranks) ms each; NaN: not known, or not in it."""

    spent: Column
    wait: Column | None
    """The part that is waiting; None: what is beyond the least of all ranks that are in it."""


def divide_steps(
    runs_of_peers: Iterable[tuple[slice, list[Peers]]],
    block: StepBlock,
    columns: Column,
    parts: Column | None,
    aside: Sequence[AsideTime] = (),
    late_start_ms: Column | None = None,
    tails: Column | None = None,
    *,
    measures_aside: bool = False,
) -> ClassTimes:
    """The time of n steps by class.

    `runs_of_peers`: consecutive steps, and the process groups within which they are compared. `columns`:
    (wall and PHASES, n, ranks) ms. `parts`: (PART_COLUMNS, n, ranks) ms or None. `late_start_ms`:
    (ranks,) by how much later than the first rank each began the first of these steps, where that is the
    first of the run. `tails`: (TAIL, ranks) ms of the step before them; None: not known. `measures_aside`: a
    rank is waited for in what is in `aside` as in any place, where it took longer than the others."""
    counts = np.asarray(block.integers[FLAGS] & int(Flag.JOINED | Flag.SHADOW) == 0)
    exposed = _exposed_ms(block, counts, columns[3], parts)
    n_places = _N_PLACES if aside and measures_aside else _START_PLACE + 1
    places = _own_places(counts, columns, parts, exposed, n_places)
    kinds = _kinds_of_waits(block, parts, exposed)
    by_class = np.zeros((len(STEP_CLASSES), *counts.shape))
    by_class[:4] = places[:4]
    places[4:8].sum(axis=0, out=by_class[BETWEEN])
    paused = places[_GC_PLACE]
    if paused.any():
        work_ms = by_class[:GC].sum(axis=0)
        np.minimum(paused, work_ms, out=by_class[GC])
        # It is not known in which place: a long pause is most of the place that it lies in.
        by_class[:GC] *= 1.0 - np.nan_to_num(formulas.share(by_class[GC], work_ms))
    by_class[: GC + 1] = round_to_us(by_class[: GC + 1])
    if late_start_ms is not None:
        places[_START_PLACE, 0] = late_start_ms
    begins = np.asarray(block.integers[FLAGS] & int(Flag.FIRST_BATCH) != 0)
    if late_start_ms is not None:
        begins[0] = False  # all of the first step is the start
    if measures_aside:
        for time in aside:
            _take_from_places(places, time)
    tail = places[TAIL]
    before = np.concatenate(
        [np.zeros_like(tail[:, :1]) if tails is None else tails[:, None], tail[:, :-1]], 1
    )
    # Usually the script has no collectives of its own: then nothing is read of `until_others`.
    until_gradients, until_others = places, places.copy() if len(kinds) > 1 else places
    until_others[TAIL] += before
    until_gradients[TAIL] = before
    waits: list[StepWaits] = []
    for run, groups in runs_of_peers:
        for peers in groups:
            waits += _waits_of_group(by_class, (until_gradients, until_others), kinds, run, peers)
    for time in aside:
        _move_aside(by_class, time)
    if aside and not measures_aside:
        waits = [_with_aside(wait, aside) for wait in waits]
    if begins.any():
        by_class[FIRST_BATCH] = np.where(begins, by_class[DATA], 0.0)
        by_class[DATA] -= by_class[FIRST_BATCH]
        waits = [_with_first_batch(wait, begins) for wait in waits]
    return ClassTimes(by_class, waits, tail[:, -1])


_GC_PLACE, _START_PLACE = len(PLACES), len(PLACES) + 1
_ASIDE_PLACES = [WAIT_PLACES.index(name) for name in get_args(AsidePlace)]
_N_PLACES = max(_ASIDE_PLACES) + 1
_WORK_PLACES = [*range(len(PLACES)), *_ASIDE_PLACES]
"""Rows of places in which the rank does something itself; those beside training come last."""

_TAKEN_FROM = [WAIT_PLACES.index(name) for name in ("before_forward", "after_optimizer", "before_backward")]
"""Places from which time aside is taken. Not from one behind backward: it is waited for in the next step."""


def _own_places(
    counts: Mask, columns: Column, parts: Column | None, exposed: Column, n_places: int
) -> Column:
    """(n_places, n, ranks) ms, in the order of WAIT_PLACES; 0 where not known. PLACES and pauses for garbage
    collection are filled in."""
    _, data, forward, backward, optimizer, other = columns
    places = np.zeros((n_places, *counts.shape))
    if parts is not None:
        places[: len(PLACES)] = parts[: len(PLACES)]
        places[_GC_PLACE] = parts[PART_COLUMNS.index("gc")]
    in_phases = counts if parts is None else counts & np.isnan(parts[0])  # rows without own times
    if in_phases.any():
        for place, phase in ((0, data), (1, forward), (3, optimizer), (4, other)):
            np.copyto(places[place], phase, where=in_phases)
        np.copyto(places[2], backward - exposed, where=in_phases)
    elif np.isnan(places[2]).any():  # the last gradient is not known, perhaps the buckets' times are
        np.copyto(places[2], backward - exposed, where=np.isnan(places[2]))
    return np.fmax(places, 0.0, out=places)  # also of NaN


def _exposed_ms(block: StepBlock, counts: Mask, backward: Column, parts: Column | None) -> Column:
    """(n, ranks) exposed communication in ms. Where the last gradient is not known, as in the first step of
    a model, it is that of bucket detail; NaN: neither is known."""
    exposed = np.full(counts.shape, np.nan) if parts is None else parts[PART_COLUMNS.index("exposed")].copy()
    unknown = np.isnan(exposed) & counts
    ranks = counts.shape[1]
    for step in np.flatnonzero(reduce_rows(np.logical_or, unknown) & np.array(block.detailed)).tolist():
        begins = block.cells_at[step * ranks : (step + 1) * ranks + 1]
        n_cells = np.diff(begins)
        if n_cells[0] == 0 or (n_cells != n_cells[0]).any() or (block.integers[MICRO_STEPS, step] > 1).any():
            continue
        cells = block.cells[begins[0] : begins[-1]].reshape(ranks, -1, CELL).astype(np.float64)
        ready, took = cells[..., 1] / 1000.0, cells[..., 2] / 1000.0
        beyond = (ready + took).max(axis=1) - ready.max(axis=1)
        usable = unknown[step] & (took >= 0).all(axis=1)
        exposed[step] = np.where(usable, np.clip(beyond, 0.0, backward[step]), exposed[step])
    return exposed


def _kinds_of_waits(block: StepBlock, parts: Column | None, exposed: Column) -> list[_WaitKind]:
    """Exposed communication, DDP's broadcasts of buffers, and the script's own collectives in each phase."""
    if parts is None:
        return [_WaitKind(exposed, None)]
    names = ("exposed_wait", "buffers", "buffers_wait")
    exposed_wait, buffers, buffers_wait = (parts[PART_COLUMNS.index(name)] for name in names)
    kinds = [_WaitKind(exposed, None if np.isnan(exposed_wait).all() else exposed_wait)]
    waited = block.own[WAITED]
    if not (waited > 0).any():
        return kinds
    in_buffers = np.nan_to_num(buffers)
    if in_buffers.any():
        kinds.append(_WaitKind(buffers, buffers_wait))
    for phase in (1, 4, 0, 2, 3):  # those of broadcasts of buffers first
        spent = np.maximum(waited[phase] / 1000.0, 0.0)  # MISSING where a row has none
        of_buffers = np.minimum(in_buffers, spent)
        in_buffers, spent = in_buffers - of_buffers, spent - of_buffers
        spent[spent <= _ROUNDING_MS] = np.nan  # it was in none
        if np.isfinite(spent).any():
            kinds.append(_WaitKind(spent, None))
    return kinds


_ROUNDING_MS = 0.0005


def _waits_of_group(
    by_class: Column,
    places: tuple[Column, Column],
    kinds: Sequence[_WaitKind],
    run: slice,
    peers: Peers,
) -> Iterator[StepWaits]:
    """Add what the ranks of a group spent in communication in some steps; gives their waits. `places`: the
    time of each place that lies before the all-reduce of the gradients, and before other collectives."""
    members, is_own, own_ranks = peers
    usual: list[Column | None] = [None, None]
    ranks = np.arange(by_class.shape[2])[members]
    for spent_of_all, wait_of_all in kinds:
        spent = spent_of_all[run, members]
        least = reduce_rows(np.fmin, spent)
        wait = spent - least[:, None]
        if kinds[0].spent is spent_of_all:
            # The rank that is not known may have been the last.
            wait[reduce_rows(np.logical_or, np.isnan(spent))] = np.nan
        if wait_of_all is not None:  # not known of a first step, whose bucket detail tells it
            wait = np.where(np.isnan(wait_of_all[run, members]), wait, wait_of_all[run, members])
        own_wait = round_to_us(wait)[:, is_own]
        known_wait = np.nan_to_num(own_wait)
        by_class[WAITING][run, own_ranks] += known_wait
        by_class[TRANSFER][run, own_ranks] += np.nan_to_num(round_to_us(spent[:, is_own]) - own_wait)
        total = reduce_rows(np.add, known_wait)
        steps = np.flatnonzero(total > 0)
        if not len(steps):
            continue
        last = np.where(np.isnan(spent[steps]), np.inf, spent[steps]).argmin(axis=1)
        longest = reduce_rows(np.maximum, known_wait)[steps]
        which = 0 if kinds[0].spent is spent_of_all else 1
        of_members, usual_ms = places[which][:, run, members], usual[which]
        if usual_ms is None:
            middle = (len(ranks) - 1) // 2
            if middle:
                usual_ms = np.partition(of_members, middle, axis=2)[..., middle]
            else:  # of two ranks the smaller one: it takes a tenth
                usual_ms = reduce_rows(np.minimum, of_members)
            usual[which] = usual_ms
        over = of_members[:, steps, last] - usual_ms[:, steps]
        fetches = places[0][0][run, members][steps, last] > 0
        place = _places_of_last(over, longest, fetches)
        yield StepWaits(steps + run.start, ranks[last], place, total[steps], longest)


def _places_of_last(excess: Column, longest: Column, fetches: Mask) -> Indices:
    """(m,) where the last rank was. `excess`: (places, m) of that rank over the group, those beside training
    only where some are known; `fetches`: whether a DataLoader was seen in the step."""
    work_places = [place for place in _WORK_PLACES if place < len(excess)]
    work = excess[work_places]
    place, most = np.take(work_places, work.argmax(axis=0)), work.max(axis=0)
    between_steps = ~fetches & (place == WAIT_PLACES.index("before_forward"))
    place = np.where(between_steps, WAIT_PLACES.index("between_steps"), place)
    collects = excess[_GC_PLACE] > GC_SHARE * np.maximum(work.sum(axis=0), most)
    place = np.where(collects & (most > 0), _GC_PLACE, place)
    place = np.where(excess[_START_PLACE] > most, _START_PLACE, place)
    explains = np.maximum(most, excess[_START_PLACE]) >= EXPLAINED_SHARE * longest
    return np.where(explains, place, WAIT_PLACES.index("unknown"))


_ROWS_OF_PHASES: Mapping[int, int] = MappingProxyType(
    {phase: row for row, phase in enumerate((Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))}
)
"""The rows of STEP_CLASSES and of PLACES, which begin with the phases."""


def _row_of_phase(time: AsideTime) -> list[tuple[int, float]]:
    """The row from which time aside is taken first, and how much of it at most; none of OTHER or of a phase
    that is not known."""
    row = _ROWS_OF_PHASES.get(time.phase)
    return [] if row is None else [(row, np.inf)]


def _move_aside(by_class: Column, time: AsideTime) -> None:
    """Time outside the phases, and in fetching, becomes that of an evaluation, a save, a declared phase or
    torch.compile, and that of a phase in which torch.compile was called."""
    of_step = by_class[:, time.step, time.rank]
    to_move = time.ms
    for name, most_ms in (*_row_of_phase(time), (DATA, time.data_ms), (BETWEEN, np.inf), (DATA, np.inf)):
        moved = float(min(of_step[name], most_ms, to_move))
        of_step[name] -= moved
        of_step[STEP_CLASSES.index(time.place)] += moved
        to_move -= moved


def _take_from_places(places: Column, time: AsideTime) -> None:
    """Time in (_N_PLACES, n, ranks) ms of places becomes that of what the rank does beside training."""
    of_step = places[:, time.step, time.rank]
    to_move = time.ms
    if time.phase == Phase.OPTIMIZER:  # it is waited for in the next step
        return
    outside = [(place, np.inf) for place in _TAKEN_FROM]
    for place, most_ms in (*_row_of_phase(time), (DATA, time.data_ms), *outside, (DATA, np.inf)):
        moved = float(min(of_step[place], most_ms, to_move))
        of_step[place] -= moved
        of_step[WAIT_PLACES.index(time.place)] += moved
        to_move -= moved


def _with_aside(wait: StepWaits, aside: Sequence[AsideTime]) -> StepWaits:
    """The waits, with the place of ranks that evaluated, saved or were in a declared phase."""
    place = wait.place.copy()
    for time in aside:
        for number in np.flatnonzero((wait.steps == time.step) & (wait.last == time.rank)).tolist():
            is_long = time.place != "saving" or time.ms >= SAVE_SHARE * wait.longest_ms[number]
            if is_long and int(place[number]) in OUTSIDE:
                place[number] = WAIT_PLACES.index(time.place)
    return wait._replace(place=place)


def _with_first_batch(wait: StepWaits, begins: Mask) -> StepWaits:
    """The waits; the place of ranks that fetched the first batch of an epoch (`begins`) is its own."""
    fetched = (wait.place == WAIT_PLACES.index("data")) & begins[wait.steps, wait.last]
    return wait._replace(place=np.where(fetched, WAIT_PLACES.index("first_batch"), wait.place))
