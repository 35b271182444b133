"""Runs the messages of a recording through the analysis, and keeps samples of the group and all incidents.

A `Sample` is a frame at a fixed interval of steps. Incidents (stalls, deaths, alerts) are noted when they
occur, since the last frame of a run shows only some of them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import fields, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from ddptop.analysis.health.outside_end import outside_end
from ddptop.analysis.rank_messages import FEED_FAILURES
from ddptop.analysis.reducer import Reducer
from ddptop.analysis.to_frame.tables import gpu_facts
from ddptop.frames.conditions import STALLS, condition_of
from ddptop.frames.frame import Alert
from ddptop.frames.stall import Stall
from ddptop.frames.verdict import compares_own_times, skew_pct
from ddptop.protocol.evidence import Evidence, StackSamples
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import IN_INITIALIZATION, Event, Hello, Run, Steps
from ddptop.report.content import StallPeriod

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.frames.columns import Column, Indices
    from ddptop.frames.conditions import AlertKind
    from ddptop.frames.frame import Frame, LoggedEvent
    from ddptop.frames.history import History
    from ddptop.frames.stall import Death
    from ddptop.protocol.message_run import MessageRun
    from ddptop.protocol.messages import Received

SAMPLE_STEPS = 100
"""Steps between two samples. The analysis takes medians over 100 steps, so most steps are in one sample."""

MIN_SAMPLE_STEPS = 10
"""Least steps between two samples, in a short run: the precision of a straggler's begin and end."""

MIN_SAMPLES = 60
"""Least samples of a short run."""

MAX_SAMPLES = 240
"""Most samples: one of 8 ranks takes a few ms, so all of them one or two seconds."""

MAX_POINTS = 2**20
"""Points of history kept: more than the steps that a report reads."""

STALL_CHECK_NS = NS
"""Interval between two checks for a stall."""

STALL_AGE_SHARE = 10
"""A stall is diagnosed again after a tenth of its age, but at least every minute."""

MAX_STALL_INTERVAL_NS = 60 * NS

FEW_HOSTS = 16
"""Hosts whose figures a sample has, and those of their GPUs; of more hosts it has the clocks only."""

LOG_FULL = 100
"""The log of the analysis drops its oldest entry when it holds more than this."""

SAME_STALL_S = 1.0
"""Two diagnoses whose begins are closer than this are of the same stall."""


