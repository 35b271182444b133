"""Ranks of a script that was started without `ddptop-run`: the first one of the host starts the collector.

`ddptop.setup` calls `join_run`; with the variables of `ddptop env` the first DDP model calls `join_by_store`.
Training does not notice: no output, no child process, a few milliseconds once. Where no collector can be
started the script is a plain DDP script.

Of a job with several hosts, each host begins with an agent. One rank of a host (`RankExchange`) takes part in
deciding which of them becomes the collector, and brings its address here, through the job's store.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ddptop.host import collector_start, processes
from ddptop.host.address_exchange import KEPT, PRESENT, AddressExchange, Job, Store, serve_argument
from ddptop.host.collector_address import read_role, write_role
from ddptop.host.folders import open_regular
from ddptop.host.job_environment import spans_hosts
from ddptop.host.processes import need_threads, process_start
from ddptop.host.runs import ensure_run_directory, read_command, read_run_file, write_command
from ddptop.training.guard import guard, run_after_fork
from ddptop.training.torch_compat.job_store import JobStore, address_of_default_store

RESTARTED_BY = "DDPTOP_AGENT"
"""Environment variable, set where the ranks themselves keep a collector running: pid and start of the process
that may restart the ranks (torchrun), or zeros."""

EXCHANGED = "DDPTOP_EXCHANGE"
"""Environment variable, `1` where the run has several hosts, and ranks bring them the collector's address."""

CHECK_S = 5.0
"""After this long without an ack, a rank checks whether the collector has exited; at most this often."""

MAX_STARTS = 20
"""A collector that exits more often than this would do so again."""


def has_collector() -> bool:
    """Whether this host has the collector of the job already: torchrun has started its ranks before.

    Never raises.
    """
    is_decided = os.environ.get("DDPTOP") == "0" or os.environ.get("DDPTOP_RUN_DIR")
    if is_decided or not os.environ.get("TORCHELASTIC_RUN_ID"):
        return False
    try:
        # Under torchrun the number is not used.
        run = read_run_file(Path(_variables_of("")["DDPTOP_RUN_DIR"]))
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)
        return False
    return run is not None and run.collector_host is None


def join_run(
    number: str,
    listen_for_models: Callable[[], None],
    *,
    several_hosts: bool = False,
    collects: bool | None = None,
) -> None:
    """Have this process recorded: in the run of its launcher, or in one of the script's own.

    `number` is the same on all ranks of the group, and of no other group. `listen_for_models` makes
    the models of this process recorded. `collects`: whether this host has the collector of several; None: it
    is to be decided. Never raises.
    """
    if os.environ.get("DDPTOP") == "0":
        return
    rank_exchange.collects = collects
    try:
        processes.fill_standard_streams()
        if not os.environ.get("DDPTOP_RUN_DIR"):
            _enter_run(number, several_hosts)
        elif os.environ.get(RESTARTED_BY):
            collector_keeper.ensure_collector()
        listen_for_models()
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)


def join_by_store() -> None:
    """Join the run of a process that has the variables of `ddptop env`, once its process group exists.

    Its ranks agree on the run's number through the store of the group. Under torchrun, hosts may join later:
    each rank announces that it is there, and whether its host has the collector already. Three requests of
    each at most. Raises OSError or RuntimeError where the store cannot be reached.
    """
    if os.environ.get("DDPTOP_RUN_DIR"):
        return
    address, number = address_of_default_store(), secrets.token_hex(8)
    if address is not None:
        store = JobStore(*address)
        try:
            number = store.agree_on("ddptop/number", number)
            if os.environ.get("TORCHELASTIC_RUN_ID"):
                if has_collector():
                    rank_exchange.collects = True
                    store.set(KEPT, b"")
                rank_exchange.announced = int(os.environ.get("WORLD_SIZE", "0"))
                store.claim(PRESENT)
        finally:
            store.close()
    _enter_run(number, address is not None and spans_hosts(address[0]))


def _enter_run(number: str, several_hosts: bool) -> None:
    need_threads()
    # A second group of this process belongs to the same run.
    _variables.update(_variables or _variables_of(number))
    if several_hosts and os.environ.get("DDPTOP_HOSTS") != "off":
        _variables[EXCHANGED] = "1"
    os.environ.update(_variables)
    collector_keeper.ensure_collector()


def join_attached(number: str) -> None:
    """Join a run of its own on this host: for a process that `ddptop attach` has found running.

    Ranks that torchrun starts again are not recorded: the run ends with its members. Raises OSError,
    RunDirectoryError.
    """
    run_id = collector_start.run_id_of("attached", number)
    folder = str(collector_start.folder_of(run_id))
    _variables.clear()
    _variables.update({"DDPTOP_RUN_DIR": folder, "DDPTOP_RUN_ID": run_id, RESTARTED_BY: "0:0"})
    _enter_run(number, several_hosts=False)


def leave_run() -> None:
    """Remove the variables that `join_run` has set: commands that the script starts later are no ranks."""
    for name, value in _variables.items():
        if os.environ.get(name) == value:
            del os.environ[name]


