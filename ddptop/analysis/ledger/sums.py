"""The sums of the ledger: the time of each rank by class, and what was waited for each rank in each place.

They are fed with every complete step, and with what lies between two steps. Times are milliseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np

from ddptop.analysis.ledger.dear_times import (
    AS_USUAL,
    NO_KIND,
    WITNESSED,
    add_dear_times,
    dear_steps,
    kinds_of_dear_steps,
    scale_dear,
)
from ddptop.analysis.ledger.step_times import (
    GC,
    STEP_CLASSES,
    TAIL,
    WAIT_PLACES,
    WAITING,
    AsidePlace,
    AsideTime,
    StepWaits,
    divide_steps,
    round_to_us,
)
from ddptop.analysis.ledger.witnesses import LEAST_WITNESSED_MS, Heartbeats
from ddptop.frames.ledger import LEDGER_CLASSES
from ddptop.frames.statistics import median, reduce_rows
from ddptop.protocol.messages import Flag, Phase
from ddptop.protocol.step_columns import FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.ledger.dear_times import DearScales, DearSteps, DearSums
    from ddptop.analysis.ledger.step_times import ClassTimes
    from ddptop.analysis.ledger.witnesses import Witnessed
    from ddptop.analysis.missing_records import MissingRecords
    from ddptop.analysis.rank_table import RankTable
    from ddptop.analysis.steps.complete_steps import StepBlock
    from ddptop.analysis.steps.kept import Peers
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.message_run import Readings
    from ddptop.protocol.messages import Hello
    from ddptop.protocol.vocabulary import LedgerClass, OwnPlace

    Integers = NDArray[np.int64]

DEAR = 3.0
"""A step of so many times the usual length is dear: what is rare is summed by itself, with its steps."""

USUAL_STEPS = 32
"""Steps whose median is the usual length."""

LONG_FIRST_MS = 1000.0
"""A first step that is longer is dear: there is no usual length yet."""


class RareWaits(NamedTuple):
    """Which waits in dear steps are alike, and when most of them are for one rank in one place."""

    powers: int
    """They are alike down to so many powers of two below those that cost the most."""
    least_share: float
    """Share of what was waited that has to be for this rank there."""
    of_same_length: bool
    """Whether it is compared with waits for others that are alike, or with all of them."""

    def sum_compared(self, dear_ms: Mapping[int, float], least: int) -> float:
        """What was waited, for whomever, in the dear steps that are compared; `dear_ms`: by power of two."""
        return sum(ms for power, ms in dear_ms.items() if power >= least or not self.of_same_length)

    def are_main(self, waited: float, for_others: float) -> bool:
        """Whether most is for one rank in one place."""
        return waited >= self.least_share * (waited + for_others)


EARLIER_WAITS = RareWaits(2, 0.75, of_same_length=False)
"""The rule of recordings that were begun before version 4 of the sums: short stops hide long pauses there."""

SAME_LENGTH_WAITS = RareWaits(1, 0.8, of_same_length=True)
"""On a busy machine the kernel stops now this rank, now that one; for a shorter time all day."""

DEAR_STEPS = 8
"""Newest dear steps that are listed for each rank and place."""

RECENT_BIN_S, RECENT_BINS = 5.0, 60
"""The last minutes are five: of a rank that is slow every minute they hold several times."""

RUN_BINS, FIRST_RUN_BIN_S = 64, 1.0
"""Bins of the whole run, for the interval. When they are full, two become one."""

LEFT_OUT = 2.0
"""A step without phases counts as a usual one up to so many times its length. What is beyond is known only of
dear steps that resemble recorded ones (`dear_times`)."""

NS_PER_MS = 1e6

NOT_BEGUN = -(2**62)
"""Stands for the end of the last step where there was none."""

NO_BIN = -(2**31)
"""Stands for the number of a bin where there is none."""


class KindWaits(NamedTuple):
    """What all ranks waited in so many dear steps of one kind."""

    n_steps: int
    rank_ms: float


@dataclass(slots=True)
class DearSum:
    """Dear steps in which ranks waited about as long for one rank in one place."""

    of_kinds: dict[int, KindWaits] = field(default_factory=dict)
    """By kind of the step (`dear_times`)."""
    longest_ms: float = 0.0
    """The sum over the steps of the longest wait of one rank."""
    since_s: float = 0.0
    """When the first of them ended, and the last, in seconds since the launch."""
    until_s: float = 0.0
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=DEAR_STEPS))
    """The newest ones, oldest first."""

    def add(self, more: DearSum) -> None:
        """Add others; of their steps the newest of all stay."""
        self.since_s = min(self.since_s, more.since_s) if self.of_kinds else more.since_s
        self.until_s = max(self.until_s, more.until_s) if self.of_kinds else more.until_s
        for kind, waits in more.of_kinds.items():
            self.add_waits(kind, waits)
        self.longest_ms += more.longest_ms
        self.steps.extend(more.steps)

    def add_waits(self, kind: int, waits: KindWaits) -> None:
        """Add what was waited in steps of one kind."""
        before = self.of_kinds.get(kind)
        if before is not None:
            waits = KindWaits(before.n_steps + waits.n_steps, before.rank_ms + waits.rank_ms)
        self.of_kinds[kind] = waits

    @property
    def n_steps(self) -> int:
        """How many of them are recorded, or told of by heartbeats."""
        return sum(waits.n_steps for waits in self.of_kinds.values())

    @property
    def n_witnessed(self) -> int:
        """How many of `n_steps` were left out, and told of by heartbeats."""
        return self.of_kinds[WITNESSED].n_steps if WITNESSED in self.of_kinds else 0

    def n_steps_in_all(self, scales: Mapping[int, float]) -> float:
        """How many they are with those that were left out; `scales`: by kind."""
        return sum(waits.n_steps * (1 + scales.get(kind, 0.0)) for kind, waits in self.of_kinds.items())

    def rank_ms(self, scales: Mapping[int, float]) -> float:
        """What all ranks waited in them and in those that were left out; `scales`: by kind."""
        return sum(waits.rank_ms * (1 + scales.get(kind, 0.0)) for kind, waits in self.of_kinds.items())


@dataclass(slots=True)
class WaitSum:
    """What was waited for one rank in one place, in milliseconds over all ranks that waited."""

    usual_ms: float = 0.0
    """In steps of usual length."""
    other_ms: float = 0.0
    """In recorded dear steps, and in a first one."""
    n_steps: int = 0
    longest_ms: float = 0.0
    """The longest wait of one rank in one step, and that step."""
    longest_step: int = 0
    dear: dict[int, DearSum] = field(default_factory=dict)
    """By the longest wait in a dear step, as a power of two of milliseconds: a pause of seconds is not to be
    averaged with what is dear by accident."""

    def add(self, more: WaitSum) -> None:
        """Add the waits of later steps."""
        self.usual_ms += more.usual_ms
        self.other_ms += more.other_ms
        self.n_steps += more.n_steps
        if more.longest_ms > self.longest_ms:
            self.longest_ms, self.longest_step = more.longest_ms, more.longest_step
        for power, dear in more.dear.items():
            self.dear.setdefault(power, DearSum()).add(dear)

    def rank_ms(self, scale: float, scales: Mapping[int, float]) -> float:
        """All of it, with what was waited in steps that were left out: `scale` is that of steps of usual
        length, `scales` those of dear ones by kind."""
        more_ms = sum(
            scales.get(kind, 0.0) * waits.rank_ms
            for dear in (self.dear.values() if scales else ())
            for kind, waits in dear.of_kinds.items()
        )
        return self.other_ms + self.usual_ms * (1 + scale) + more_ms

    def alike_power(self, scales: Mapping[int, float], rare_waits: RareWaits) -> int:
        """The least power of two of the longest wait in the steps of `dearest`."""
        most = max(self.dear, key=lambda power: self.dear[power].rank_ms(scales), default=0)
        return most - rare_waits.powers

    def dearest(self, scales: Mapping[int, float], rare_waits: RareWaits) -> DearSum:
        """The dear steps that cost the most together, and those with nearly as long waits or longer ones.
        `scales`: what steps that were left out add, by kind."""
        group, least = DearSum(), self.alike_power(scales, rare_waits)
        powers = [power for power in sorted(self.dear) if power >= least]
        for power in powers:
            group.add(self.dear[power])
        if len(powers) > 1:
            # In order, as far as they are kept: of incarnations one after the other numbers may be mixed.
            group.steps = deque(
                sorted(step for power in powers for step in self.dear[power].steps), DEAR_STEPS
            )
        return group


WaitSums = dict[int, WaitSum]
"""By rank x WAIT_PLACES + place."""


@dataclass(slots=True)
class TimeBin:
    """The steps that ended within some time, summed over ranks."""

    number: int
    """Its begin, divided by the length of a bin."""
    n_steps: float = 0.0
    total_ms: float = 0.0
    """Time of all ranks; below, how much of it has no phases, and how much is in steps of usual length."""
    left_out_ms: float = 0.0
    usual_total_ms: float = 0.0
    usual_ms: float = 0.0
    """Waited in steps of usual length, and in others."""
    other_ms: float = 0.0
    waits: WaitSums = field(default_factory=dict)
    dear: DearSums = field(default_factory=dict)
    """Dear steps, recorded and left out, summed over ranks."""

    @classmethod
    def of(cls, number: int, sums: Sequence[float], dear: DearSums | None = None) -> TimeBin:
        """A bin with these sums, in the order of its fields."""
        n_steps, total_ms, left_out_ms, usual_total_ms, usual_ms, other_ms = sums
        return cls(
            number, n_steps, total_ms, left_out_ms, usual_total_ms, usual_ms, other_ms, {}, dict(dear or {})
        )

    def add(self, more: TimeBin) -> None:
        """Add the steps of another one."""
        self.n_steps += more.n_steps
        self.total_ms += more.total_ms
        self.left_out_ms += more.left_out_ms
        self.usual_total_ms += more.usual_total_ms
        self.usual_ms += more.usual_ms
        self.other_ms += more.other_ms
        add_waits(self.waits, more.waits)
        for kind, times in more.dear.items():
            add_dear_times(self.dear, kind, times)

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it but for `waits` and `dear`, in order."""
        sums = (self.n_steps, self.total_ms, self.left_out_ms, self.usual_total_ms)
        return (self.number, *sums, self.usual_ms, self.other_ms)

    def scale(self, scales: DearScales) -> float:
        """Seconds to add to each second in steps of usual length, for the steps that were left out. `scales`:
        of the dear ones, of which some are explained otherwise."""
        explained = (self.dear[kind] for kind in scales.explained if kind in self.dear)
        left_out_ms = self.left_out_ms - sum(float(times.sums[AS_USUAL, 0]) for times in explained)
        return left_out_ms / self.usual_total_ms if self.usual_total_ms > 0 else 0.0

    def waited_ms(self, scales: DearScales) -> float:
        """What was waited, with the share of steps that were left out, but for the dear ones."""
        return self.other_ms + self.usual_ms * (1 + self.scale(scales))


