"""What a rank reports before its session begins: that it is there, its milestones, where it is when asked.

A rank that a launcher has started reports from torch's import on, any other from `init_process_group` on, its
own or that of another rank which has told it its number (`siblings`). The thread of this module sends that,
and hands its connection over to the session's publisher. Until the rank has been there for a second nothing
is sent, nor loaded: a process that only looks at torch leaves no trace, and a short script reports as its
first DDP model is built.

Importing this module costs next to nothing.
"""

from __future__ import annotations

import atexit
import os
import secrets
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ddptop.training import siblings
from ddptop.training.guard import guard, run_after_fork
from ddptop.training.launcher_variables import environment_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.protocol.messages import Event, Hello, Progress, Scalar
    from ddptop.training.exit import ExitReason
    from ddptop.training.store_reach import StoreProbe
    from ddptop.transport.sender import AckedSender

RANK_PROCESS = "DDPTOP_RANK_PROCESS"
"""Environment variable: which process is the rank's own, `PLACE PID`. What it starts inherits its numbers."""

REPORT_AFTER_S = 1.0
"""From torch's import, or the first process group, to the first message."""

CYCLE_S = 0.25
"""Time between two looks whether the rank is asked where it is; a heartbeat is sent in every second one."""

CLOSE_S = 0.8
"""How long the exit of the process may be delayed until the last messages are acked."""

HAND_OVER_S = 2.0
"""How long the session waits for this thread, which may be loading modules. Milliseconds are usual."""

LOOK_S = 3600.0
"""How long a process looks for what siblings tell. All ranks may prepare their data for many minutes before
the first of them comes to `init_process_group`; a process that is no rank looks in vain."""

ASK_STORE_S = 600.0
"""How long the job's store is asked for another rank's mark: some tasks are no ranks, and start them only."""

LONGEST_PAUSE_S = 30.0
"""Time between two such questions, each of which is a connection to the store."""


class Milestone(NamedTuple):
    """A place on the way to the first step that this rank has come to."""

    name: str
    t_ns: int
    fields: dict[str, Scalar]

    def as_event(self, rank: int) -> Event:
        """The milestone as the message that is sent."""
        from ddptop.protocol.messages import MILESTONE, Event

        return Event(MILESTONE, self.t_ns, rank, -1, {"name": self.name, **self.fields})


_noted: deque[Milestone] = deque(maxlen=64)
"""Milestones that are not sent yet."""
_names: set[str] = set()


def note_milestone(name: str, **fields: Scalar) -> None:
    """Note that this rank has come to a milestone, the first time that it does."""
    if name not in _names:
        _names.add(name)
        _noted.append(Milestone(name, time.monotonic_ns(), fields))


def _note_process() -> None:
    """Note when this process was started, which tells how long the imports took."""
    with suppress(OSError, LookupError, ValueError):  # no /proc
        ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        _names.add("process")
        _noted.append(Milestone("process", time.monotonic_ns() - int(age_s * 1e9), {}))


def take_milestones(rank: int) -> list[Event]:
    """The milestones that are not sent yet."""
    taken: list[Event] = []
    while _noted:
        taken.append(_noted.popleft().as_event(rank))
    return taken


class HandedOver(NamedTuple):
    """What the session goes on with."""

    session: int
    sender: AckedSender