_variables: dict[str, str] = {}
"""Environment of the run that this process has joined; also for the groups that it sets up later."""


def _variables_of(number: str) -> dict[str, str]:
    under_torchrun = os.environ.get("TORCHELASTIC_RUN_ID")
    parent = os.getppid()
    started = process_start(parent) or 0
    # torchrun restarts its ranks: all attempts are one run.
    parts = ("torchrun", under_torchrun, parent, started) if under_torchrun else ("group", number)
    run_id = collector_start.run_id_of(*parts)
    return {
        "DDPTOP_RUN_DIR": str(collector_start.folder_of(run_id)),
        "DDPTOP_RUN_ID": run_id,
        RESTARTED_BY: f"{parent}:{started}" if under_torchrun else "0:0",
    }


class CollectorKeeper:
    """Keeps a collector running, from a process that is a member of the run."""

    def __init__(self) -> None:
        self._member: int | None = None
        self._starts = 0
        self._due_s = 0.0
        self._watching_forks = False

    def ensure_collector(self) -> None:
        """Become a member, and start a collector unless there is one. Raises OSError, RunDirectoryError."""
        folder = Path(os.environ["DDPTOP_RUN_DIR"])
        ensure_run_directory(folder)
        self.end_membership()  # the folder may be another by now
        self._member = collector_start.become_member(folder)
        # `register_at_fork` cannot be undone: once is enough, whatever folder comes next.
        if not self._watching_forks:
            self._watching_forks = True
            os.register_at_fork(after_in_child=partial(run_after_fork, self.end_membership))
        if not read_command(folder):
            write_command(folder, sys.argv, arguments=os.environ.get("DDPTOP_ARGV") != "off")
        self._starts += collector_start.start_collector(
            folder, _agent_command(folder), processes.child_environment()
        )

    def restart_if_exited(self, last_ack_s: float) -> None:
        """Start a collector again if it has exited; called by the publisher.

        `last_ack_s`: when the last ack was received, by `time.monotonic`.
        """
        now_s = time.monotonic()
        if now_s - last_ack_s < CHECK_S or now_s < self._due_s or self._starts >= MAX_STARTS:
            return
        self._due_s = now_s + CHECK_S
        # Set only where the ranks themselves keep it running.
        if not os.environ.get(RESTARTED_BY):
            return
        try:
            self.ensure_collector()
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def end_membership(self) -> None:
        """End the membership; also in a forked child, which must not keep its parent's membership."""
        member, self._member = self._member, None
        if member is not None:
            os.close(member)


collector_keeper = CollectorKeeper()
"""The one of this process."""


def _agent_command(folder: Path) -> Sequence[str]:
    arguments = ["-m", "ddptop.cli.agent", str(folder), os.environ["DDPTOP_RUN_ID"], os.environ[RESTARTED_BY]]
    several = ["--several-hosts"] if os.environ.get(EXCHANGED) == "1" else []
    return [sys.executable, *arguments, *several]


class RankExchange:
    """This process's part in the exchange of addresses: that of its host, if no other rank has it."""

    def __init__(self) -> None:
        self._exchange: AddressExchange | None = None
        self._lock: int | None = None
        self.collects: bool | None = None
        """Whether the collector is on this host, where a host has had it before others joined; else None."""
        self.announced = 0
        """As in `Job`."""

    def begin_exchange(self, address: tuple[str, int] | None = None) -> None:
        """Begin it where the run has several hosts. Never raises.

        `address`: of the store, which can be reached; None: that of the default process group, which exists.
        """
        if os.environ.get(EXCHANGED) != "1" or self._exchange is not None:
            return
        try:
            address = address or address_of_default_store()
            folder = Path(os.environ["DDPTOP_RUN_DIR"])
            if address is None or not self._take_lock(folder):
                return
            first = os.environ.get("RANK", os.environ.get("SLURM_PROCID")) == "0"
            job = Job("ranks", *address, first=first, announced=self.announced)
            role = read_role(folder)
            if role is None and self.collects is not None:
                _write_role(folder, job, self.collects)
                role = read_role(folder)
            self._exchange = AddressExchange(
                folder,
                _connect_store,
                lambda job, collects: _write_role(folder, job, collects),
                collects=None if role is None else bool(role),
            )
            self._exchange.note_job(job)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def end_exchange(self) -> None:
        """End it; another rank of the host may go on with it. Waits half a second at most."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end_thread()
        self._release_lock()

    def _take_lock(self, folder: Path) -> bool:
        lock = open_regular(folder / "exchange", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        os.register_at_fork(after_in_child=partial(run_after_fork, self._release_lock))
        return True

    def _release_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _connect_store(job: Job) -> Store:
    return JobStore(job.address, job.port)


def _write_role(folder: Path, job: Job, collects: bool) -> None:
    port = os.environ.get("DDPTOP_PORT", "")
    write_role(folder, serve_argument(job, int(port) if port.isdecimal() else 0) if collects else "")


rank_exchange = RankExchange()
"""The one of this process."""
