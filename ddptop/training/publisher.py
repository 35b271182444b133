"""The publisher thread: sends this rank's messages to the collector; no other thread uses a socket."""

from __future__ import annotations

# Everything is imported here and not in the thread: in a worker that is forked while a thread imports, those
# modules would be locked for good.
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ddptop.host.step_counters import leave_step_count, note_step_count
from ddptop.protocol.codec import encode
from ddptop.protocol.limits import REPORT_S
from ddptop.protocol.machine import OwnCost
from ddptop.protocol.messages import (
    BATCH_SIZE,
    FINISHED,
    LEFT,
    MILESTONE,
    RECORDED,
    Ack,
    Bye,
    Card,
    Event,
    Hello,
    Logged,
    Membership,
    Message,
    Progress,
    Replica,
    Scalar,
)
from ddptop.training.activity import ActivityWatch
from ddptop.training.bucket_timing import TimerBoundsReporter
from ddptop.training.budget import EACH_FOURTH_PERIOD, EACH_PERIOD, EACH_SIXTEENTH_PERIOD, Budget
from ddptop.training.device.timing import DeviceTiming, memory_of
from ddptop.training.disk_reads import DiskReads
from ddptop.training.evidence.arrival_reader import ArrivalReader
from ddptop.training.evidence.reporter import OWN, EvidenceReporter
from ddptop.training.evidence.sampler import StackSampler
from ddptop.training.exit import ExitReason
from ddptop.training.guard import guard, report_once
from ddptop.training.hello import renew_hello
from ddptop.training.join_run import collector_keeper
from ddptop.training.launcher_notices import LauncherNotices
from ddptop.training.network_used import LOOKUP_THREAD, NetworkLookup
from ddptop.training.packing import LayoutTracker, pack_steps
from ddptop.training.recorder import Recorder
from ddptop.training.replica import SHARE, ReplicaCheck
from ddptop.training.start_report import take_milestones
from ddptop.training.step_record import QUEUE_STEPS, LeftOutSteps, StepRecord
from ddptop.training.step_times import StepTimes
from ddptop.training.torch_compat.process_groups import stop_reading
from ddptop.transport.sender import AckedSender

MAX_NAMES = 64
"""Names in flight: a script that makes a new one in every step must not grow."""


class LoggedScalars:
    """The newest value of each name that a script logs. A name is written whole: no lock is needed."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, Any]] = {}

    def note_value(self, name: str, value: Any, step: int) -> None:
        """Note a float, or on a GPU a value that is not copied yet."""
        if name in self._newest or len(self._newest) < MAX_NAMES:
            self._newest[name] = (step, value)

    def take_values(self, read: Callable[[Any], float | None] | None) -> Logged | None:
        """What was logged since the last call. `read` gives a GPU's value, None while it is not there yet."""
        values: dict[str, Scalar] = {}
        newest = 0
        for name in list(self._newest):
            step, value = self._newest.pop(name)
            if not isinstance(value, float):
                copied = read(value) if read is not None else None
                if copied is None:
                    # Not over a newer value, which was logged meanwhile.
                    self._newest.setdefault(name, (step, value))
                    continue
                value = copied
            values[name] = value if math.isfinite(value) else None
            newest = max(newest, step)
        return Logged(newest, values) if values else None


class Published(Protocol):
    """What a publisher sends, filled in by the session on the training thread (`ddptop.training.session`)."""

    recorder: Recorder
    device: DeviceTiming | None
    card: dict[str, Scalar]
    parameters: dict[tuple[int, int], int]
    memberships: dict[int, Membership]
    replicas: ReplicaCheck
    scalars: LoggedScalars
    timing_path: str

    def device_bounds_ns(self) -> tuple[int, int] | None:
        """Error bounds of a bucket's ready and end on the GPU; None where none are known."""

    def request_description(self) -> None:
        """Have the training thread describe the models again."""


READINGS_EVERY_S, RARE_READINGS_EVERY_S = 2.0, 8.0
"""Time between two reads of torch's CUDA allocator, whose counters take some 30 us to read, of the disk's,
and between two looks at the bounds of timestamps, of 50 us; and where the publisher takes too much of a small
budget."""

