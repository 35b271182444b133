"""Which process may report as which rank. A HELLO that does not fit is refused and counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptop.host.processes import (
    ancestor_pids,
    belongs_to,
    innermost_pid,
    is_own_process,
    process_start,
    start_after,
)
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.limits import MAX_SHOWN_WORLD

if TYPE_CHECKING:
    from ddptop.protocol.messages import Hello


@dataclass(slots=True)
class _Process:
    """The process behind a session."""

    hello: Hello
    pid: int | None
    """In this process's pid namespace; None: not known."""
    start: int | None
    of_launcher: bool
    """Whether it descends from the run's launcher."""
    sent_bye: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether it has sent BYE, or is known to have exited."""
        return self.sent_bye or (self.pid is not None and not self._is_there)

    @property
    def is_alive(self) -> bool:
        """Whether it is known to run, and has not sent BYE."""
        return not self.sent_bye and self._is_there

    @property
    def _is_there(self) -> bool:
        # The start beside the pid, since the kernel gives a pid to another process after the first one has
        # ended.
        return self.pid is not None and self.start is not None and process_start(self.pid) == self.start


class Admission:
    """Decides on every HELLO. A rank belongs to its process as long as that runs.

    A new process takes the rank when the earlier one has exited or sent BYE, when one of the two descends
    from the other, or when only the new one descends from the launcher. Where the kernel does not report
    which process sent a HELLO (other pid namespaces), the newest process has the rank. A process that a rank
    has started is no rank where its world is another one: the rank runs a training of its own.
    """

    def __init__(self, *, launcher: int, most_ranks: int | None = None, simulated: bool = False) -> None:
        """`launcher`: pid of the process that started the run, or 0; `most_ranks`: how many ranks it starts,
        None: not known; `simulated`: one process reports as all ranks."""
        self._launcher = launcher
        self._most_ranks = most_ranks
        self._simulated = simulated
        self._holders: dict[int, _Process] = {}
        self._before: dict[int, _Process] = {}
        """By rank: the process that the holder replaced."""

    def __call__(self, hello: Hello, peer: int | None) -> None:
        """Admit a HELLO or raise ProtocolError; `peer`: pid of the process that sent it, None if unknown."""
        self.check_world(hello)
        if self._simulated:
            return
        # A child may have sent it; and the pid that a HELLO from a container has is one of another namespace.
        if peer is not None and not belongs_to(peer, hello.pid) and innermost_pid(peer) != hello.pid:
            raise ProtocolError(f"HELLO of process {hello.pid} was sent by process {peer}")
        before, holder = self._before.get(hello.rank), self._holders.get(hello.rank)
        if before is not None and before.hello.session == hello.session:
            return  # it reconnects after it was replaced: see `find_returning`
        newcomer = self._describe_process(hello, peer)
        self._check_starter(newcomer)
        if holder is not None and holder.hello.session != hello.session and holder.is_alive:
            self._check_holder(newcomer, holder)
        self._make_holder(newcomer)

    def recall_hello(self, hello: Hello) -> None:
        """Take over a HELLO that an earlier collector admitted; its pid counts if it is of this user."""
        if not self._simulated:
            # Only of this user, and not a process that has begun since: its pid may belong to another one by
            # now.
            ours = is_own_process(hello.pid) and start_after(hello.pid, hello.unix_ns / 1e9) is False
            self._make_holder(self._describe_process(hello, hello.pid if ours else None))

    def note_bye(self, rank: int, session: int, *, sent: bool = True) -> None:
        """Note that a rank's process has sent BYE (or, with `sent` False, trains on after it)."""
        for process in (self._holders.get(rank), self._before.get(rank)):
            if process is not None and process.hello.session == session:
                process.sent_bye = sent

    def find_returning(self, rank: int, session: int) -> Hello | None:
        """The HELLO of a process that still reports after the one that replaced it has ended, else None.

        That process has its rank again from now on.
        """
        before, holder = self._before.get(rank), self._holders.get(rank)
        if before is None or holder is None or before.hello.session != session or not holder.has_ended:
            return None
        # A process of an earlier restart does not get the rank of a later one.
        if not before.is_alive or before.hello.incarnation < holder.hello.incarnation:
            return None
        self._make_holder(before)
        return before.hello

    def check_world(self, hello: Hello) -> None:
        """Raise ProtocolError where the HELLO's world is not one that this run can have."""
        if hello.world_size > MAX_SHOWN_WORLD:
            raise ProtocolError(f"a world of {hello.world_size:,} ranks: {MAX_SHOWN_WORLD:,} can be shown")
        most = self._most_ranks
        if most is not None and hello.world_size > most:  # fewer may be a group: a helper trains nothing
            raise ProtocolError(f"a world of {hello.world_size:,} ranks: the launcher starts {most:,}")

    def _check_starter(self, newcomer: _Process) -> None:
        """Raise ProtocolError where a rank that runs has started this process, for another world."""
        # Looked up once, not for each rank: the chain of parents is read from /proc.
        above = set() if newcomer.pid is None else ancestor_pids(newcomer.pid)
        for holder in self._holders.values() if above else ():
            other_world = holder.hello.world_size != newcomer.hello.world_size
            if holder.pid in above and other_world and holder.is_alive:
                world, rank = newcomer.hello.world_size, holder.hello.rank
                world_phrase = f"a world of {world:,} ranks that rank {rank} has started for itself"
                raise ProtocolError(f"{world_phrase}: ddptop-run --ddptop-exec records it")

    def _check_holder(self, newcomer: _Process, holder: _Process) -> None:
        if newcomer.pid is None or holder.pid is None:
            return
        if belongs_to(newcomer.pid, holder.pid) or belongs_to(holder.pid, newcomer.pid):
            return
        # Whatever the launcher has started has the better claim: the other one was started by hand.
        if newcomer.of_launcher and not holder.of_launcher:
            return
        rank = holder.hello.rank
        raise ProtocolError(f"HELLO of process {newcomer.pid} as rank {rank}, which is process {holder.pid}")

    def _describe_process(self, hello: Hello, pid: int | None) -> _Process:
        if pid is None:
            return _Process(hello, None, None, of_launcher=False)
        of_launcher = self._launcher > 1 and belongs_to(pid, self._launcher)
        return _Process(hello, pid, process_start(pid), of_launcher)

    def _make_holder(self, process: _Process) -> None:
        rank = process.hello.rank
        holder = self._holders.get(rank)
        if holder is not None and holder.hello.session != process.hello.session:
            self._before[rank] = holder
        self._holders[rank] = process