class StartReport(threading.Thread):
    """Reports this process as a rank until its session begins, or the process ends."""

    def __init__(self, rank: int, world_size: int, training_thread: int) -> None:
        super().__init__(name="ddptop-start", daemon=True)
        self.rank, self.world_size = rank, world_size
        self.session = secrets.randbits(62) + 1
        self.sender: AckedSender | None = None
        """None: nothing has been sent."""
        self._folder = Path(os.environ["DDPTOP_RUN_DIR"])
        self._run_id = os.environ.get("DDPTOP_RUN_ID", "")
        self._training_thread = training_thread
        self._wake = threading.Event()
        self._ends = False
        self._activity, self._since_ns = -1, 0
        """What the training thread was in at the last heartbeat, and since when."""

    def run(self) -> None:
        """Report until the end; a failure here ends these reports alone."""
        try:
            self._wake.wait(REPORT_AFTER_S)
            if not self._ends:
                self._report()
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def end_thread(self) -> bool:
        """End the thread; returns whether it has ended, and with it any use of its sender."""
        self._ends = True
        self._wake.set()
        self.join(HAND_OVER_S)
        return not self.is_alive()

    def close_in_child(self) -> None:
        """In a forked child: close its copy of the connection."""
        if self.sender is not None:
            self.sender.close_in_child()

    def say_bye(self, reason: ExitReason) -> bool:
        """Send how the process exits, once the thread has ended; returns whether the collector has it."""
        from ddptop.protocol.codec import encode
        from ddptop.protocol.messages import FINISHED, Bye

        if self.sender is None:
            return False
        now_ns = time.monotonic_ns()
        if reason.reason != FINISHED:
            self.sender.offer_message(encode(reason.as_evidence(now_ns)))
        self.sender.offer_message(encode(Bye(now_ns, reason.reason)))
        return not self.sender.close(CLOSE_S)

    def _report(self) -> None:
        with _loading:
            # And what is imported again where it is used: by then it is loaded.
            import ddptop.training.collective_called
            import ddptop.training.store_reach
            import ddptop.training.torch_compat.process_groups  # noqa: F401
            from ddptop.protocol.codec import encode
            from ddptop.protocol.messages import Card, Phase
            from ddptop.training.evidence.reporter import EvidenceReporter
            from ddptop.training.network_used import NetworkLookup
            from ddptop.transport.sender import AckedSender

            network = NetworkLookup()

        sender = AckedSender(f"ipc://{self._folder}/ingest", lambda: encode(self._make_hello()))
        self.sender = sender
        reporter = EvidenceReporter(self._training_thread, lambda: (0, int(Phase.OTHER), -1))
        card = _read_versions()
        sender.offer_message(encode(Card(card)))
        meeting_place, beat = _MeetingPlace(), True
        while not self._ends:
            if entries := network.take_entries():
                sender.offer_message(encode(Card(card | entries)))
            for milestone in take_milestones(self.rank):
                sender.offer_message(encode(milestone))
                if milestone.fields.get("name") == "init":
                    meeting_place.note_init(milestone.fields)
            meeting_place.begin_exchange_once_reached()
            # Rank 0 makes the store, and need not reach it.
            if self.rank and (reached := meeting_place.take_result()):
                sender.offer_message(encode(reached.as_event(self.rank)))
            if beat:
                sender.set_heartbeat(encode(self._make_heartbeat()))
            beat = not beat
            sender.exchange_messages()
            evidence = reporter.answer_request(sender.asked)
            if evidence is not None:
                sender.offer_message(encode(evidence))
                # At once: a launcher that ends the run leaves this process a moment.
                sender.exchange_messages()
            self._wake.wait(CYCLE_S)

    def _make_heartbeat(self) -> Progress:
        from ddptop.protocol.messages import Activity, Phase, Progress
        from ddptop.training.collective_called import collective_in
        from ddptop.training.torch_compat.process_groups import default_sequence

        now_ns = time.monotonic_ns()
        activity = int(collective_in(sys._current_frames().get(self._training_thread)) or Activity.TRAINING)
        if activity != self._activity:
            self._activity, self._since_ns = activity, now_ns
        return Progress(
            t_ns=now_ns,
            step=0,
            phase=int(Phase.OTHER),
            bucket=-1,
            sequence=default_sequence(),
            detail_every=1,
            cost_us=0.0,
            cost_pct=0.0,
            failures=guard.count,
            activity=activity,
            since_ns=self._since_ns,
        )

    def _make_hello(self) -> Hello:
        from dataclasses import replace

        from ddptop.training.hello import make_hello

        hello = make_hello(self.rank, self.world_size, self.session)
        return replace(hello, run_id=self._run_id, budget_pct=_budget_pct())


def _read_versions() -> dict[str, Scalar]:
    return {
        "torch": str(getattr(sys.modules["torch"], "__version__", "")),
        "ddptop": str(sys.modules["ddptop"].__version__),  # to import it would close a circle
        "python": sys.version.split()[0],
    }


class _MeetingPlace:
    """The job's store, in which all ranks meet: whether this rank reaches it, and whether it is there."""

    def __init__(self) -> None:
        self._by_rank: StoreProbe | None = None
        """From `init_process_group` on."""
        # Hosts find each other by the store, once rank 0 has made it: also those that do not come to it.
        self._by_host = _store_probe(*_job_address) if _job_address[0] and _uses_exchange() else None
        """None also once it is there."""

    def note_init(self, fields: Mapping[str, Scalar]) -> None:
        """The rank has come to `init_process_group`, which says where the store is."""
        address, port = str(fields.get("address")), str(fields.get("port"))
        self._by_rank = _store_probe(address, port)
        if self._by_host is None and _uses_exchange():
            self._by_host = _store_probe(address, port)

    def begin_exchange_once_reached(self) -> None:
        """Have the hosts find each other by the store, if it is there."""
        if self._by_host is not None and self._by_host.poll() == "reached":
            _begin_exchange(self._by_host.address, int(self._by_host.port))
            self._by_host = None

    def take_result(self) -> Milestone | None:
        """Whether the rank reaches the store, where that is news and the ranks have not met there yet."""
        from ddptop.protocol.messages import REACH

        if self._by_rank is None or "store" in _names or not (result := self._by_rank.poll()):
            return None
        return Milestone(REACH, time.monotonic_ns(), {"result": result})


