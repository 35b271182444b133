"""The recorder's own cost, measured in the process itself, and the sampling that keeps it in its budget: of
bucket detail first, and of whole steps where that is not enough.

Counted is CPU time of the threads that run our code, never elapsed time: on a busy machine an interval of
20 us lasts 10 ms when the operating system runs another process in it, and a controller that counts those
stops recording exactly when the cause of a slow training is to be shown. On the training threads CPU time is
measured in three steps of every 32 (`ddptop.training.own_cost`), for the publisher always. What no clock
of ours can see is added as constants below. Every figure is a median over few and recent measurements: one
outlier changes nothing, and a change of load takes effect within `DETAIL_COSTS` of them.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from ddptop.protocol.limits import DEFAULT_BUDGET_PCT, REPORT_S
from ddptop.protocol.messages import Flag
from ddptop.training.medians import median_or_zero
from ddptop.training.own_cost import is_clocked
from ddptop.training.sampling_rates import SamplingRates
from ddptop.training.shadow import BLOCK
from ddptop.training.step_record import LeftOutSteps, StepRecord

USUAL_MAX_DETAIL_EVERY = 8
"""Bucket detail is taken in one of so many steps at least, unless the cost measured at this very rate is over
the budget: first steps run in cold caches or beside starting processes, and say little of later ones."""

MAX_DETAIL_EVERY = 4096
"""Bucket detail is taken in one of so many steps in any case: at 300 steps/s every 14 s."""

FULL_DETAIL_STEPS, FULL_DETAIL_NS = 200, 4_000_000_000
"""Steps in full detail before sampling begins, or their time in ns: they hold the first layouts, and a first
diagnosis. In steps of 50 to 120 ms 200 of them would be over the budget for 10 to 24 s."""

FEWEST_FULL_DETAIL_STEPS = 40
"""Least number of these steps: the first one alone may last longer, where it compiles the model."""

DETAIL_COSTS = 7
"""Measurements in the median cost of steps with bucket detail: with detail in every 32nd step those of the
last 224 steps."""

PLAIN_COSTS = 16
"""Measurements in the median cost of other steps, taken in every eighth one."""

PUBLISHED_PERIODS = 32
"""Periods of REPORT_S in the median of what the publisher takes: 8 s."""

REPORT_NS = REPORT_S * 1e9

RECENT_STEPS = 64
"""Steps in the median step time: an evaluation between two of them changes nothing."""

FILLED_SHARE = 0.75
"""Detail, or recorded steps, are taken twice as often only where that fills at most this share of the room
for them: else the interval would swing from batch to batch."""

LEAST_DETAIL_SHARE = 1 / 32
"""Share of the budget that detail may take even where the rest uses it up, as in steps of 30 to 40 ms: which
bucket is late is known by steps with detail alone."""

MAX_RECORD_EVERY = 64
"""One step in so many is recorded at least."""

LONGEST_GAP_NS = 62_500_000
"""Longest mean time between recorded steps at the usual budget: 12 to 16 a second are recorded (LONGER_GAP).
A slow rank is to be flagged within 3 s, and a delay of 7 % of the step takes 40 recorded steps
(`STEPS_NEEDED` of `own_time_rules.py`). With less than that budget only MAX_RECORD_EVERY is a bound."""

LONGER_GAP = 5 / 4
"""More steps are recorded again where the gap is so many times LONGEST_GAP_NS: steps that vary a little do
not change the pattern from batch to batch, which ranks do not do at the same step."""

WATCHED_STEPS = 72
"""Steps that are recorded one after the other where steps have become longer: a delay of 15 % of the step
takes 56 (`STEPS_NEEDED`)."""

LONGER_STEP = 17 / 16
"""Steps have become longer where the median of a batch is so many times the usual one."""

USUAL_BATCHES = 16
"""Batches whose median is the usual one: those of 4 to 8 s."""

RECORDING_SHARE = 3 / 4
"""Share of the budget that is for recording steps: where it takes more, more steps are left out. The rest is
for detail."""

CALM_BATCHES = 8
"""Fewer are left out only where there was room for that in so many batches in a row."""

ASIDE_NS = 6_000
"""What a step takes in which the recorder stands aside, until that is measured: 3 to 5 us in steps below
1 ms, more where caches are cold (RECORDER.md)."""

AFTER_UNSEEN_NS = 900
"""What an unseen step takes besides what is clocked of its end: torch's own code after it finds colder caches
(`tests/benchmarks/bench_left_out.py`; RECORDER.md)."""

EACH_PERIOD, EACH_SECOND_PERIOD, EACH_FOURTH_PERIOD, EACH_SIXTEENTH_PERIOD = 1, 2, 4, 16
"""How often the publisher takes the finished steps: once in so many periods of REPORT_S."""

SHORT_STEP_NS, LONG_STEP_NS = 4_000_000, 25_000_000
"""In steps longer than LONG_STEP_NS each second period is often enough: a slow rank is flagged at most 10
steps later. Between the two it would be 60 steps, for little of the usual budget."""

REPORTING_SHARE = 0.5
"""Steps are taken in each second period where all but bucket detail takes more than this share of the budget;
in steps longer than SHORT_STEP_NS, where the publisher alone does. They are taken in each sixteenth period
where the publisher still takes as much, of a budget below the usual one; and in each fourth one where steps
are too long for any to be left out, and all of it is over the budget."""

RARELY_LESS = 8
"""How many times less, at most, the publisher takes in each sixteenth period than in each second one."""

MAX_LOSS_EVERY = 8
"""Where the phases alone are over budget (steps of a few ms), the loss is read at least this often."""

LOSS_NS = 12_000
"""Reading the loss in a training loop of 3 ms steps, where its code is cold: measured 11 to 13 us."""

MAX_MARKS_EVERY = 16
"""Where a GPU waits for its host and the phases alone are over budget, it is marked at least so often."""

MARKS_NS = 100_000
"""Marking a step on a GPU, without reading its events: 74 us on the main thread and some on autograd's, in
steps of 1.9 ms (H200, 7 marks). Where not all steps are marked, the cost of others is measured."""

REPORTED_FROM_NS, REPORTED_BATCHES = 1_000_000_000, 3
"""The cost is reported from so much time of steps and so many batches on. The publisher's start is in the
first batch, which may hold a few short steps: it would be a third of them. The median of three batches leaves
it out."""

UNSEEN_FACTOR = 1.35
"""What our wrappers take in a step over what the clocks inside them see, which is less the colder the caches:
71 to 88 us of 99 to 121 (measured in steps of 4 ms, `tests/benchmarks/bench_calls.py`)."""

COLD_FACTOR, COLD_FROM_NS = 1.45, 67_000
"""Beyond COLD_FROM_NS a step without bucket detail takes COLD_FACTOR times what is counted with
UNSEEN_FACTOR: it lasts so long only where caches are cold, and there the clocks see less of it. Thread CPU of
steps with the recorder less that of steps without it (`tests/benchmarks/bench_parts.py`, one and two ranks,
steps of 0.2 to 7 ms, load 8 to 10) was 38, 44, 86, 177, 234 and 300 us. Counted without this constant were
37, 47, 104, 145, 183 and 125, with it 37, 47, 121, 180, 235 and 152."""

WRAPPER_NS = 2_000
"""Calling into and out of our eight wrappers in one step, which no clock inside them can see: a Python
call costs 0.1 to 0.3 us in a training loop."""

CALL_NS = 15_000
"""Overhead of each timed all-reduce outside our clocks: from C++ into Python and back, and the completion
callback, for which a thread of gloo takes the GIL. 15 us when hot on quiet cores, more on a busy machine."""


SAMPLING_SHARES = 0.05, 0.3
"""Least and most share of the budget that a series of stack samples takes. The least where the rest is over
the budget, as in steps of 20 ms: a look every 0.2 to 0.4 s, so that ten samples take some 5 s."""


class Budget:
    """Chooses N so that bucket detail every N-th step costs at most the budgeted share of step time.

    N is a power of two, so that ranks with different N still share detailed steps, and changes by one power
    of two at a time.
    """

    def __init__(self, budget_pct: float, *, full_detail: bool = False) -> None:
        self.budget_pct = budget_pct
        self.every = 1
        """The interval that this rank needs; a power of two."""
        self.announced = 1
        """The largest interval that any rank of the group needs, as the collector reports it."""
        self.loss_every = 1
        """How often the loss is read; a power of two."""
        self.marks_every = 1
        """How often a step is marked on the device; a power of two, 1 unless it waits for the host."""
        self.device_waits = False
        """Whether the device waits for the host, by the last marked steps; set by the publisher."""
        self.report_every = EACH_PERIOD
        """In so many periods the publisher takes the finished steps once."""
        self.reading_share = 0.0
        """Share of the time that reads of torch's flight recorder take, in which the GIL is held. A median of
        batches would show nothing of a read that comes every 8 s. Set by the publisher."""
        self.stack_share = 0.0
        """Share of a core that the present series of stack samples takes: in its own seconds it counts in
        full. Set by the publisher."""
        self.step_ns = 0.0
        """The median step; 0 while not known."""
        self.cost_us = 0.0
        """Own cost per step, in us: training threads and publisher."""
        self.cost_pct = 0.0
        """Own cost per step as a share of step time, in %."""
        self.every_step_pct = 0.0
        """What every step pays, also where the recorder stands aside, as a share of step time, in %."""
        self.full_detail = full_detail
        """Whether every step is to have bucket detail, whatever it costs."""
        self._steps = 0
        self._walls: deque[int] = deque(maxlen=RECENT_STEPS)
        self._plain: deque[float] = deque(maxlen=PLAIN_COSTS)
        self._detail: deque[float] = deque(maxlen=DETAIL_COSTS)
        self._after: deque[float] = deque(maxlen=PLAIN_COSTS)
        """Steps without detail right after one with it, at whose start the recorder was taken out."""
        self._after_detail = False
        self._aside: deque[float] = deque(maxlen=PLAIN_COSTS)
        """Steps in which the recorder stands aside."""
        self._publishing: deque[float] = deque(maxlen=PUBLISHED_PERIODS)
        """CPU time of the publisher as a share of elapsed time: it runs by the clock, not by the step."""
        self._published_ns = 0
        self._n_batches = self._accounted_ns = 0
        """Batches of steps accounted for, and their time."""
        self._record_every = 1
        self._calm_batches = 0
        """Batches in a row with room for twice as many recorded steps."""
        self._batch_steps: deque[float] = deque(maxlen=USUAL_BATCHES)
        """The median step of each of the newest batches."""
        self._watched_steps = 0
        """Steps that are still to be recorded because steps have become longer."""
        self._saved_ns = 0.0
        """What is left of the budget so far, in ns: for watched steps, WATCHED_STEPS recorded ones at
        most."""
        self._measured_here = 0
        """Detailed steps whose cost was measured since `every` last changed."""

    @classmethod
    def from_environment(cls) -> Budget:
        """DDPTOP_BUDGET (percent) and DDPTOP_DETAIL (`full` or `auto`), as the launcher has set them."""
        try:
            pct = float(os.environ.get("DDPTOP_BUDGET", ""))
        except ValueError:
            pct = DEFAULT_BUDGET_PCT
        return cls(pct, full_detail=os.environ.get("DDPTOP_DETAIL") == "full")

    @property
    def detail_every(self) -> int:
        """The interval in use: ranks sample the same steps, so that of the rank that needs the largest."""
        return max(self.every, self.announced)

    @property
    def record_every(self) -> int:
        """One in so many steps is recorded; a power of two."""
        return 1 if self._watched_steps > 0 else self._record_every

    @property
    def rates(self) -> SamplingRates:
        """What the recorder is to take."""
        return SamplingRates(self.detail_every, self.record_every, self.loss_every, self.marks_every)

    @property
    def reported_cost(self) -> tuple[float, float]:
        """`cost_us` and `cost_pct`; 0 while they are those of too short a time."""
        if self._accounted_ns < REPORTED_FROM_NS or self._n_batches < REPORTED_BATCHES:
            return 0.0, 0.0
        return self.cost_us, self.cost_pct

    @property
    def sampling_share(self) -> float:
        """Share of a core that a series of stack samples may take: what is left of the budget."""
        left_pct = self.budget_pct - self.cost_pct
        least_pct, most_pct = (share * self.budget_pct for share in SAMPLING_SHARES)
        return min(most_pct, max(least_pct, left_pct)) / 100.0

    def account_for(
        self, records: Sequence[StepRecord | LeftOutSteps], spent_ns: int, checks_ns: float = 0.0
    ) -> None:
        """Account for finished steps, and for what else of ours has run.

        `spent_ns`: CPU time since the last call, in ns: of the publisher, and what collections have cost.
        `checks_ns`: that of the replica checks per step.
        """
        self._published_ns += spent_ns
        if not records:
            return
        walls, n_steps, n_recorded = self._take_costs(records)
        self._steps += n_steps
        self._walls.extend(walls)
        self._note_elapsed(records[-1].end - records[0].begin)
        step = self.step_ns = median_or_zero(self._walls)
        recording_ns, extra_ns = self._recorded_step_ns()
        recording_ns += checks_ns
        if self.marks_every > 1:  # detailed steps are marked, which is in their cost
            recording_ns += MARKS_NS * max(0.0, 1 / self.marks_every - 1 / self.detail_every)
        published_ns = (median_or_zero(self._publishing) + self.reading_share + self.stack_share) * step
        every_step_ns = published_ns + self._aside_ns
        self.every_step_pct = 100.0 * every_step_ns / step if step else 0.0
        base_ns = published_ns + self._ns_per_step(recording_ns, self.record_every)
        own_ns = base_ns + extra_ns / self._detail_distance(self.detail_every)
        self.cost_us = own_ns / 1e3
        self.cost_pct = 100.0 * own_ns / step if step else 0.0
        if self.full_detail:
            return
        is_short = self._steps < FEWEST_FULL_DETAIL_STEPS or self._accounted_ns < FULL_DETAIL_NS
        if self._steps < FULL_DETAIL_STEPS and is_short:  # training begins
            self.report_every = EACH_PERIOD if step < LONG_STEP_NS else EACH_SECOND_PERIOD
            return
        budget_ns = self.budget_pct / 100.0 * step
        # What is read of all steps does not become rarer while more are recorded, which was saved before.
        usual_ns = published_ns + self._ns_per_step(recording_ns, self._record_every)
        self._choose_report_every(usual_ns, published_ns, budget_ns)
        self._choose_readings(usual_ns, budget_ns)
        self._choose_detail(base_ns, extra_ns, budget_ns)
        self._choose_record_every(recording_ns, budget_ns * RECORDING_SHARE - published_ns)
        self._saved_ns += n_steps * (budget_ns - own_ns)
        self._saved_ns = min(self._saved_ns, WATCHED_STEPS * recording_ns)
        self._watch_longer_steps(walls, n_recorded, WATCHED_STEPS * recording_ns / 2)

    def _note_elapsed(self, elapsed_ns: int) -> None:
        """Note how long a batch of steps took, and what the publisher took in it."""
        if elapsed_ns <= 0:
            return
        self._n_batches += 1
        # A batch that is taken rarely stands for several: what the first ones took is soon forgotten. A
        # pause in training does not count.
        n_periods = min(self.report_every, max(1, round(elapsed_ns / REPORT_NS)))
        self._publishing.extend([self._published_ns / elapsed_ns] * n_periods)
        self._published_ns = 0
        self._accounted_ns += elapsed_ns

    def _recorded_step_ns(self) -> tuple[float, float]:
        """CPU ns that a recorded step takes without bucket detail, and what detail adds to it: in its own
        step, and at the start of the step after it."""
        after = median_or_zero(self._after) if self._after else WRAPPER_NS
        # With detail in every second step there is no plain one: until it is rarer, all counts as detail's.
        plain = median_or_zero(self._plain) if self._plain else WRAPPER_NS
        detail = median_or_zero(self._detail)
        if self._detail:  # where all recorded steps have detail, that of others is an old one
            plain = min(plain, detail)
        recording_ns = in_cold_caches(plain)
        return recording_ns, max(0.0, detail - plain) + max(0.0, in_cold_caches(after) - recording_ns)

    def _take_costs(self, records: Sequence[StepRecord | LeftOutSteps]) -> tuple[deque[int], int, int]:
        """Take what the recorder has measured of its cost in these steps. Returns how long the newest of them
        were, in ns, how many there are, and how many of them are recorded."""
        n_steps = n_recorded = 0
        walls: deque[int] = deque(maxlen=RECENT_STEPS)
        for record in records:
            if isinstance(record, LeftOutSteps):
                are_many = len(record.ends) > RECENT_STEPS
                ends = record.ends[-RECENT_STEPS - 1 :] if are_many else (record.begin, *record.ends)
                walls.extend(end - begin for begin, end in pairwise(ends))
                self._after_detail = False
                n_steps += len(record.ends)
                continue
            n_steps += 1
            n_recorded += not record.flags & Flag.SHADOW
            walls.append(record.end - record.begin)
            detail = bool(record.flags & Flag.DETAIL)
            if is_clocked(record.step):
                self._costs_of(record.flags).append(
                    record.cost * UNSEEN_FACTOR + WRAPPER_NS + CALL_NS * len(record.calls)
                )
                self._measured_here += detail
            self._after_detail = detail
        return walls, n_steps, n_recorded

    def _costs_of(self, flags: int) -> deque[float]:
        """The costs that those of a step with these flags belong to."""
        if flags & Flag.SHADOW:
            return self._aside
        if flags & Flag.DETAIL:
            return self._detail
        return self._after if self._after_detail else self._plain

    def note_unseen_end(self, clocked_ns: int) -> None:
        """Note what was clocked of the end of an unseen step."""
        self._aside.append(clocked_ns + AFTER_UNSEEN_NS)

    @property
    def _aside_ns(self) -> float:
        """What a step takes in which the recorder stands aside."""
        return median_or_zero(self._aside) if self._aside else ASIDE_NS

    def _watch_longer_steps(self, walls: Sequence[int], n_recorded: int, least_ns: float) -> None:
        """Have steps recorded that have just become longer: one rank may have become slow.

        `walls`: of a batch; `n_recorded` of its steps are recorded. `least_ns`: what must be saved for that.
        """
        step, usual_ns = median_or_zero(walls), median_or_zero(self._batch_steps)
        self._batch_steps.append(step)
        self._watched_steps = max(0, self._watched_steps - n_recorded) if self._saved_ns > 0 else 0
        is_longer = len(self._batch_steps) > USUAL_BATCHES / 2 and step >= LONGER_STEP * usual_ns
        if is_longer and self._record_every > 1 and not self._watched_steps and self._saved_ns >= least_ns:
            self._watched_steps = WATCHED_STEPS

    def _ns_per_step(self, recording_ns: float, every: int) -> float:
        """CPU ns of the training thread per step, where each `every`-th one takes `recording_ns`."""
        return recording_ns if every <= 1 else recording_ns / every + self._aside_ns

    def _detail_distance(self, every: int) -> int:
        """Steps from one with bucket detail to the next, where `every`-th ones of those recorded have it."""
        return max(every, min(every, BLOCK) * self.record_every)

    def _choose_record_every(self, recording_ns: float, room_ns: float) -> None:
        """`room_ns`: what the training thread may take in a step without bucket detail."""
        every, step = self._record_every, self.step_ns
        rarest_ns = LONGEST_GAP_NS if self.budget_pct >= DEFAULT_BUDGET_PCT else math.inf
        with_more_ns = min(recording_ns, self._ns_per_step(recording_ns, every // 2))
        is_calm = every > 1 and with_more_ns <= FILLED_SHARE * room_ns
        # A batch that is taken rarely stands for several.
        n_batches = max(1, self.report_every // EACH_SECOND_PERIOD)
        self._calm_batches = self._calm_batches + n_batches if is_calm else 0
        is_rare = every > 1 and every * step > LONGER_GAP * rarest_ns
        if is_rare or self._calm_batches >= CALM_BATCHES:
            self._record_every, self._calm_batches = every // 2, 0
            return
        # The publisher's start is in the first batch.
        most = MAX_RECORD_EVERY if self._n_batches > 1 else min(2 * every, MAX_RECORD_EVERY)
        is_over = not is_calm
        while is_over and every < most and 2 * every * step <= rarest_ns:
            # Where recording takes less than standing aside, leaving steps out saves nothing.
            is_over = self._ns_per_step(recording_ns, every) > room_ns
            every = self._record_every = every * 2 if is_over else every

    def _choose_report_every(self, base_ns: float, published_ns: float, budget_ns: float) -> None:
        taken_ns = base_ns if self.step_ns < SHORT_STEP_NS else published_ns
        # More rarely both are less: back only where that, too, is far below.
        before, room_ns = self.report_every, REPORTING_SHARE * budget_ns
        is_short = self.step_ns < LONG_STEP_NS and before != EACH_SIXTEENTH_PERIOD
        if is_short and taken_ns <= room_ns / (1 if before == EACH_PERIOD else 2):
            self.report_every = EACH_PERIOD
            return
        is_over = published_ns > room_ns / (RARELY_LESS if before == EACH_SIXTEENTH_PERIOD else 1)
        if self.budget_pct < DEFAULT_BUDGET_PCT:
            is_rare = is_over and before != EACH_PERIOD
            self.report_every = EACH_SIXTEENTH_PERIOD if is_rare else EACH_SECOND_PERIOD
            return
        # Back only where there is room for twice as much of the publisher.
        is_over = base_ns > (1 - LEAST_DETAIL_SHARE) * budget_ns
        is_full = before == EACH_FOURTH_PERIOD and base_ns + published_ns > FILLED_SHARE * budget_ns
        is_rare = (is_over or is_full) and 2 * self.step_ns > LONGEST_GAP_NS
        self.report_every = EACH_FOURTH_PERIOD if is_rare else EACH_SECOND_PERIOD

    def _choose_readings(self, base_ns: float, budget_ns: float) -> None:
        """How often losses and marks are read. `base_ns`: what every step costs."""
        if base_ns > budget_ns and self.loss_every < MAX_LOSS_EVERY:
            self.loss_every *= 2
        elif self.loss_every > 1 and base_ns + LOSS_NS < budget_ns / 2:
            self.loss_every //= 2
        if not self.device_waits or (self.marks_every > 1 and base_ns + MARKS_NS < budget_ns / 2):
            self.marks_every = 1
        elif base_ns > budget_ns and self.marks_every < MAX_MARKS_EVERY:
            self.marks_every *= 2

    def _choose_detail(self, base_ns: float, extra_ns: float, budget_ns: float) -> None:
        """`extra_ns` is what a detailed step costs on top of what every step does, `base_ns`."""
        room_ns = max(budget_ns - base_ns, LEAST_DETAIL_SHARE * budget_ns)
        distance = self._detail_distance(self.every)
        if extra_ns > room_ns * distance:
            if self.every < USUAL_MAX_DETAIL_EVERY or (
                self._measured_here >= DETAIL_COSTS and self.every < MAX_DETAIL_EVERY
            ):
                self._change_interval(self.every * 2)
        elif self.every > 1 and 2 * extra_ns <= FILLED_SHARE * room_ns * distance:
            self._change_interval(self.every // 2)

    def _change_interval(self, every: int) -> None:
        self.every = every
        # What was measured at the rate before does not count for this one.
        self._measured_here = 0


def in_cold_caches(counted_ns: float) -> float:
    """What a step without bucket detail takes, by what is counted of it; in ns."""
    return counted_ns + (COLD_FACTOR - 1) * max(0.0, counted_ns - COLD_FROM_NS)