def add_waits(sums: WaitSums, more: WaitSums) -> None:
    """Add what was waited in later steps."""
    for key, wait in more.items():
        wait_sum = sums.get(key)
        if wait_sum is None:
            wait_sum = sums[key] = WaitSum()
        wait_sum.add(wait)


class DearWait(NamedTuple):
    """What was waited in a dear step for one rank in one place."""

    rank: int
    place: OwnPlace
    step: int
    end_s: float
    """When the step ended, in seconds since the launch."""
    longest_ms: float
    """Longest wait of one rank; below, the sum over all ranks."""
    rank_ms: float
    kind: int = NO_KIND
    """Kind of the step (`dear_times`)."""
    dear: Callable[[], DearSums] | None = None
    """Finds the dear steps up to this one, of which its scale follows; None: they are not scaled."""

    @property
    def power(self) -> int:
        """The power of two of the longest wait."""
        return math.frexp(self.longest_ms)[1]

    def scales(self) -> Mapping[int, float]:
        """By kind, what dear steps that were left out before it add to the recorded ones."""
        return {} if self.dear is None else scale_dear(self.dear()).by_kind


class MarkedSpan(NamedTuple):
    """A rank is known to evaluate, to save, to compile or to be in a declared phase between two moments."""

    rank: int
    begin_ns: int
    """By its own clock."""
    end_ns: int
    place: AsidePlace
    data_ns: int = -1
    """How long an evaluation fetched batches in it. -1: not known, only heartbeats have told of it."""
    phase: int = Phase.OTHER
    """Where it compiles: the phase of the step."""

    @property
    def is_heard(self) -> bool:
        """Whether it is an evaluation of which only heartbeats have told: how long it was is not known."""
        return self.place == "evaluation" and self.data_ns < 0


class Resumed(NamedTuple):
    """The moment whose recorded sums a ledger has begun with. What came before is in them."""

    at_ns: int
    """When the newest message in it arrived."""
    incarnation: int
    step: int
    """The newest complete step."""


MAX_MARKS = 4096
"""Marks that are kept until their steps are complete."""