def _store_probe(address: str, port: str) -> StoreProbe:
    from ddptop.training.store_reach import StoreProbe

    return StoreProbe(address, port)


def _budget_pct() -> float:
    """The budget that `Budget.from_environment` reads; that class takes longer to load."""
    from ddptop.protocol.limits import DEFAULT_BUDGET_PCT

    try:
        return max(0.0, float(os.environ.get("DDPTOP_BUDGET", "")))
    except ValueError:
        return DEFAULT_BUDGET_PCT


_current: StartReport | None = None
_waiting: AwaitedNumber | None = None
_job_address = ("", "")
"""Host and port of the job's store, as the launcher says; a script may set another one for itself."""
_beginning = threading.Lock()
"""Held where a thread and the training thread may both begin the reports."""
_loading = threading.Lock()
"""Held while a thread imports: no fork meanwhile, or the child would have those modules locked for good."""
_watches_forks = False


def begin_as_launched(_torch: Any) -> None:
    """torch has been imported: begin to report, where a launcher has started this process as a rank."""
    global _job_address, _waiting
    note_milestone("torch")
    _note_process()
    _job_address = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    # Without its place on the host: variables of a pod or a node, in which a launcher starts the ranks.
    placed = "LOCAL_RANK" in os.environ or "SLURM_LOCALID" in os.environ
    if placed and rank.isdecimal() and world_size.isdecimal() and _is_own_process():
        begin_report(int(rank), int(world_size))
    elif siblings.is_numbered() and os.environ.get("DDPTOP_RUN_DIR"):
        _waiting = AwaitedNumber()
        with suppress(RuntimeError):  # no thread can be started: it reports from `init_process_group` on
            _waiting.start()
            atexit.register(_waiting.end_thread)


class StoreAsks:
    """Decides when the job's store is asked for a mark that may never be there: after 1, 2, 4 ... 30 s."""

    def __init__(self) -> None:
        self._due_s = time.monotonic()
        self._end_s = self._due_s + ASK_STORE_S
        self._pause_s = 1.0

    @property
    def is_over(self) -> bool:
        """Whether it is asked no more."""
        return time.monotonic() > self._end_s

    def take_due(self) -> bool:
        """Whether it is to be asked now; the next time is later."""
        now_s = time.monotonic()
        if now_s < self._due_s or self.is_over:
            return False
        self._due_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True


class AwaitedNumber(threading.Thread):
    """Begins the reports of this process once a sibling has told it its rank."""

    def __init__(self) -> None:
        super().__init__(name="ddptop-number", daemon=True)
        self._training_thread = threading.get_ident()
        self._pid = os.getpid()
        self._own_mark: str | None = None
        """The mark of this process, once it has come to `init_process_group`."""
        self._ends = threading.Event()

    def run(self) -> None:
        """Look for what siblings tell until this process has come to `init_process_group` itself. Tasks of
        Slurm on other hosts tell it and are told in the job's store, once that is there."""
        try:
            asks, end_s = StoreAsks(), time.monotonic() + LOOK_S
            while not self._ends.wait(REPORT_AFTER_S) and not _is_worker():
                if time.monotonic() > end_s:
                    return
                if self._own_mark is not None:
                    self._tell_other_hosts(self._own_mark)
                    return
                mark = self._ask_store(None) if _may_ask_store() and asks.take_due() else None
                numbers = siblings.told_by_siblings() or siblings.told_by(mark or "")
                if numbers is not None:
                    with _beginning:
                        # It may have come to `init_process_group` meanwhile, and reports itself then.
                        if self._own_mark is None:
                            begin_report(*numbers, self._training_thread)
                    return
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def tell_others(self, rank: int, world_size: int) -> None:
        """This process has come to `init_process_group`."""
        if self._pid != os.getpid():  # a forked child
            return
        with _beginning:
            self._own_mark = siblings.mark_of(rank, world_size) or ""
        siblings.tell_siblings(rank, world_size)

    def _tell_other_hosts(self, own_mark: str) -> None:
        asks = StoreAsks()
        while _may_ask_store() and not asks.is_over:
            if asks.take_due() and self._ask_store(own_mark) is not None:
                return
            if self._ends.wait(REPORT_AFTER_S):
                return

    def end_thread(self) -> None:
        """End the thread. It may be in a call of torch, which must not last into the exit of the
        interpreter."""
        self._ends.set()
        if self._pid == os.getpid() and self.is_alive():
            self.join(CLOSE_S)

    def _ask_store(self, own_mark: str | None) -> str | None:
        """The mark in the job's store, after `own_mark` is left there; None: there is none, or no store."""
        address, port = _job_address
        if not address or not port.isdecimal():
            address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if not address or not port.isdecimal():
            return None
        from ddptop.training.torch_compat.job_store import JobStore

        try:
            store = JobStore(address, int(port))
        except (OSError, RuntimeError):
            return None
        try:
            if own_mark:
                store.set(siblings.MARK, own_mark.encode())
            mark = store.get(siblings.MARK)
        except (OSError, RuntimeError):
            return None
        finally:
            store.close()
        return None if mark is None else mark.decode("ascii", "replace")