LAST_STEPS_S = 0.2
"""How long `close` waits for a GPU that is some steps behind its host."""

LATE_S = 0.1
"""How long a late thread may take at exit to return from a call of torch's, which takes microseconds."""

STANDS_S = 1.0
"""A rank whose step has lasted so long sends where it is before its launcher ends it."""

LOOK_S = 0.05
"""How often a rank whose step lasts looks whether it is asked what it is doing."""

ENDING_DEVICE_S = 0.02
"""How long a GPU that is some steps behind its host is waited for then."""

MOST_WAITING_STEPS = QUEUE_STEPS // 4
"""Finished steps that wait for their turn: in 4 s there are more steps of 0.4 ms than the recorder keeps."""

PER_HEARTBEAT, PER_RARE_HEARTBEAT = 2, 4
"""Number of periods of REPORT_S from one heartbeat to the next. They are rarer where the publisher takes too
much of the budget, while steps end: a rank is shown as stale after 1.5 s without one (`STALE_S`)."""


class Turns:
    """What the publisher does whenever it wakes up, after one or several periods of REPORT_S."""

    def __init__(self) -> None:
        self._since_steps = self._since_heartbeat = EACH_SIXTEENTH_PERIOD
        """Number of periods since the last turn of each."""

    def take_turn(self, every: int, n_periods: int) -> tuple[bool, bool]:
        """Whether to take the finished steps, which is in one of `every` periods, and whether to send a
        heartbeat. `n_periods`: since the last call."""
        self._since_steps += n_periods
        self._since_heartbeat += n_periods
        takes_steps, beats = self._since_steps >= every, self._since_heartbeat >= PER_HEARTBEAT
        if takes_steps:
            self._since_steps = 0
        if beats:
            self._since_heartbeat = 0
        return takes_steps, beats


def _take_all(queue: deque[Message]) -> Iterator[Message]:
    """Take the messages of a queue that other threads may add to."""
    while queue:
        yield queue.popleft()