class RunFacts(Protocol):
    """What the ledger reads of the state of the run."""

    table: RankTable
    incarnation: int
    missing: MissingRecords

    @property
    def started_ns(self) -> int: ...

    def hello(self, rank: int) -> Hello | None: ...


class RunLedger:
    """Where the time of all ranks went, from the launch on. It goes on over restarts."""

    def __init__(self, state: RunFacts, *, is_known: bool = True) -> None:
        self._state = state
        self.is_known = is_known
        """Whether all steps from the launch on are in it. False: there is no ledger at this moment."""
        self.resumed: Resumed | None = None
        """Set where it has begun with recorded sums (`resume_ledger`)."""
        self.by_class: Column = np.zeros((len(LEDGER_CLASSES), 0))
        """(LEDGER_CLASSES, ranks) ms, without the shares of what was left out."""
        self.usual: Column = np.zeros((len(STEP_CLASSES), 0))
        """(STEP_CLASSES, ranks) ms: what of it was in steps of usual length."""
        self.usual_total: Column = np.zeros(0)
        """(ranks,) ms of these steps."""
        self.left_out: Column = np.zeros(0)
        """(ranks,) ms of steps without phases, no longer than usual: they are in no class."""
        self.dear: DearSums = {}
        """Dear steps, recorded and left out."""
        self.scales_dear = False
        """Whether dear steps that were left out are divided like recorded ones: earlier versions did not."""
        self.measures_aside = False
        """Whether an evaluation is as long as its rank has measured it, and a rank is waited for in it, in a
        save or in a declared phase as in any place. In earlier versions an evaluation took all of its step
        outside the phases, and decided by being there."""
        self.marks_the_end = False
        """Whether evaluations, saves and declared phases after the last step have their own class."""
        self.takes_witnesses = False
        """Whether heartbeats say what a long step was that was left out."""
        self.heartbeats = Heartbeats()
        self.rare_waits = EARLIER_WAITS
        self.waits: WaitSums = {}
        self.n_steps = 0
        self.run_bins: list[TimeBin] = []
        self.recent_bins: deque[TimeBin] = deque(maxlen=RECENT_BINS)
        self.end_ns: Integers = np.zeros(0, np.int64)
        """(ranks,) when its last complete step ended, since the launch; NOT_BEGUN before its first."""
        self.run_bin_s = FIRST_RUN_BIN_S
        self.usual_length = UsualLength()
        self.session: Integers = np.zeros(0, np.int64)
        """(ranks,) in which session that was."""
        self.shift_ns: Integers = np.zeros(0, np.int64)
        """(ranks,) to be added to its own clock to get the time since the launch."""
        self._newest, self._tails = -1, np.zeros((len(TAIL), 0))
        """The newest step, and the time of its ranks behind its last all-reduce."""
        self._is_past_resumed = False
        self.marks: list[MarkedSpan] = []
        self.declared: dict[int, int] = {}
        self._heard: dict[int, tuple[int, int]] = {}
        """The step in which a rank evaluates by its heartbeats, and where in `marks` that is."""

    def note_heartbeats(self, ranks: Integers, beats: Readings, t_ns: Integers) -> None:
        """Heartbeats of these ranks, which arrived at `t_ns`, (n,)."""
        if self.takes_witnesses and not self._has_recorded(int(t_ns[-1])):
            self.heartbeats.take(ranks, beats)

    def note_evaluating(self, ranks: Integers, steps: Integers, own_ns: Integers, t_ns: Integers) -> None:
        """These ranks evaluate in these steps, at these moments of their own clocks, (n,) each; `t_ns`: when
        that arrived."""
        columns = (ranks.tolist(), steps.tolist(), own_ns.tolist(), t_ns.tolist())
        for rank, step, at_ns, arrived_ns in zip(*columns, strict=True):
            if self._has_recorded(arrived_ns):
                continue
            heard_step, place = self._heard.get(rank, (-1, 0))
            if self.measures_aside and heard_step == step and place < len(self.marks):
                self.marks[place] = self.marks[place]._replace(end_ns=at_ns)
            else:
                self._heard[rank] = step, len(self.marks)
                self._add_mark(MarkedSpan(rank, at_ns, at_ns, "evaluation"))

    def note_evaluated(self, rank: int, own_ns: int, evaluated_ns: int, data_ns: int, t_ns: int) -> None:
        """A rank has evaluated for so long until `own_ns` of its own clock, and fetched batches for `data_ns`
        of it; `t_ns`: when that arrived."""
        if not self._has_recorded(t_ns):
            self._add_mark(MarkedSpan(rank, own_ns - evaluated_ns, own_ns, "evaluation", data_ns))

    def note_phase(self, rank: int, own_ns: int, t_ns: int, *, begins: bool) -> None:
        """A declared phase of a rank begins or ends; `t_ns`: when that arrived."""
        if self._has_recorded(t_ns):
            return
        if begins:
            self.declared.setdefault(rank, own_ns)
        elif (begin_ns := self.declared.pop(rank, None)) is not None:
            self._add_mark(MarkedSpan(rank, begin_ns, own_ns, "phase"))

    def note_saved(self, rank: int, own_ns: int, saved_ns: int, t_ns: int) -> None:
        """A rank has saved for so long until `own_ns` of its own clock; `t_ns`: when that arrived."""
        if not self._has_recorded(t_ns):
            self._add_mark(MarkedSpan(rank, own_ns - saved_ns, own_ns, "saving"))

    def note_compiled(self, rank: int, own_ns: int, compiled_ns: int, phase: int, t_ns: int) -> None:
        """A rank has waited for torch.compile for so long until `own_ns` of its own clock, in a `Phase`;
        `t_ns`: when that arrived."""
        if not self._has_recorded(t_ns):
            self._add_mark(MarkedSpan(rank, own_ns - compiled_ns, own_ns, "compiling", phase=phase))

    def is_restarting(self) -> Mask:
        """(ranks,) whether its present process has ended no complete step, while one before it has."""
        sessions = self._state.table.session[: len(self.session)]
        restarts = np.zeros(len(self.session), bool)
        restarts[: len(sessions)] = sessions != self.session[: len(sessions)]
        return np.asarray(restarts & (self.end_ns != NOT_BEGUN))

    def begin_group(self, t_ns: int) -> None:
        """Ranks restart: their steps begin at 0 again. `t_ns`: when that was known."""
        if self._has_recorded(t_ns):
            return
        self._is_past_resumed = True
        self.marks.clear()
        self._heard.clear()
        self.declared.clear()
        self.heartbeats.forget()

    @property
    def resumes_after(self) -> int | None:
        """The step after which this process's own sums begin; None: they have begun."""
        return None if self.resumed is None or self._is_past_resumed else self.resumed.step

    def _has_recorded(self, t_ns: int) -> bool:
        """Whether what arrived then is in the sums with which it began."""
        return self.resumed is not None and t_ns <= self.resumed.at_ns

    def take(
        self,
        numbers: Column,
        runs_of_peers: Iterable[tuple[slice, list[Peers]]],
        block: StepBlock,
        columns: Column,
        parts: Column | None,
        end_s: Column,
    ) -> list[DearWait]:
        """Add n complete steps of these numbers. `runs_of_peers`, `columns`, `parts`: as in `divide_steps`;
        `end_s`: (n,) when they ended, in seconds since the run started. Returns what was waited in the dear
        ones, in their order."""
        if not self.is_known or self._are_recorded(int(numbers[-1])):
            return []
        steps = self._divide(numbers, runs_of_peers, block, columns, parts)
        dear_before, dear = self.dear, steps.dear
        if dear is not None:
            self.dear = _add_by_kind(dear_before, dear, len(self.left_out))
        self._add(steps, block, end_s)
        kinds, waits = steps.kinds, _dear_waits(steps.times.waits, numbers, end_s, steps.lengths.is_dear)
        if dear is None or not self.scales_dear:
            return [wait._replace(kind=int(kinds[index])) for index, wait in waits]
        sum_dear = partial(_add_by_kind, dear_before, dear, len(self.left_out))
        return [
            wait._replace(kind=int(kinds[index]), dear=partial(sum_dear, until=index))
            for index, wait in waits
        ]

    def _divide(
        self,
        numbers: Column,
        runs_of_peers: Iterable[tuple[slice, list[Peers]]],
        block: StepBlock,
        columns: Column,
        parts: Column | None,
    ) -> _StepsByClass:
        """Divide the time of n steps into classes, and add what lies before the first of them. Arguments as
        of `take`."""
        wall = round_to_us(columns[0])
        self._resize(wall.shape[1])
        begin_ns, end_ns = block.spans_ns()
        begins_group = bool(numbers[0] == 0)
        late_start_ms, gap_ms = self._add_gap_before(begin_ns[0], begins_group=begins_group)
        aside = self._take_marks(begin_ns, end_ns, begins_group=begins_group) if self.marks else []
        times = divide_steps(
            runs_of_peers,
            block,
            columns,
            parts,
            aside,
            late_start_ms if begins_group else None,
            self._tails_before(numbers, wall.shape[1]),
            measures_aside=self.measures_aside,
        )
        before, self._newest, self._tails = self._newest, int(numbers[-1]), times.tail
        lengths = self._compare_lengths(numbers, wall, ~reduce_rows(np.logical_or, block.shadow))
        n_missing = np.diff(numbers, prepend=before if before >= 0 else numbers[0]) - 1
        between_ms, scaled_ms = self._gaps_between(begin_ns, end_ns, gap_ms, n_missing, lengths.usual_ms)
        without_phases = np.where(block.shadow, np.minimum(wall, LEFT_OUT * lengths.usual_ms[:, None]), 0.0)
        left_out = round_to_us(without_phases + scaled_ms)
        if aside:
            _put_aside_times(times, aside, block.shadow, wall - left_out)
        long = np.flatnonzero(lengths.is_long & (numbers > 0))
        kinds = _find_kinds(block, long, lengths.of_step_ms, aside)
        unexplained = long[~lengths.recorded[long] & (kinds[long] != NO_KIND)]
        for step in unexplained[lengths.of_step_ms[unexplained] >= LEAST_WITNESSED_MS].tolist():
            witnessed = self.heartbeats.witness(begin_ns[step], end_ns[step], lengths.usual_ms[step])
            if witnessed is not None:
                left_out[step] = round_to_us(np.minimum(wall[step], lengths.usual_ms[step]))
                lengths.is_dear[step], kinds[step] = True, WITNESSED
                self._put_witnessed(times, lengths, step, wall[step] - left_out[step], witnessed)
        self.heartbeats.drop_until(end_ns[-1])
        return _StepsByClass(
            numbers=numbers,
            wall=wall,
            end_ns=end_ns,
            times=times,
            lengths=lengths,
            between_ms=between_ms,
            known_between_ms=np.where((n_missing > 0)[:, None], scaled_ms, between_ms),
            left_out=left_out,
            kinds=kinds,
            dear=_find_dear(times, wall, lengths, kinds) if len(long) else None,
        )

    def _put_witnessed(
        self, times: ClassTimes, lengths: StepLengths, step: int, room_ms: Column, witnessed: Witnessed
    ) -> None:
        """Give what is not known of a long step, of at most `room_ms`, (ranks,), to what the ranks did in it.
        All steps before it are divided."""
        ranks = np.arange(len(room_ms))
        aside_ms = times.by_class[:, step].sum(axis=0)
        more_ms = np.maximum(room_ms - aside_ms, 0.0)
        times.by_class[witnessed.classes, step, ranks] += more_ms
        waiting_ms = times.by_class[WAITING, step]
        if witnessed.last < 0 or not waiting_ms.any():
            return
        place = self._place_of_last(times, lengths, step, witnessed)
        columns = [step], [witnessed.last], [place], [waiting_ms.sum()], [waiting_ms.max()]
        times.waits.append(StepWaits(*map(np.array, columns)))

    def _place_of_last(self, times: ClassTimes, lengths: StepLengths, step: int, witnessed: Witnessed) -> int:
        """Where the last rank was, as an index in WAIT_PLACES. Its stack does not tell where outside the
        phases: that is where it was in most of the waits for it there that were about as long."""
        last = witnessed.last
        of_last_ms = times.by_class[:, step, last]
        name = STEP_CLASSES[int(of_last_ms.argmax())]
        if name != "between":
            return WAIT_PLACES.index(cast("OwnPlace", name))
        power = math.frexp(float(times.by_class[WAITING, step].max()))[1]
        waited_ms = np.zeros(len(WAIT_PLACES))
        for place in _BETWEEN_PLACES:
            before = self.waits.get(last * len(WAIT_PLACES) + place, WaitSum())
            for near in (power - 1, power, power + 1):
                waited_ms[place] += before.dear[near].rank_ms({}) if near in before.dear else 0.0
        for wait in times.waits:
            powers = np.frexp(wait.longest_ms)[1]
            counts = (wait.last == last) & (wait.steps < step) & lengths.is_dear[wait.steps]
            counts &= np.isin(wait.place, _BETWEEN_PLACES) & (np.abs(powers - power) <= 1)
            np.add.at(waited_ms, wait.place[counts], wait.total_ms[counts])
        return int(waited_ms.argmax()) if waited_ms.any() else WAIT_PLACES.index("unknown")

    def _add(self, steps: _StepsByClass, block: StepBlock, end_s: Column) -> None:
        """Add n steps to the sums. `end_s`: as of `take`."""
        sums = self._add_steps(steps, block)
        self._add_usual(sums, steps)
        ranks = slice(0, steps.wall.shape[1])
        self.left_out[ranks] += steps.left_out.sum(axis=0)
        self.n_steps += len(steps.numbers)
        self.end_ns[ranks] = steps.end_ns[-1] + self.shift_ns[ranks]
        self.session[ranks] = self._state.table.session[ranks]
        self._add_bins(steps, end_s)
        kinds_of_dear = np.where(steps.lengths.is_dear, steps.kinds, NOT_DEAR)
        self._add_waits(steps.times.waits, steps.numbers, end_s, steps.lengths.is_usual, kinds_of_dear)

    def _compare_lengths(self, numbers: Column, wall: Column, recorded: Mask) -> StepLengths:
        """How long n steps of these numbers are; `wall`: (n, ranks) ms, `recorded`: (n,)."""
        of_step_ms = np.asarray(median(wall))
        usual_ms = self.usual_length.take(of_step_ms, recorded & (numbers > 0))
        is_long = of_step_ms > DEAR * usual_ms
        is_dear = recorded & (is_long | ((numbers == 0) & (of_step_ms > LONG_FIRST_MS)))
        is_usual = recorded & ~is_dear & (numbers > 0)
        return StepLengths(of_step_ms, usual_ms, recorded, is_usual, is_dear, is_long)

    def _tails_before(self, numbers: Column, n_ranks: int) -> Column | None:
        """(TAIL, ranks) ms of the step before these; None: it is not known."""
        is_next = self._newest == int(numbers[0]) - 1 and self._tails.shape[1] == n_ranks
        return self._tails if is_next and numbers[0] > 0 and self._state.missing.kept_every == 1 else None

    def _are_recorded(self, last_step: int) -> bool:
        """Whether steps up to this one are in the sums with which it began. No batch has steps before and
        after `resumes_after`."""
        resumed = self.resumed
        if resumed is None or self._is_past_resumed:
            return False
        self._is_past_resumed = (self._state.incarnation, last_step) > resumed[1:]
        return not self._is_past_resumed

    def _resize(self, world: int) -> None:
        """There are at least so many ranks."""
        more = world - len(self.left_out)
        if more <= 0:
            return
        self.by_class, self.usual = (
            np.pad(sums, ((0, 0), (0, more))) for sums in (self.by_class, self.usual)
        )
        self.usual_total, self.left_out = (
            np.pad(sums, (0, more)) for sums in (self.usual_total, self.left_out)
        )
        self.session, self.shift_ns = (np.pad(column, (0, more)) for column in (self.session, self.shift_ns))
        self.end_ns = np.pad(self.end_ns, (0, more), constant_values=NOT_BEGUN)
        self.dear = {kind: times.for_ranks(world) for kind, times in self.dear.items()}

    def _add_gap_before(self, begin_ns: Integers, *, begins_group: bool) -> tuple[Column, Column]:
        """Add the time before the first of some steps, where it is a start or a restart.

        `begin_ns`: (ranks,) when that step began, by the ranks' own clocks. Returns by how much later than
        the first rank each began, (ranks,) ms; and what lies between it and the step before, where that is
        known, as `_gaps_between` has it of the others."""
        ranks = slice(0, len(begin_ns))
        sessions = self._state.table.session[ranks]
        is_new = sessions != self.session[ranks]
        for rank in np.flatnonzero(is_new).tolist():
            hello = self._state.hello(rank)
            if hello is not None:
                self.shift_ns[rank] = hello.unix_ns - hello.monotonic_ns - self._state.started_ns
        before = self.end_ns[ranks]
        # A step that began before the run's first message: its collector was late, or clocks are apart.
        early_ns = np.minimum(begin_ns + self.shift_ns[ranks], 0)
        self.shift_ns[ranks] -= np.where(before == NOT_BEGUN, early_ns, 0)
        begin_ns = begin_ns + self.shift_ns[ranks]
        gap_ms = round_to_us(np.maximum(begin_ns - np.maximum(before, 0), 0) / NS_PER_MS)
        starts = before == NOT_BEGUN
        restarts = is_new & ~starts
        goes_on = ~(starts | restarts)
        for row, mask in (
            (_ROW["start"], starts),
            (_ROW["restart"], restarts),
            (_ROW["unknown"], goes_on & begins_group),
        ):
            self.by_class[row, ranks] += np.where(mask, gap_ms, 0.0)
        late_start_ms = np.asarray((begin_ns - begin_ns.min()) / NS_PER_MS)
        return late_start_ms, np.where(goes_on & (not begins_group), gap_ms, 0.0)

    def _gaps_between(
        self, begin_ns: Integers, end_ns: Integers, first_ms: Column, n_missing: Column, usual_ms: Column
    ) -> tuple[Column, Column]:
        """(n, ranks) ms between each step and the one before it, of which `n_missing`, (n,), are not there;
        `first_ms`: before the first. And the part of it that a thinned recording has left out, which is as
        long as usual."""
        gaps = np.zeros(begin_ns.shape)
        gaps[0] = first_ms
        if len(gaps) > 1:
            gaps[1:] = round_to_us(np.maximum((begin_ns[1:] - end_ns[:-1]) / NS_PER_MS, 0.0))
        if self._state.missing.kept_every == 1:
            return gaps, np.zeros(gaps.shape)
        most = np.maximum(n_missing, 0) * usual_ms * LEFT_OUT
        return gaps, np.minimum(gaps, most[:, None])

    def _add_steps(self, steps: _StepsByClass, block: StepBlock) -> Column:
        """Returns the sums by class, (STEP_CLASSES, ranks)."""
        times, wall = steps.times, steps.wall
        # `einsum` takes a fourth of the time of `sum` where ranks are few.
        ranks, sums = slice(0, wall.shape[1]), np.asarray(np.einsum("cnr->cr", times.by_class))
        unknown = wall + steps.between_ms - times.by_class.sum(axis=0) - steps.left_out
        joined = block.integers[FLAGS] & int(Flag.JOINED) != 0
        if joined.any():  # it has no batches any more, and answers the others' collectives
            self.by_class[_ROW["end"], ranks] += np.where(joined, unknown, 0.0).sum(axis=0)
            unknown = np.where(joined, 0.0, unknown)
        self.by_class[_STEP_ROWS, ranks] += sums
        self.by_class[_ROW["unknown"], ranks] += unknown.sum(axis=0)
        # The first batch, compilation, caches: also those of a first step are its start.
        if steps.numbers[0] == 0:
            name: LedgerClass = "restart" if self._state.incarnation else "start"
            work = times.by_class[: GC + 1, 0]
            self.by_class[_STEP_ROWS[: GC + 1], ranks] -= work
            self.by_class[_ROW["unknown"], ranks] -= unknown[0]
            self.by_class[_ROW[name], ranks] += work.sum(axis=0) + unknown[0]
        return sums

    def _add_usual(self, sums: Column, steps: _StepsByClass) -> None:
        """`sums`: as returned by `_add_steps`."""
        times, wall = steps.times, steps.wall
        ranks, others = slice(0, wall.shape[1]), np.flatnonzero(~steps.lengths.is_usual)
        # All are rounded by `round_to_us`: so what is left of the sums is exactly that of the usual steps.
        self.usual[:, ranks] += sums - times.by_class[:, others].sum(axis=1)
        self.usual_total[ranks] += wall.sum(axis=0) - wall[others].sum(axis=0)

    def _add_bins(self, steps: _StepsByClass, end_s: Column) -> None:
        """Add n steps to the bins of time."""
        n, is_usual, dear = len(steps.numbers), steps.lengths.is_usual, steps.dear
        # Without steps that were lost: of their time no wait is known.
        totals = reduce_rows(np.add, steps.wall) + steps.known_between_ms.sum(axis=1)
        waited = np.zeros(n)
        for wait in steps.times.waits:
            waited[wait.steps] += wait.total_ms
        columns = np.stack(
            [
                np.ones(n),
                totals,
                reduce_rows(np.add, steps.left_out),
                np.where(is_usual, totals, 0.0),
                np.where(is_usual, waited, 0.0),
                np.where(is_usual, 0.0, waited),
            ]
        )
        length_s = self.run_bin_s
        for number, sums, of_bin in _sums_by_bin(end_s / length_s, columns, dear):
            # Bins may have become longer since the first of these.
            self._add_run_bin(TimeBin.of(int(number * length_s // self.run_bin_s), sums, of_bin))
        for number, sums, of_bin in _sums_by_bin(end_s / RECENT_BIN_S, columns, dear):
            newest = self.recent_bins[-1] if self.recent_bins else None
            if newest is None or newest.number < number:
                self.recent_bins.append(TimeBin.of(number, sums, of_bin))
            else:
                newest.add(TimeBin.of(newest.number, sums, of_bin))

    def _add_waits(
        self,
        waits: Sequence[StepWaits],
        numbers: Column,
        end_s: Column,
        is_usual: Mask,
        kinds: Integers,
    ) -> None:
        """Add what was waited in n steps, whose recent bins are there. `kinds`: (n,) of recorded dear steps,
        NOT_DEAR of others."""
        bins = _bins_of_steps(end_s / RECENT_BIN_S)
        for number, sums in _wait_sums(waits, numbers, end_s, is_usual, kinds, bins):
            add_waits(self.waits, sums)
            bin_of_steps = next(
                (time_bin for time_bin in reversed(self.recent_bins) if time_bin.number <= number), None
            )
            if bin_of_steps is not None:
                add_waits(bin_of_steps.waits, sums)

    def _add_run_bin(self, more: TimeBin) -> None:
        bins = self.run_bins
        if bins and bins[-1].number >= more.number:
            bins[-1].add(more)
            return
        bins.append(more)
        while len(bins) > RUN_BINS:
            self.run_bin_s *= 2
            folded: list[TimeBin] = []
            for time_bin in bins:
                time_bin.number //= 2
                if folded and folded[-1].number == time_bin.number:
                    folded[-1].add(time_bin)
                else:
                    folded.append(time_bin)
            bins[:] = folded

    def _add_mark(self, mark: MarkedSpan) -> None:
        if len(self.marks) < MAX_MARKS:
            self.marks.append(mark)

    def aside_after_last_step(self, ranks: Indices) -> dict[AsidePlace, Column]:
        """(n,) ms of evaluations, saves, compilations and declared phases of n ranks, all of which have
        steps, after the last complete step of each, by place; empty where nothing is known of them."""
        if not self.marks_the_end or not self.marks or not len(ranks):
            return {}
        marks_of: dict[int, list[MarkedSpan]] = {rank: [] for rank in ranks.tolist()}
        for mark in self.marks:
            if mark.rank in marks_of:
                marks_of[mark.rank].append(mark)
        aside: dict[AsidePlace, Column] = {place: np.zeros(len(ranks)) for place in _INNER}
        for index, (rank, marks) in enumerate(marks_of.items()):
            last_end_ns = int(self.end_ns[rank] - self.shift_ns[rank])
            for place, ns in _divide_marks(marks, last_end_ns).items():
                aside[place][index] = ns / NS_PER_MS
        return aside

    def _take_marks(self, begin_ns: Integers, end_ns: Integers, *, begins_group: bool) -> list[AsideTime]:
        """Evaluations, saves, compilations and declared phases in these steps, (n, ranks) by the clocks of
        the ranks. What compiles in a first step of the group is its start."""
        marks, self.marks = self.marks, []
        self._heard.clear()
        inner_of = {place: defaultdict[int, list[MarkedSpan]](list) for place in _INNER}
        for mark in marks:
            if not mark.is_heard:
                inner_of[mark.place][mark.rank].append(mark)
        aside: dict[tuple[int, int, AsidePlace, int], tuple[float, float]] = {}
        for mark in sorted(marks, key=lambda mark: mark.place not in ("saving", "compiling")):
            if mark.rank >= begin_ns.shape[1]:
                continue
            begins, ends = begin_ns[:, mark.rank], end_ns[:, mark.rank]
            if mark.end_ns >= ends[-1]:
                self.marks.append(mark)
            inner = [span for place in _INNER[mark.place] for span in inner_of[place][mark.rank]]
            first = int(np.searchsorted(ends, mark.begin_ns, side="right"))
            if mark.place == "compiling" and begins_group:
                first = max(1, first)
            for step in range(first, len(ends)):
                if begins[step] > mark.end_ns:
                    break
                within = max(mark.begin_ns, int(begins[step])), min(mark.end_ns, int(ends[step]))
                ms: float = round(_uncovered_ns(within, inner) / NS_PER_MS)
                if mark.is_heard:
                    step_ns = int(begins[step]), int(ends[step])
                    measured = inner_of["evaluation"][mark.rank]
                    is_measured = any(_overlap_ns(evaluation, step_ns) for evaluation in measured)
                    ms = np.inf if not self.measures_aside else 0 if is_measured else ms
                key = step, mark.rank, mark.place, mark.phase
                before_ms, before_data_ms = aside.get(key, (0.0, 0.0))
                aside[key] = before_ms + ms, before_data_ms + max(0, mark.data_ns) / NS_PER_MS
        return [AsideTime(step, rank, place, *ms, phase) for (step, rank, place, phase), ms in aside.items()]


_BETWEEN_PLACES = [
    WAIT_PLACES.index(name)
    for name in ("before_forward", "between_steps", "before_backward", "before_optimizer", "after_optimizer")
]
"""The places of the class `between`."""

_INNER: Mapping[AsidePlace, tuple[AsidePlace, ...]] = {
    "compiling": (),
    "saving": ("compiling",),
    "evaluation": ("compiling", "saving"),
    "phase": ("compiling", "saving", "evaluation"),
}
"""What is no part of one of these that it lies in: each comes behind its own."""


def _divide_marks(marks: Sequence[MarkedSpan], begin_ns: int) -> dict[AsidePlace, int]:
    """How long one rank was in each place after `begin_ns`: every moment is in one of them."""
    measured = sorted(mark[1:3] for mark in marks if mark.place == "evaluation" and not mark.is_heard)
    begins, ends = [begin for begin, _ in measured], [*accumulate((end for _, end in measured), max)]

    def is_measured(heard: MarkedSpan) -> bool:
        n_before = bisect_left(begins, heard.end_ns)
        return n_before > 0 and ends[n_before - 1] > heard.begin_ns

    spans_of: dict[AsidePlace, list[tuple[int, int]]] = {place: [] for place in _INNER}
    for mark in marks:
        if mark.end_ns > begin_ns and not (mark.is_heard and is_measured(mark)):
            spans_of[mark.place].append((max(mark.begin_ns, begin_ns), mark.end_ns))
    divided: dict[AsidePlace, int] = {}
    spans: list[tuple[int, int]] = []
    covered_ns = 0
    for place, of_place in spans_of.items():
        spans += of_place
        before_ns, covered_ns = covered_ns, _covered_ns(spans)
        divided[place] = covered_ns - before_ns
    return divided


def _covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    """How much time lies in one of these spans or more."""
    covered, reached = 0, NOT_BEGUN
    for begin, end in sorted(spans):
        covered += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


def _overlap_ns(mark: MarkedSpan, within: tuple[int, int]) -> int:
    return max(0, min(mark.end_ns, within[1]) - max(mark.begin_ns, within[0]))


def _uncovered_ns(span: tuple[int, int], marks: Iterable[MarkedSpan]) -> int:
    """How much of the span none of these covers."""
    reached, end = span
    uncovered = 0
    for mark in sorted(marks, key=lambda mark: mark.begin_ns):
        uncovered += max(0, min(mark.begin_ns, end) - reached)
        reached = max(reached, min(mark.end_ns, end))
    return uncovered + max(0, end - reached)


_ROW: dict[LedgerClass, int] = {name: row for row, name in enumerate(LEDGER_CLASSES)}
_STEP_ROWS = [_ROW[name] for name in STEP_CLASSES]


class UsualLength:
    """The length of usual steps: the median of USUAL_STEPS steps, until so many more have come. It does not
    depend on how many steps are evaluated at once."""

    def __init__(self) -> None:
        self.usual_ms = 0.0
        self.newest: list[float] = []
        self.is_first = True

    def take(self, lengths: Column, counts: Mask) -> Column:
        """(n,) ms before each of n steps. `counts`: whether it counts itself."""
        usual = np.empty(len(lengths))
        begin = 0
        while begin < len(lengths):
            if self.is_first:
                end = begin + 1
                usual[begin] = _median_of_few(self.newest) if self.newest else lengths[begin]
            else:
                room = USUAL_STEPS - len(self.newest)
                end = min(len(lengths), begin + room)
                usual[begin:end] = self.usual_ms
            self.newest += lengths[begin:end][counts[begin:end]].tolist()
            if len(self.newest) >= USUAL_STEPS:
                self.usual_ms, self.newest, self.is_first = _median_of_few(self.newest), [], False
            begin = end
        return usual


def _median_of_few(values: Sequence[float]) -> float:
    """Some ten times faster than numpy's for a few numbers."""
    ordered, n = sorted(values), len(values)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


class StepLengths(NamedTuple):
    """How long n steps are beside usual ones, (n,) each."""

    of_step_ms: Column
    """Median over ranks."""
    usual_ms: Column
    recorded: Mask
    """Whether its phases are known of all ranks."""
    is_usual: Mask
    """Recorded, and not dear; a first step is not usual."""
    is_dear: Mask
    """Recorded, and dear."""
    is_long: Mask
    """As long as a dear step, recorded or not."""


class _StepsByClass(NamedTuple):
    """n steps, divided into the classes of the ledger; times in ms."""

    numbers: Column
    """(n,)."""
    wall: Column
    """(n, ranks); so are the others up to `left_out`."""
    end_ns: Integers
    """When each ended, by the ranks' own clocks."""
    times: ClassTimes
    lengths: StepLengths
    between_ms: Column
    """Between each step and the one before it."""
    known_between_ms: Column
    """`between_ms` without what steps took that were lost."""
    left_out: Column
    """What steps took whose phases were not recorded, at most as long as usual."""
    kinds: Integers
    """(n,) NO_KIND where a step is not dear."""
    dear: DearSteps | None
    """None: none of them is long."""


def _put_aside_times(
    times: ClassTimes, aside: Iterable[AsideTime], without_phases: Mask, room_ms: Column
) -> None:
    """Give evaluations, saves and compilations their classes in steps without phases, where they are known
    all the same; at most `room_ms`, (n, ranks)."""
    for time in aside:
        step = time.step, time.rank
        if without_phases[step]:
            in_class = times.by_class[STEP_CLASSES.index(time.place)]
            in_class[step] = min(time.ms, max(0.0, float(room_ms[step])))


NOT_DEAR = -(2**62)
"""Stands for the kind of a step that is not dear."""


def _find_kinds(block: StepBlock, long: Indices, of_step_ms: Column, aside: Iterable[AsideTime]) -> Integers:
    """(n,) the kinds of the `long` steps among n of these lengths; NO_KIND of the others."""
    kinds = np.full(len(of_step_ms), NO_KIND)
    if len(long):
        is_marked = np.isin(long, [time.step for time in aside])
        kinds[long] = _known_kinds(block, long, kinds_of_dear_steps(of_step_ms[long], is_marked))
    return kinds


def _find_dear(times: ClassTimes, wall: Column, lengths: StepLengths, kinds: Integers) -> DearSteps:
    """The dear steps, recorded and left out; `kinds`: (n,) WITNESSED where it is known otherwise what a step
    was, NO_KIND where it is none."""
    steps = np.flatnonzero(kinds > WITNESSED)
    wall_ms, recorded = wall[steps], lengths.recorded[steps]
    as_usual_ms = round_to_us(np.minimum(wall_ms, LEFT_OUT * lengths.usual_ms[steps, None]))
    return dear_steps(steps, kinds[steps], recorded, times.by_class[:, steps], wall_ms, as_usual_ms)


def _add_by_kind(before: DearSums, dear: DearSteps, n_ranks: int, *, until: int | None = None) -> DearSums:
    """The sums with these steps, or with those of them up to one; `before` stays as it is."""
    sums = {**before}
    for kind, times in (dear if until is None else dear.until(until)).by_kind().items():
        add_dear_times(sums, kind, times.for_ranks(n_ranks))
    return sums


def _known_kinds(block: StepBlock, steps: Indices, kinds: Integers) -> Integers:
    """The kinds of dear steps; NO_KIND where only some ranks were recorded, or one had no batches left."""
    shadow = block.shadow[steps]
    is_split = reduce_rows(np.logical_or, shadow) & ~reduce_rows(np.logical_and, shadow)
    has_joined = reduce_rows(np.logical_or, block.integers[FLAGS, steps] & int(Flag.JOINED) != 0)
    return np.where(is_split | has_joined, NO_KIND, kinds)


def _dear_sums(
    step: Integers, longest: Column, total: Column, numbers: Column, end_s: Column, kinds: Integers
) -> dict[int, DearSum]:
    """The sums over dear waits, by power of two of the longest wait. Of each wait, (waits,): its step, and
    how long one rank and all ranks waited. A step may have several waits for the same rank: for gradients and
    in other collectives."""
    sums: dict[int, DearSum] = {}
    for index in np.unique(step).tolist():
        of_step = step == index
        longest_ms, waits = float(longest[of_step].sum()), KindWaits(1, float(total[of_step].sum()))
        add_dear(sums, int(numbers[index]), float(end_s[index]), longest_ms, waits, int(kinds[index]))
    return sums


def add_dear(
    sums: dict[int, DearSum], step: int, end_s: float, longest_ms: float, waits: KindWaits, kind: int
) -> None:
    """Add what was waited in a dear step to sums by power of two of the longest wait."""
    power = math.frexp(longest_ms)[1]
    dear = sums.get(power)
    if dear is None:
        dear = sums[power] = DearSum(since_s=end_s, until_s=end_s)
    dear.add_waits(kind, waits)
    dear.longest_ms += longest_ms
    dear.since_s, dear.until_s = min(dear.since_s, end_s), max(dear.until_s, end_s)
    dear.steps.append(step)


def _dear_waits(
    waits: Sequence[StepWaits], numbers: Column, end_s: Column, is_dear: Mask
) -> list[tuple[int, DearWait]]:
    """Each with the index of its step."""
    sums: dict[tuple[int, int, int], list[float]] = {}
    for wait in waits if is_dear.any() else ():
        for i in np.flatnonzero(is_dear[wait.steps]).tolist():
            key = int(wait.steps[i]), int(wait.last[i]), int(wait.place[i])
            longest_ms, rank_ms = sums.get(key, (0.0, 0.0))
            sums[key] = [longest_ms + float(wait.longest_ms[i]), rank_ms + float(wait.total_ms[i])]
    return [
        (
            step,
            DearWait(rank, WAIT_PLACES[place], int(numbers[step]), float(end_s[step]), longest_ms, rank_ms),
        )
        for (step, rank, place), (longest_ms, rank_ms) in sorted(sums.items())
    ]


def _bins_of_steps(places: Column) -> Integers:
    """(n,) the bin in which each step ended. `places`: (n,) when that was, in lengths of a bin; a clock that
    is set back moves no step to an earlier bin."""
    return np.asarray(np.maximum.accumulate(np.floor(places).astype(np.int64)))


def _sums_by_bin(
    places: Column, columns: Column, dear: DearSteps | None
) -> Iterator[tuple[int, list[float], DearSums]]:
    """Number of each bin, the sums over the steps that ended in it, and the dear ones. `places`: (n,) when
    each step ended, in lengths of a bin."""
    numbers = _bins_of_steps(places)
    dear_of_bins = {} if dear is None else dear.by_bin(numbers)
    begins = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    sums = np.add.reduceat(columns, begins, axis=1)
    for number, of_bin in zip(numbers[begins].tolist(), sums.T.tolist(), strict=True):
        yield number, of_bin, dear_of_bins.get(number, {})


def _wait_sums(
    waits: Sequence[StepWaits],
    numbers: Column,
    end_s: Column,
    is_usual: Mask,
    kinds: Integers,
    bins: Integers,
) -> Iterator[tuple[int, WaitSums]]:
    """Number of each bin, and what was waited in its steps for each rank and place. Of each step, (n,): its
    number, its end, whether it has the usual length, its kind if it is dear (else NOT_DEAR), and its bin."""
    if not waits:
        return
    step, last, place, total, longest = (np.concatenate(column) for column in zip(*waits, strict=True))
    key = last * len(WAIT_PLACES) + place
    # The longest wait of a bin and key comes last, of equal ones the first.
    order = np.lexsort((-step, longest, key, bins[step]))
    step, key, total, longest = step[order], key[order], total[order], longest[order]
    of_bin, usual = bins[step], is_usual[step]
    begins = np.flatnonzero((np.diff(key, prepend=-1) != 0) | (np.diff(of_bin, prepend=of_bin[0]) != 0))
    ends = np.append(begins[1:], len(key))
    columns = np.stack([np.where(usual, total, 0.0), np.where(usual, 0.0, total)])
    columns = np.add.reduceat(columns, begins, axis=1)
    sums: dict[int, WaitSums] = {}
    for i, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        wait = WaitSum()
        wait.usual_ms, wait.other_ms = columns[:, i].tolist()
        wait.n_steps = len({*step[begin:end].tolist()})
        wait.longest_ms, wait.longest_step = float(longest[end - 1]), int(numbers[step[end - 1]])
        is_dear = kinds[step[begin:end]] != NOT_DEAR if wait.other_ms > 0 else ()
        if len(dear := begin + np.flatnonzero(is_dear)):
            wait.dear = _dear_sums(step[dear], longest[dear], total[dear], numbers, end_s, kinds)
        sums.setdefault(int(of_bin[begin]), {})[int(key[begin])] = wait
    yield from sums.items()