def sample_interval(steps: int) -> int:
    """Steps between two samples of a run of which `steps` steps are read."""
    return max(MIN_SAMPLE_STEPS, min(SAMPLE_STEPS, steps // MIN_SAMPLES), steps // MAX_SAMPLES)


class Sample(NamedTuple):
    """A frame, and the history of the steps since the last sample."""

    frame: Frame
    points: History
    """The steps since the last sample."""
    recoverable: Column
    """Milliseconds that each of these steps loses to skew: by own times the same share of each, by arrivals
    NaN without bucket detail."""
    stretch: int
    """Number of the stretch: between samples with the same number no steps were skipped."""


class RunSampler:
    """Takes messages in order and samples the group. Call `gap` where rows of steps are skipped."""

    def __init__(self, every: int = MIN_SAMPLE_STEPS) -> None:
        """`every`: complete steps from one sample to the next."""
        self.reducer = Reducer(history_points=MAX_POINTS)
        self.reducer.evaluation.for_views = False
        self.samples: list[Sample] = []
        self.incidents = Incidents(self.reducer)
        self.first_ns: int | None = None
        self.last_ns = 0
        self._every = every
        self._cursor = self._stretch = 0
        self._sampled_step: int | None = None
        """The complete step at the last sample."""
        self._in_gap = False
        """Rows of steps are being skipped."""

    def feed_message(self, received: Received) -> None:
        """Take the next message. Raises what `Reducer.feed` raises."""
        message, t_ns = received.message, received.t_ns
        if self.first_ns is None:
            self.first_ns = t_ns
        if self._replaces_processes(message):
            # The state of the processes that ended is discarded with this message.
            self.take_sample()
            self._stretch += 1
        # A batch that arrives late must not set the clock back.
        self.last_ns = max(self.last_ns, t_ns)
        if self._in_gap:
            # Steps are skipped, so that time without a step is not a stall.
            self.reducer.state.excuses.declared_ns = self.last_ns
            self._in_gap = not isinstance(message, Steps)
        self.reducer.feed(received)
        if isinstance(message, Steps):
            self._after_steps()
        elif isinstance(message, Run) and message.state != "live":
            self.take_sample()
        self.incidents.after_message(received, self.last_ns)

    def feed_run(self, run: MessageRun, on_failure: Callable[[], None]) -> None:
        """Take the messages of a run; `on_failure` as in `Reducer.feed_run`."""
        place, noted = 0, self._places_to_feed(run)
        while place < len(run):
            complete, sampled = self.reducer.complete_step, self._sampled_step
            stop = place
            if sampled is None:
                steady = self.first_ns is not None and complete is None
            else:
                steady = complete is not None and complete >= sampled
            # No sample is due before the next unusual message: the reducer takes these in columns.
            if steady and not self._in_gap:
                following = bisect_left(noted, place)
                stop = noted[following] if following < len(noted) else len(run)
            if stop == place:
                place += 1
                try:
                    self.feed_message(run.received(place - 1))
                except FEED_FAILURES:
                    on_failure()
                continue
            begin = place
            place = self.reducer.feed_run(
                run,
                begin,
                on_failure,
                stop=stop,
                stop_ns=self.incidents.next_check_ns(),
                stop_step=0 if sampled is None else sampled + self._every,
            )
            newest_ns = np.maximum.accumulate(np.maximum(run.heads[0, begin:place], self.last_ns))
            self.last_ns = int(newest_ns[-1])
            self._after_steps()
            self.incidents.pass_over(newest_ns[:-1])
            self.incidents.after_messages(place - begin, self.last_ns)

    def _places_to_feed(self, run: MessageRun) -> list[int]:
        """Places of the messages that `feed` has to take. It need not take the HELLO of a rank's first
        process."""
        known_ranks = set[int]()
        noted: list[int] = []
        for place, received in run.unusual_within(0, len(run)):
            message = received.message
            if isinstance(message, Hello):
                if message.rank in known_ranks or self._replaces_processes(message):
                    noted.append(place)
                known_ranks.add(message.rank)
            elif isinstance(message, (Run, Evidence, StackSamples)) or self._replaces_processes(message):
                noted.append(place)
        return noted

    def skip_rows(self) -> None:
        """Rows are skipped from here on: they do not count as lost, and their time is not a stall."""
        self.take_sample()
        self._stretch += 1
        self._sampled_step = None
        self.reducer.state.tail = True
        self.reducer.state.ledger.is_known = False
        for member in self.reducer.state.ranks:
            session = self.reducer.state.session_of(member)
            if session is not None:
                # The next steps of this process begin anew: those between are not counted as lost.
                session.begun = False
        self.incidents.end_stall(self.last_ns)
        self._in_gap = True

    def take_sample(self, *, hosts: bool = False) -> Frame:
        """Sample the group now. `hosts`: with the figures of hosts and GPUs, as samples of few hosts have."""
        state = self.reducer.state
        hosts = hosts or len(state.presence.hellos.of_hosts) <= FEW_HOSTS
        # Figures of GPUs are of use only for a straggler, and take long with many ranks.
        frame = self.reducer.frame(self.last_ns, cursor=self._cursor, gpus=False, hosts=hosts)
        if hosts and frame.straggler is not None:  # its GPU beside those of the others
            frame = replace(frame, gpus=gpu_facts(state))
        self._cursor = frame.history.start + len(frame.history.step)
        self._sampled_step = state.complete_step
        if len(frame.history.step):
            self.samples.append(Sample(frame, frame.history, self._recoverable_ms(frame), self._stretch))
        self.incidents.note_frame(frame)
        return frame

    def _recoverable_ms(self, frame: Frame) -> Column:
        count = len(frame.history.step)
        recoverable = np.full(count, np.nan)
        share_pct = skew_pct(frame)
        if compares_own_times(frame) and share_pct is not None:
            return np.asarray(frame.history.step_ms * (share_pct / 100), np.float64)
        window = self.reducer.state.figures.detail
        if window is None or frame.group.clock_free or frame.group.no_straggler_ms is None:
            return recoverable
        slots = window.group.recent(count)
        place = window.group.of("point", slots) - frame.history.start
        new = place >= frame.history.early
        recoverable[place[new].astype(np.int64)] = window.group.of("recoverable", slots)[new]
        return recoverable

    def _replaces_processes(self, message: object) -> bool:
        """Whether a rank had another process before, or all had: the first message of a restart says so."""
        state = self.reducer.state
        if isinstance(message, Hello):
            has_process = message.rank < len(state.ranks) and state.ranks[message.rank].hello is not None
            replaced = has_process and state.ranks[message.rank].session != message.session
            return replaced or (len(state.ranks) > 0 and message.incarnation > state.incarnation)
        if isinstance(message, Event) and message.kind == IN_INITIALIZATION:
            restart = message.fields.get("restart")
            return isinstance(restart, int) and restart > state.incarnation
        return False

    def _after_steps(self) -> None:
        complete = self.reducer.complete_step
        if complete is None:
            return
        if self._sampled_step is None or complete < self._sampled_step:
            self._sampled_step = complete
        elif complete - self._sampled_step >= self._every:
            self.take_sample()


class Incidents:
    """Stalls, deaths and alerts of a run, noted while its messages are fed to the analysis."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer, self._log = reducer, reducer.state.log
        self.stalls: list[StallPeriod] = []
        self._deaths: dict[tuple[int, int, int | None], Death] = {}
        """By elastic restart, rank and pid."""
        self._troubles: dict[tuple[str, int | None], Alert] = {}
        """By kind; of losses by their first step, too."""
        self._newest_alerts: tuple[Alert, ...] = ()
        """The alerts in the newest frame."""
        self._older: list[LoggedEvent] = []
        self._newer: tuple[LoggedEvent, ...] = ()
        self._since_log_read = 0
        """Messages since the log was last read."""
        self._checked_ns = self._diagnosed_ns = 0
        self._stalled_ns: int | None = None
        self._is_noted = False
        """The present stall is among `stalls`."""

    @property
    def deaths(self) -> tuple[Death, ...]:
        """All deaths in order of time; a death that caused others comes before them."""
        return tuple(self._deaths.values())

    @property
    def troubles(self) -> tuple[Alert, ...]:
        """Alerts that were active at any time, in order of time, with those that no sample contains."""
        averages = any(entry.kind == "averaged" for entry in self.events)
        active_kinds = {alert.kind for alert in self._newest_alerts}
        said_by_stalls = {stall.sentence for stall in self.stalls}

        def is_over(kind: str) -> bool:
            return averages and condition_of(kind).over_when_averaged and kind not in active_kinds

        alerts = [
            alert
            for alert in self._troubles.values()
            if not is_over(alert.kind)
            and not (condition_of(alert.kind).said_by_stall and alert.message in said_by_stalls)
        ]
        known_since: set[tuple[str, float]] = {
            (alert.kind, alert.since_s if alert.step is None else alert.step) for alert in alerts
        }
        for entry in sorted(self.events, key=lambda entry: -1 if entry.step is None else entry.step):
            key = (entry.kind, entry.unix_s if entry.step is None else entry.step)
            in_report = condition_of(entry.kind).in_report
            passed = in_report == "passing" and not is_over(entry.kind) and entry.severity != "info"
            is_told = key in known_since or any(self._follows_other_loss(entry, alert) for alert in alerts)
            if (passed or in_report == "from_log") and not is_told:
                known_since.add(key)
                kind = cast("AlertKind", entry.kind)
                alert = Alert(kind, entry.severity, entry.rank, entry.step, entry.unix_s, entry.message)
                alerts.append(replace(alert, incarnation=entry.incarnation))
        return tuple(sorted(alerts, key=lambda alert: alert.since_s))

    @property
    def events(self) -> tuple[LoggedEvent, ...]:
        """All entries of the log, oldest first."""
        self._read_log()
        return (*self._older, *self._newer)

    def _follows_other_loss(self, entry: LoggedEvent, alert: Alert) -> bool:
        """Whether a loss is not finite in steps in which another rank's was not before: all ranks train on
        its gradients."""
        if entry.kind != "nan" or alert.kind != "nan" or entry.incarnation != alert.incarnation:
            return False
        if entry.step is None or alert.step is None:
            return False
        return alert.step <= entry.step < self._finite_step(alert, alert.step)

    def _finite_step(self, alert: Alert, first_step: int) -> float:
        """The step in which a loss is finite again. Where no frame shows it, as between two samples of long
        steps, the second one after the first: its gradients have reached all ranks in between."""
        finite_step = alert.evidence.get("finite_step")
        if isinstance(finite_step, int):
            return finite_step
        lasting = (new for new in self._newest_alerts if new.kind == "nan" and new.severity == "critical")
        is_lasting = (alert.rank, first_step) in [(new.rank, new.step) for new in lasting]
        return inf if is_lasting else first_step + 2

    def next_check_ns(self) -> int:
        """When the next check for a stall is due that may find one."""
        quiet_ns = 0 if self._stalled_ns is not None else self._reducer.progress_until_ns()
        return max(self._checked_ns + STALL_CHECK_NS, quiet_ns)

    def pass_over(self, newest_ns: Indices) -> None:
        """Messages before the next such check: with some of them one was due. `newest_ns`: ascending."""
        index = 0
        while index < len(newest_ns):
            index = int(np.searchsorted(newest_ns, self._checked_ns + STALL_CHECK_NS))
            if index < len(newest_ns):
                self._checked_ns = int(newest_ns[index])

    def after_message(self, received: Received, now_ns: int) -> None:
        """Call after every message."""
        if isinstance(received.message, Evidence):
            self._diagnosed_ns = 0
        self.after_messages(1, now_ns)

    def after_messages(self, count: int, now_ns: int) -> None:
        """Call after so many messages, none of them with evidence."""
        self._since_log_read += count
        if self._since_log_read >= LOG_FULL // 2:
            self._read_log()
        new = self._reducer.stall_is_logged and not self._is_noted
        if now_ns - self._checked_ns >= STALL_CHECK_NS or new:
            self._checked_ns = now_ns
            self._check_for_stall(now_ns, new)

    def note_frame(self, frame: Frame) -> None:
        """Note the deaths and alerts of a frame, and the stall in which ranks have ended."""
        if frame.stall is not None and frame.stall.ended_s is not None:
            self._note_period(_stall_period(frame, frame.stall))
        if any(alert.kind == "ended_from_outside" for alert in frame.alerts):
            self._forget_explained(frame)
        else:  # the run has gone on since
            self._troubles.pop(("ended_from_outside", None), None)
        for death in frame.deaths:
            process = (death.incarnation, death.rank, death.position.pid)
            self._deaths.pop(process, None)  # the order of the newest frame is the most accurate
            self._deaths[process] = death
        self._newest_alerts = frame.alerts
        for alert in frame.alerts:
            in_report = condition_of(alert.kind).in_report
            if in_report in ("own_section", "from_log"):
                continue
            key = (alert.kind, alert.step if alert.kind == "nan" else None)
            first_alert = self._troubles.get(key)
            if first_alert is not None and in_report == "passing":
                # The first alert of such a kind says most; of a loss the last one says its end, and whether
                # other ranks have it since the same step.
                if alert.kind == "nan" and (alert.severity == "warning" or alert.rank != first_alert.rank):
                    self._troubles[key] = replace(
                        first_alert, rank=alert.rank, message=alert.message, evidence=alert.evidence
                    )
                continue
            since_s = alert.since_s if first_alert is None else min(first_alert.since_s, alert.since_s)
            incarnation = frame.group.incarnation if first_alert is None else first_alert.incarnation
            self._troubles[key] = replace(alert, since_s=since_s, incarnation=incarnation)

    def _forget_explained(self, frame: Frame) -> None:
        """Forget the deaths of the present processes that an end from outside explains."""
        for rank, pid in enumerate(frame.ranks.pid):
            process = (frame.group.incarnation, rank, int(pid) if isfinite(pid) else None)
            self._deaths.pop(process, None)

    def _check_for_stall(self, now_ns: int, new: bool) -> None:
        since_ns = self._reducer.stalled_since(now_ns)
        if since_ns is None:
            self.end_stall(now_ns)
            return
        self._stalled_ns = since_ns
        if new or now_ns - self._diagnosed_ns >= min(
            MAX_STALL_INTERVAL_NS, (now_ns - since_ns) // STALL_AGE_SHARE
        ):
            self._diagnosed_ns = now_ns
            self.note_stall(self._reducer.frame(now_ns, gpus=False, hosts=False))

    def note_stall(self, frame: Frame) -> None:
        """Note the stall of a frame. The newest diagnosis counts unless only an earlier one is conclusive."""
        self.note_frame(frame)
        if frame.stall is not None and frame.stall.ended_s is None and self._was_shown(frame.stall):
            self._note_period(_stall_period(frame, frame.stall))

    def _was_shown(self, stall: Stall) -> bool:
        """Whether a stall was logged while the run went on, or has another entry in the log. Where steps are
        skipped, nothing of it is logged."""
        skips = self._reducer.state.tail and STALLS[stall.kind].is_conclusive
        if STALLS[stall.kind].has_own_alert:
            # What has exited after a signal to the launcher stalls nothing: the run ends.
            return outside_end(self._reducer.state) is None
        return self._reducer.stall_is_logged or skips

    def _note_period(self, newest: StallPeriod) -> None:
        self._is_noted = True
        before = self.stalls[-1] if self.stalls else None
        if before is None or abs(before.since_s - newest.since_s) > SAME_STALL_S:
            self.stalls.append(newest)
        elif STALLS[newest.kind].is_conclusive or not STALLS[before.kind].is_conclusive:
            self.stalls[-1] = newest
        else:
            self.stalls[-1] = replace(before, lasted_s=newest.lasted_s)

    def end_stall(self, now_ns: int) -> None:
        """End the present stall: the run continues, or rows are skipped."""
        was_noted, self._is_noted = self._is_noted, False
        if self._stalled_ns is None or not was_noted:
            self._stalled_ns = None
            return
        last = self.stalls[-1]
        running = [rank for rank in self._reducer.state.ranks if rank.hello is not None]
        moved_ns = max((rank.moved_ns for rank in running), default=now_ns)
        until_s = max(self._reducer.state.unix_s(min(now_ns, moved_ns)), last.since_s + last.lasted_s)
        self._stalled_ns = None
        # Only a run that goes on has come out of its stall.
        if self._reducer.state.run is not None and self._reducer.state.run.state != "live":
            return  # the run ended while it was stalled
        self.stalls[-1] = replace(last, until_s=until_s, lasted_s=max(0.0, until_s - last.since_s))

    def _read_log(self) -> None:
        self._since_log_read = 0
        newer = self._log.all()
        # A full log has dropped its oldest entries: those seen before are kept here.
        if len(newer) >= LOG_FULL:
            self._older += [entry for entry in self._newer if entry.unix_s < newer[0].unix_s]
        self._newer = newer


def _stall_period(frame: Frame, stall: Stall) -> StallPeriod:
    """The stall of a frame, as long as it has lasted."""
    values = {field.name: getattr(stall, field.name) for field in fields(stall)}
    end_s = frame.unix_s if stall.ended_s is None else stall.ended_s
    return StallPeriod(**values, until_s=None, lasted_s=max(0.0, end_s - stall.since_s))
