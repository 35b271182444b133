"""Samples of the training thread's stack, taken by the publisher's thread: which line takes the time.

They are taken only while the collector asks, since the others wait for this rank, or while one step lasts
very long: some 50 within 10 s, fewer where the budget leaves less, and not again within a minute. The first
ten are sent at once, as somebody may be waiting for the line. A sample counts only where the rank is in the
place of the step that the collector names, and never while it waits for others.

Waking up for a look takes some 50 us of CPU time, a sample 45 more (measured beside other work, in cold
caches), and both together 185 in a process that sleeps 20 of 22 ms. It is measured, and looks are spread so
that a series takes what is left of the budget at most (`Budget.sampling_share`). The training thread loses
the interpreter lock for as long. While it is in a C call that holds this lock, nobody can look: how long that
was is measured, and said.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_native_id

from ddptop.protocol.evidence import StackSamples, requested_place
from ddptop.protocol.limits import NS
from ddptop.training.activity import current_place
from ddptop.training.evidence.call_tree import CallTree
from ddptop.training.guard import guard
from ddptop.training.recorder import Recorder
from ddptop.training.shadow import BLOCK

SAMPLES = 50
"""Samples of a series: the share of a call is then known within some 14 %."""

LONGEST_NS = 10 * NS
"""Length of a series at most. A rank is in the place for a part of each step only: 3 of 25 ms give 50 samples
in 10 s."""

SPREAD_NS, FEW_SAMPLES = 30 * NS, 10
"""A series goes on for so long if it has fewer samples until then, and its looks are apart for the budget. So
many are sent before the series is over."""

PAUSE_NS = 60 * NS
"""Pause after a series, before the next one of the same place or of a long step."""

LEAST_PAUSE_NS = 5 * NS
"""Pause after a series, before any other one."""

LOOK_NS, LONG_STEP_LOOK_NS = 20_000_000, 100_000_000
"""Time between two looks, on average, unless they cost too much."""

LONG_STEP_TIMES, LONG_STEP_NS = 10, NS
"""A step lasts very long from so many times the usual one on, and so long at least."""

LEAST_SHARE = 0.0002
"""Least share of a core that a series takes, in a run with next to no budget."""

SWITCH_S = 0.0005
"""`sys.setswitchinterval` during a series. A sample shows Python that runs for this long, or longer."""

LATE_NS = 50_000_000
"""A look that comes so late was kept waiting for the interpreter lock or for a CPU. A thread that runs Python
gives the lock away after 5 ms."""


@dataclass(slots=True)
class _Series:
    """The samples that are being taken."""

    number: int
    place: str
    counter: int
    """`Recorder.step` when it began."""
    step: int
    """The step that it began in: the next one, once an optimizer has stepped."""
    began_ns: int
    look_ns: int
    due_ns: int
    cpu_wait_ns: int
    """What the kernel has counted for this thread when it began."""
    share: float
    """Share of a core that it may take."""
    looks: int = 0
    cost_ns: int = 0
    """CPU time of these looks."""
    is_spread: bool = False
    """Whether looks are further apart than usual, for the budget."""
    late_ns: int = 0
    newest_ns: int = 0
    is_begin_sent: bool = False
    """Whether its first samples were sent."""
    tree: CallTree = field(default_factory=CallTree)


class StackSampler:
    """Takes one series of samples at a time. All methods on the publisher's thread."""

    def __init__(
        self,
        recorder: Recorder,
        training_thread: int,
        step_ns: Callable[[], float],
        share: Callable[[], float],
    ) -> None:
        """`training_thread`: its `get_ident()`. `step_ns`: how long a step usually lasts; 0: not known.
        `share`: of a core that a series may take."""
        self._recorder = recorder
        self._training_thread = training_thread
        self._step_ns = step_ns
        self._share = share
        self._waits_since_ns = 0
        """CPU time of this thread when it last began to wait for a look."""
        self._spent_ns = 0
        """CPU time of looks that `take_spent_ns` has not given yet."""
        self._answered = 0
        self._series: _Series | None = None
        self._ended_ns: dict[tuple[bool, str], int] = {}
        """By whether they were asked for, and the place: when the last series ended."""
        self._usual_switch_s: float | None = None
        """The interval that is to be set again after the series; None: it is set."""
        self._short_switch_s = 0.0
        self._looked_ns = 0
        """When this thread last ran; 0: not yet."""
        self._step = (-1, 0)
        """The running step, and since when it is."""
        self._random = random.Random(training_thread)  # the script's own random numbers stay as they are

    def next_sample_s(self) -> float | None:
        """How long until the next look; None: none is due."""
        series = self._series
        if series is None:
            return None
        self._waits_since_ns = time.thread_time_ns()
        return max(0.0, (series.due_ns - time.monotonic_ns()) / NS)

    @property
    def present_share(self) -> float:
        """Share of a core that the present series has taken since it began; 0: there is none."""
        series = self._series
        lasts_ns = 0 if series is None else time.monotonic_ns() - series.began_ns
        return series.cost_ns / lasts_ns if series is not None and lasts_ns > 0 else 0.0

    def take_spent_ns(self) -> int:
        """CPU time of the looks since the last call."""
        spent_ns, self._spent_ns = self._spent_ns, 0
        return spent_ns

    def take_due_sample(self, waited_s: float = 0.0) -> None:
        """Take a sample, if one is due and the training thread is where it matters. `waited_s`: how long this
        thread meant to wait since the last call."""
        now_ns = time.monotonic_ns()
        since_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        # The lock may have been taken at any moment of the wait, as likely in its first half as later.
        held_ns = since_ns - int(waited_s * NS / 2)
        # At the first look it is not known how long this thread was away.
        if self._series is None and since_ns < now_ns and self._is_long(held_ns):
            self._begin_late(held_ns, now_ns)
        series = self._series
        if series is None or now_ns < series.due_ns:
            return
        late_ns = now_ns - series.due_ns
        self._look(series, now_ns, late_ns)
        series.looks += 1
        cost_ns = time.thread_time_ns() - self._waits_since_ns
        series.cost_ns += cost_ns
        self._spent_ns += cost_ns
        spread_ns = series.cost_ns / series.looks / max(series.share, LEAST_SHARE)
        series.is_spread = spread_ns > series.look_ns
        # What was put off to recorded steps is made up for there.
        apart_ns = max(series.look_ns, spread_ns * series.looks - (now_ns - series.began_ns))
        # Not at a fixed rhythm, which the steps may have, too.
        later_ns = int(apart_ns * (0.5 + self._random.random()))
        series.due_ns = now_ns + later_ns + self._until_recorded_ns(later_ns)

    def _until_recorded_ns(self, later_ns: int) -> int:
        """From `later_ns` from now to somewhere in the next recorded steps, as far as can be foreseen; 0:
        that is in one, or nothing is known. Where the recorder stands aside a look would be wasted."""
        step_ns = self._step_ns()
        if step_ns <= 0:
            return 0
        steps = self._recorder.shadow.steps_until_recorded(self._recorder.step + int(later_ns / step_ns))
        return int((steps + BLOCK * self._random.random()) * step_ns) if steps else 0

    def _look(self, series: _Series, now_ns: int, late_ns: int) -> None:
        recorder = self._recorder
        # Where the recorder stands aside it is not known in which place the training thread is.
        if self._is_cost_measured() or (recorder.shadow.flag and series.place):
            return
        if series.newest_ns and self._is_over(series, now_ns):
            return
        series.late_ns += late_ns if late_ns > LATE_NS else 0
        series.newest_ns = now_ns
        place = current_place(recorder)
        # A series of a long step has no place: any will do.
        if place is None or place != (series.place or place):
            return
        frame = sys._current_frames().get(self._training_thread)
        if frame is not None:
            try:
                series.tree.add_sample(frame)
            except Exception as error:  # noqa: BLE001 - costs a series of samples, not the rank's records
                guard.caught(error)
                self.end_series()

    def take_samples(self, request: int) -> StackSamples | None:
        """To be called repeatedly with the number of the newest ASK; the samples once a series is over.

        Of a series that was asked for the first ones as well, in a message that the later one replaces.
        """
        now_ns = time.monotonic_ns()
        if self._recorder.step != self._step[0]:
            self._step = self._recorder.step, now_ns
        series = self._series
        if series is None:
            self._begin_series(request, now_ns)
            return None
        if not self._is_over(series, now_ns):
            if series.is_begin_sent or not series.number or series.tree.n_samples < FEW_SAMPLES:
                return None
            series.is_begin_sent = True
            return self._make_message(series)
        self.end_series()
        self._ended_ns[series.number > 0, series.place] = now_ns
        shows_nothing = not series.tree.n_samples and series.late_ns < LONG_STEP_NS
        # A question is answered in any case; otherwise nobody waits for it.
        return None if shows_nothing and not series.number else self._make_message(series)

    def _begin_series(self, request: int, now_ns: int) -> None:
        if self._is_cost_measured():
            return
        if self._is_long(now_ns - self._step[1]) and self._is_rested(False, "", now_ns):
            self._series = self._new_series(0, "", LONG_STEP_LOOK_NS, now_ns)
            return
        if now_ns - max(self._ended_ns.values(), default=-LEAST_PAUSE_NS) < LEAST_PAUSE_NS:
            return
        is_asked, self._answered = request != self._answered, request
        if is_asked and self._is_rested(True, requested_place(request), now_ns):
            self._series = self._new_series(request, requested_place(request), LOOK_NS, now_ns)

    def _is_long(self, lasts_ns: int) -> bool:
        usual_ns = self._step_ns()
        return usual_ns > 0 and lasts_ns > max(LONG_STEP_NS, LONG_STEP_TIMES * usual_ns)

    def _begin_late(self, held_ns: int, now_ns: int) -> None:
        """This thread could not run for so long: a C call has held the interpreter lock, and has just ended.
        The training thread is mostly still in the line that has called it."""
        if self._is_rested(False, "", now_ns) and not self._is_cost_measured():
            series = self._new_series(0, "", LONG_STEP_LOOK_NS, now_ns)
            series.began_ns = now_ns - held_ns
            series.due_ns = series.began_ns + LOOK_NS
            self._series = series

    def _is_cost_measured(self) -> bool:
        """Whether the running step is one of a shadow block, and not left out for the budget."""
        shadow = self._recorder.shadow
        return bool(shadow.flag) and shadow.every == 1

    def _is_rested(self, asked: bool, place: str, now_ns: int) -> bool:
        """Whether the last series of this kind ended long enough ago."""
        return now_ns - self._ended_ns.get((asked, place), -PAUSE_NS) >= PAUSE_NS

    def end_series(self) -> None:
        """Take no more samples of this series."""
        self._series = None
        if self._usual_switch_s is not None:
            # Unless the script has chosen another one meanwhile.
            if sys.getswitchinterval() == self._short_switch_s:
                sys.setswitchinterval(self._usual_switch_s)
            self._usual_switch_s = None

    def _switch_quickly(self) -> None:
        """Get the interpreter lock soon after asking for it. Else Python that runs for less than 5 ms is
        never seen: what follows it and gives the lock away is, in its place.

        Only where no other thread runs Python, so that the interval concerns this thread alone.
        """
        usual_s = sys.getswitchinterval()
        # This thread and the training thread.
        if len(sys._current_frames()) <= 2 and usual_s > SWITCH_S:
            sys.setswitchinterval(SWITCH_S)
            self._usual_switch_s, self._short_switch_s = usual_s, sys.getswitchinterval()

    def _new_series(self, number: int, place: str, look_ns: int, now_ns: int) -> _Series:
        self._switch_quickly()
        due_ns = now_ns + look_ns
        counter = self._recorder.step
        step = counter + self._recorder.has_stepped
        share, cpu_wait_ns = self._share(), _cpu_wait_ns()
        return _Series(number, place, counter, step, now_ns, look_ns, due_ns, cpu_wait_ns, share)

    def _is_over(self, series: _Series, now_ns: int) -> bool:
        goes_on = series.is_spread and series.tree.n_samples < FEW_SAMPLES
        longest_ns = SPREAD_NS if goes_on else LONGEST_NS
        if series.tree.n_samples >= SAMPLES or now_ns - series.began_ns >= longest_ns:
            return True
        if series.number:  # a step that lasts very long has a series of its own, also in the same place
            begins_own = self._is_rested(False, "", now_ns) or current_place(self._recorder) != series.place
            return begins_own and self._is_long(now_ns - self._step[1])
        return self._recorder.step != series.counter

    def _make_message(self, series: _Series) -> StackSamples:
        # What it waited for a CPU was not the lock.
        held_ns = series.late_ns - (_cpu_wait_ns() - series.cpu_wait_ns)
        newest_ns = series.newest_ns or series.began_ns
        return StackSamples(
            t_ns=newest_ns,
            number=series.number,
            step=series.step,
            place=series.place,
            samples=series.tree.n_samples,
            lasted_ms=(newest_ns - series.began_ns) // 1_000_000,
            held_ms=max(0, held_ns) // 1_000_000,
            calls=series.tree.most_sampled(),
        )


def _cpu_wait_ns() -> int:
    """How long this thread has waited for a CPU so far, as `cpu_wait.py` reads it; 0: not known."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/self/task/{get_native_id()}/schedstat").read_text().split()[1])
    return 0