class Publisher(threading.Thread):
    """Takes finished steps from the recorder, packs them, and serves the acked link to the collector."""

    def __init__(
        self,
        session: Published,
        hello: Hello,
        budget: Budget,
        *,
        sequence: Callable[[], int],
        sender: AckedSender | None = None,
    ) -> None:
        """`hello`: of this process. `sequence`: number of the collective that this rank is at. `sender`: over
        which this rank has reported before."""
        super().__init__(name="ddptop-publisher", daemon=True)
        self._session = session
        self._recorder = session.recorder
        self._hello = hello
        self._folder = Path(os.environ["DDPTOP_RUN_DIR"])  # the variable may be gone at the end (`leave_run`)
        self.budget = budget
        self._sequence = sequence
        self._sender = sender
        # What makes the messages.
        training_thread = threading.get_ident()
        self._notices = LauncherNotices(session.recorder)
        self._steps = StepTimes(session.recorder.gc_pauses)
        self._layout = LayoutTracker(session.parameters)
        self._bounds = TimerBoundsReporter(session.recorder.handover_ns, session.device_bounds_ns)
        self._activity = ActivityWatch(session.recorder, training_thread)
        self._reporter = EvidenceReporter(
            training_thread, self._current_position, self._device_failed, self._notices.wake_up
        )
        self._sampler = StackSampler(
            session.recorder, training_thread, lambda: budget.step_ns, lambda: budget.sampling_share
        )
        self._arrivals = ArrivalReader(self._timed_groups)
        self._disk_reads = DiskReads()
        self._network: NetworkLookup | None = None
        # What waits to be sent, and what the collector has.
        self._queue: deque[Message] = deque(maxlen=1000)
        self._is_sending_due = False
        """Whether the queue has something that does not wait for the turn of the steps."""
        self._before_steps: deque[Message] = deque(maxlen=1000)
        """Messages about the running step."""
        self.card_changed = True
        self._memberships_sent: dict[int, Message] = {}
        self._described = 0
        """The generation of buckets at which the models were last described."""
        self._epoch: int | None = None
        """The collector's; None: none has acked yet."""
        self._progress: Progress | None = None
        """The newest heartbeat that was made."""
        # When something is due.
        self._readings_due = 0.0
        self._step_seen, self._moved_s = -1, 0.0
        """The step at the last wait, and when it was first seen."""
        self._n_periods = 1
        """Number of periods of REPORT_S that this thread waits."""
        # Leaving the group, and the end.
        self._closing = False
        self._left_requested = False
        self._left_sent = threading.Event()
        self._drained = True
        self._last_ack_s = self._undrained_s = time.monotonic()
        self._drain_s = 0.0
        self._exit_reason = ExitReason(FINISHED, None)
        if sender is not None:
            self._queue.append(self._beginning())

    @property
    def rank(self) -> int:
        """This process's rank in the default group."""
        return self._hello.rank

    def send(self, message: Message) -> None:
        """Send a message in order with the steps; from any thread."""
        self._queue.append(message)
        # Replica checks come every few steps: they would undo that steps are taken rarely.
        if not isinstance(message, Replica):
            self._is_sending_due = True

    def send_before_step(self, message: Message) -> None:
        """Send a message about the running step before that step; on the training thread."""
        self._before_steps.append(message)

    def leave_group(self, timeout_s: float) -> None:
        """Send everything, and that the group is left in good order; waits at most `timeout_s`.

        After a timeout there is no further wait until the collector has acked again: a script may destroy its
        group a hundred times.
        """
        self._drain_s = timeout_s if self._last_ack_s >= self._undrained_s else 0.0
        self._left_sent.clear()
        self._drained = False
        self._left_requested = True
        self._notices.wake_up()
        self._left_sent.wait(self._drain_s)
        if not self._drained:
            self._undrained_s = time.monotonic()

    def close(self, drain_s: float, reason: ExitReason) -> None:
        """Send everything and a BYE; returns after at most `drain_s` and a little."""
        self._drain_s, self._exit_reason = drain_s, reason
        self._closing = True
        self._notices.wake_up()
        try:
            self.join(drain_s + 0.2)
        finally:
            stop_reading()
        for thread in threading.enumerate():
            # This one, if it is late, or one that still gathers evidence.
            if thread.name.startswith(OWN) and thread.name != LOOKUP_THREAD:
                thread.join(LATE_S)

    def run(self) -> None:
        """Publish until closed; a failure here ends the recording of this rank, never its training."""
        try:
            if self._session.device is not None:
                self._session.device.enter_thread()
            self._notices.open_socket(self._folder, self._hello.session)
            if self._sender is None:
                self._sender = AckedSender(f"ipc://{self._folder}/ingest", self._encoded_hello)
            self._sender.greet_with(self._encoded_hello)
            self._network = NetworkLookup()
            self._publish_until_closed(self._sender)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
            report_once(f"this process is not recorded any more ({type(error).__name__}: {error})")
            self._recorder.stop_measuring()
            self._notices.close()
        finally:
            self._sampler.end_series()

    def close_in_child(self) -> None:
        """In a forked child: close its copy of the connection, which would stay open when this rank ends."""
        self._sampler.end_series()
        if self._sender is not None:
            self._sender.close_in_child()
        self._notices.close_in_child()

    def _publish_until_closed(self, sender: AckedSender) -> None:
        turns = Turns()
        cpu = time.thread_time_ns()
        sender.exchange_messages()  # HELLO, also of a rank that exits within the first quarter of a second
        while self._wait_for_work(sender):
            if self._left_requested:
                self._send_left(sender)
            has_notice = self._notices.take_notices()
            is_turn, beats = turns.take_turn(self.budget.report_every, self._n_periods)
            takes_steps = self.take_sending_due() or is_turn
            if self._n_periods == PER_RARE_HEARTBEAT and not takes_steps and not has_notice:
                self._repeat_heartbeat(sender)
                continue
            records: Sequence[StepRecord | LeftOutSteps] = ()
            if takes_steps:
                records = self._take_steps(None if self._notices.hold is None else ENDING_DEVICE_S)
                self._offer_messages(sender, records)
                self._read_arrivals(records)
            if beats or has_notice:
                self._progress = self._make_progress()
                sender.set_heartbeat(encode(self._progress))
            ack = sender.exchange_messages()
            if self._notices.hold is not None:
                self._notices.hold.note_sent()
            self._report_evidence(sender.asked, has_notice)
            samples = self._sampler.take_samples(sender.asked_samples)
            if samples is not None:
                self.send(samples)
            if ack is not None:
                self._last_ack_s = time.monotonic()
                self._note_ack(ack)
            elif self._epoch is None:
                # Nobody else could count the steps of a rank that is killed before a collector has met it.
                note_step_count(self._folder, self._hello.session, self._recorder.step)
            collector_keeper.restart_if_exited(self._last_ack_s)
            # With the steps, where these are taken rarely: a wake-up for a heartbeat alone does no more.
            if takes_steps:
                before, cpu = cpu, time.thread_time_ns()
                self._keep_budget(records, cpu - before)
        self._send_bye(sender)

    def _keep_budget(self, records: Sequence[StepRecord | LeftOutSteps], spent_ns: int) -> None:
        """Account for finished steps and `spent_ns` of CPU time of this thread, and have the recorder do what
        the budget allows."""
        recorder, budget = self._recorder, self.budget
        if self._session.device is not None:
            budget.device_waits = self._session.device.resolver.device_waits
        unseen = recorder.gc_pauses.take_cost() - self._arrivals.take_spent_ns()
        unseen -= self._sampler.take_spent_ns()
        budget.stack_share = self._sampler.present_share
        while recorder.unseen.end_costs:
            budget.note_unseen_end(recorder.unseen.end_costs.popleft())
        budget.account_for(records, spent_ns + unseen, self._session.replicas.step_ns)
        allowed = SHARE * budget.budget_pct / 100.0
        self._session.replicas.allowance_ns = allowed * budget.step_ns
        if guard.muted:
            recorder.stop_measuring()
            return
        before, recorder.rates = recorder.rates, budget.rates
        if recorder.rates.record_every < before.record_every:
            # Soon, not only where the steps end that were to be left out: a rank may have become slow.
            recorder.do_between_steps(lambda: None)

    def take_sending_due(self) -> bool:
        """Whether finished steps are to be taken whatever their turn. To be called once each time."""
        # What is sent in order with the steps must not come before them, nor leave them behind: an answer
        # to the collector may be the last that this process sends before it is killed.
        is_due = self._is_sending_due
        if is_due:  # or another thread may just have set it
            self._is_sending_due = False
        is_due = is_due or len(self._recorder.records) > MOST_WAITING_STEPS
        # The events of a device are read each time: they are a small pool.
        return is_due or self._notices.hold is not None or self._session.device is not None

    def _wait_for_work(self, sender: AckedSender) -> bool:
        """Wait until the period ends, or there is something to do; False once the publisher closes.

        While no step ends, a question of the collector is something to do: when another rank has failed, the
        launcher ends this process a moment later.
        """
        now_s = time.monotonic()
        step_before, self._step_seen = self._step_seen, self._recorder.step
        moves = self._step_seen != step_before
        if moves:
            self._moved_s = now_s
        every = self.budget.report_every
        self._n_periods = 1 if every == EACH_PERIOD else PER_HEARTBEAT
        # The events of a device are a small pool.
        if moves and every >= EACH_FOURTH_PERIOD and self._session.device is None:
            self._n_periods = PER_RARE_HEARTBEAT
        period_s = self._n_periods * REPORT_S
        # A multiple of the period: all ranks of a host send at the same moment, and their agent wakes up
        # once.
        end_s = now_s + period_s - now_s % period_s
        look_s = period_s if moves else LOOK_S
        sampler = self._sampler
        while True:
            sample_s = sampler.next_sample_s()
            wait_s = min(look_s if sample_s is None else sample_s, max(0.0, end_s - time.monotonic()))
            if self._notices.wait_for_wake(wait_s):
                break
            sampler.take_due_sample(wait_s)
            if time.monotonic() >= end_s or sender.has_arrived():
                break
        self._notices.clear_wake()
        return not self._closing

    def _report_evidence(self, asked: int, has_notice: bool) -> None:
        """Send evidence where the collector has `asked` for it, or a launcher is about to end this process
        in a step that lasts; answer launchers once it is sent."""
        evidence = self._reporter.answer_request(asked)
        if evidence is not None:
            if self._session.device is not None:
                self.send(self._session.device.position_event(self._recorder, self.rank))
            self.send(evidence)
            self._notices.wake_up()  # a launcher that ends the run leaves this process a moment
            return
        # The others may have waited for this rank, and the collector's question may come too late.
        if has_notice and time.monotonic() - self._moved_s >= STANDS_S:
            self._reporter.gather_unasked()
        if not self._reporter.is_gathering:
            self._notices.answer_launchers()

    def _send_left(self, sender: AckedSender) -> None:
        self._left_requested = False
        records = self._take_steps(LAST_STEPS_S)
        self._read_arrivals(records, at_end=True)
        self.send(Bye(time.monotonic_ns(), LEFT, self._sequence()))
        self._offer_messages(sender, records)
        sender.drain_unacked(self._drain_s)
        self._drained = not sender.pending
        self._left_sent.set()

    def _send_bye(self, sender: AckedSender) -> None:
        end = time.monotonic() + self._drain_s
        reason = self._exit_reason.reason
        if reason != FINISHED:
            self.send(self._reporter.exit_evidence(self._exit_reason))
        self.send(Bye(time.monotonic_ns(), reason, self._sequence()))
        self._offer_messages(sender, self._take_steps(LAST_STEPS_S))
        # The others may wait for it: this is how far it got.
        sender.set_heartbeat(encode(self._make_progress()))
        self._leave_step_count(sender.close(max(0.0, end - time.monotonic())))
        self._notices.close()

    def _leave_step_count(self, unacked: int) -> None:
        """Where the last steps were not acked, leave their number in the run folder, to have them counted."""
        finished = self._exit_reason.reason == FINISHED
        leave_step_count(self._folder, self._make_hello(), self._recorder.step, unacked, finished=finished)

    def _beginning(self) -> Event:
        """What the HELLO did not say that was sent before this session began."""
        hello = self._make_hello()
        fields: dict[str, Scalar] = {
            "name": RECORDED,
            "device": hello.device,
            "backend": hello.backend,
            "timing_path": hello.timing_path,
        }
        return Event(MILESTONE, time.monotonic_ns(), self.rank, -1, fields)

    def _encoded_hello(self) -> bytes:
        return encode(self._make_hello())

    def _make_hello(self) -> Hello:
        return renew_hello(self._hello, self._session.timing_path)

    def _note_ack(self, ack: Ack) -> None:
        if ack.epoch != self._epoch:  # another collector: without a recording this rank is new to it
            if self._epoch is not None:
                self._bounds.forget_sent()
                self._memberships_sent.clear()
            self._epoch = ack.epoch
            self._layout.forget_sent()
            self.card_changed = True
        self.budget.announced = ack.detail_every

    def _take_steps(self, all_within_s: float | None = None) -> Sequence[StepRecord | LeftOutSteps]:
        """Finished steps; on a GPU those that the GPU has finished too. With `all_within_s` it is waited for
        so long, and then all of them."""
        taken = self._steps.take_steps(self._recorder.records)
        device = self._session.device
        if device is None:
            return taken
        # None of these is left out: on a GPU `Recorder` sees more of them than their ends.
        done = device.resolver.take_done([record for record in taken if isinstance(record, StepRecord)])
        return done if all_within_s is None else done + device.resolver.flush_all(all_within_s)

    def _offer_messages(self, sender: AckedSender, records: Sequence[StepRecord | LeftOutSteps]) -> None:
        """Offer these steps, and all else that this rank has to say."""
        messages = [*_take_all(self._before_steps), *pack_steps(records, self._layout)]
        if self._layout.generation != self._described:
            self._described = self._layout.generation
            self._session.request_description()
        self._update_card()
        if self.card_changed:
            self.card_changed = False
            card = Card(dict(self._session.card))
            # Memberships come before the steps that are reduced in these groups.
            messages = [card, *self._unsent_memberships(), *messages, *self._layout.unsent_layouts()]
        device = self._session.device
        are_due = time.monotonic() >= self._readings_due
        if are_due:
            messages += self._take_readings(device)
        logged = self._session.scalars.take_values(None if device is None else device.scalars.read_value)
        if logged is not None:
            messages.append(logged)
        self._bounds.add_steps(records)
        if are_due or not self._bounds.are_sent:
            news = self._bounds.changed_bounds(self.rank, self._recorder.step)
            if news is not None:
                messages.append(news)
        messages += [*take_milestones(self.rank), *_take_all(self._queue)]
        for message in messages:
            try:
                sender.offer_message(encode(message))
            except (ValueError, TypeError, OverflowError) as error:  # costs one message, not the rank
                guard.caught(error)

    def _update_card(self) -> None:
        """Add to the card what only this thread knows."""
        entries: dict[str, Scalar] = {} if self._network is None else dict(self._network.take_entries())
        if guard.first is not None and "first_failure" not in self._session.card:
            entries["first_failure"] = guard.first
        batch_size = self._recorder.loader.batch_size
        if batch_size != self._session.card.get(BATCH_SIZE):
            entries[BATCH_SIZE] = batch_size
        if entries:
            self._session.card.update(entries)
            self.card_changed = True

    def _unsent_memberships(self) -> list[Membership]:
        """The process groups of DDP's models that the collector does not know yet."""
        unsent = {
            model: membership
            for model, membership in list(self._session.memberships.items())
            if self._memberships_sent.get(model) != membership
        }
        self._memberships_sent.update(unsent)
        return [*unsent.values()]

    def _take_readings(self, device: DeviceTiming | None) -> list[Message]:
        """What is read every few seconds."""
        is_rare = self.budget.report_every == EACH_SIXTEENTH_PERIOD
        self._readings_due = time.monotonic() + (RARE_READINGS_EVERY_S if is_rare else READINGS_EVERY_S)
        readings: list[Message] = []
        if device is not None:
            readings += [memory_of(device.index), *self._device_news(device)]
        disk = self._disk_reads.take_reading(self._recorder.step)
        if disk is not None:
            readings.append(disk)
        if self.budget.reported_cost[1] > 0:  # else both are those of too short a time
            readings.append(OwnCost(time.monotonic_ns(), self.budget.every_step_pct))
        return readings

    def _read_arrivals(self, records: Sequence[StepRecord | LeftOutSteps], *, at_end: bool = False) -> None:
        """Read when collectives were launched that no hook times; a failure ends this for good. `at_end`: the
        groups are about to be destroyed."""
        self._arrivals.note_steps(records)
        budget = self.budget
        try:
            for message in self._arrivals.read_if_due(budget.budget_pct, budget.cost_pct, at_end=at_end):
                self.send(message)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        budget.reading_share = self._arrivals.share

    def _timed_groups(self) -> set[str]:
        """The process groups of DDP's models."""
        return {membership.group for membership in list(self._session.memberships.values())}

    def _device_news(self, device: DeviceTiming) -> list[Message]:
        """What has changed in the device's timing."""
        untimed = device.take_untimed()
        if untimed:
            self._session.card.update(untimed)
            self.card_changed = True
        graph = device.graph_news(self._recorder, self.rank)
        return [] if graph is None else [graph]

    def _device_failed(self) -> bool:
        device = self._session.device
        return device is not None and device.has_failed()

    def _current_position(self) -> tuple[int, int, int]:
        recorder = self._recorder
        return recorder.step, int(recorder.phase), len(recorder.calls) if recorder.detail else -1

    def _repeat_heartbeat(self, sender: AckedSender) -> None:
        """Tell only how far this rank is: it finishes steps, so that nobody asks what it does."""
        if self._progress is not None:
            progress = replace(self._progress, t_ns=time.monotonic_ns(), step=self._recorder.step)
            sender.set_heartbeat(encode(progress))
            sender.send_heartbeat()

    def _make_progress(self) -> Progress:
        step, _, bucket = self._current_position()
        phase, activity, since_ns = self._activity.read()
        epoch, batch, batches = self._recorder.loader.read()
        cost_us, cost_pct = self.budget.reported_cost
        return Progress(
            t_ns=time.monotonic_ns(),
            step=step,
            phase=int(phase),
            bucket=bucket,
            sequence=self._sequence(),
            detail_every=self.budget.every,
            cost_us=cost_us,
            cost_pct=cost_pct,
            failures=guard.count,
            activity=int(activity),
            since_ns=since_ns,
            epoch=epoch,
            batch=batch,
            batches=batches,
        )