def _uses_exchange() -> bool:
    """Whether hosts that no launcher of ours has joined are to find each other by the job's store."""
    return os.environ.get("DDPTOP_EXCHANGE") == "1"


def _may_ask_store() -> bool:
    return _uses_exchange() and siblings.is_numbered_by_job()


def _is_worker() -> bool:
    """Whether this is a DataLoader's worker or alike, and no rank."""
    import multiprocessing

    return multiprocessing.current_process().daemon


def note_meeting(rank: int, world_size: int) -> None:
    """`init_process_group` looks for the other ranks; -1: as the environment says."""
    rank = environment_number("RANK") if rank < 0 else rank
    launched = environment_number("WORLD_SIZE")
    world_size = launched if world_size < 0 else world_size
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    interface = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME") or ""
    if _waiting is not None:
        _waiting.tell_others(rank, world_size)
    begin_report(rank, world_size)
    note_milestone("init", address=address, port=port, interface=interface, world=world_size)


def _is_own_process() -> bool:
    """Whether this is the rank's own process, and none that it has started."""
    return os.environ.get(RANK_PROCESS, "").endswith(f" {os.getpid()}")


def begin_report(rank: int, world_size: int, training_thread: int | None = None) -> None:
    """Begin to report this process as that rank, unless that has begun. `training_thread`: None: this one.

    A world that is larger than the launcher's never meets: the rank is one of the launcher's.
    """
    global _current, _watches_forks
    launched = environment_number("WORLD_SIZE")
    world_size = min(world_size, launched) if rank < launched else world_size
    if not os.environ.get("DDPTOP_RUN_DIR") or not 0 <= rank < world_size:
        return
    if _current is not None:
        if (_current.rank, _current.world_size) == (rank, world_size):
            return
        _report_left(_current)  # the script has given itself other numbers than its launcher
        _current = None
    report = StartReport(rank, world_size, training_thread or threading.get_ident())
    try:
        report.start()
    except RuntimeError:  # no thread can be started: the session will say so
        return
    _current = report
    if not _watches_forks:
        _watches_forks = True
        os.register_at_fork(
            before=_loading.acquire,
            after_in_parent=_loading.release,
            after_in_child=lambda: run_after_fork(_loading.release, _drop_in_child),
        )
        atexit.register(report_exit)
    if "multiprocessing.process" in sys.modules:
        import multiprocessing
        import multiprocessing.util

        if multiprocessing.parent_process() is not None:  # it leaves by os._exit, past atexit
            multiprocessing.util.Finalize(None, report_exit, exitpriority=100)


def hand_over(rank: int, world_size: int) -> HandedOver | None:
    """End these reports, for the session of this rank; None where none were sent."""
    global _current
    report, _current = _current, None
    if report is None or not report.end_thread() or report.sender is None:
        return None
    if (report.rank, report.world_size) != (rank, world_size):
        _report_left(report)
        return None
    return HandedOver(report.session, report.sender)


def report_exit() -> bool:
    """Send how this process exits, if its session has not begun; returns whether the collector has that."""
    global _current
    report, _current = _current, None
    if report is None:
        return False
    try:
        # Not imported for this: without it there is no exchange.
        if "ddptop.training.join_run" in sys.modules:
            sys.modules["ddptop.training.join_run"].rank_exchange.end_exchange()
        if not report.end_thread() or report.sender is None:
            return False
        from ddptop.training.exit import exit_reason

        return _exit_is_known(report.say_bye(exit_reason()))
    except KeyboardInterrupt:  # only our own last messages were waited for
        return False
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)
        return False


def _begin_exchange(address: str, port: int) -> None:
    with _loading:
        from ddptop.training.join_run import rank_exchange

    rank_exchange.begin_exchange((address, port))


exit_is_reported = False
"""Whether the collector knows how this process exits."""


def _exit_is_known(is_known: bool) -> bool:
    global exit_is_reported
    exit_is_reported = is_known
    return is_known


def _report_left(report: StartReport) -> None:
    from ddptop.protocol.messages import LEFT
    from ddptop.training.exit import ExitReason

    if report.end_thread():
        report.say_bye(ExitReason(LEFT, None))


def _drop_in_child() -> None:
    global _current
    report, _current = _current, None
    if report is not None:
        report.close_in_child()
