"""The other hosts of a run: their agents' link, who may report as which rank, and which hosts are silent.

Two agents may have the same host name. If the kernel's boot id and the pid namespace are the same, they are
shown as one host. Otherwise they are on two machines or in two containers. The one that came later is then
called `NAME (2)`, in its HOST and CLOCK and in the HELLO of its ranks.
"""

from __future__ import annotations

import ctypes
import socket
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ddptop.agent.host_usage import HostSampler, describe_host
from ddptop.agent.round_times import next_second_ns
from ddptop.collector.agent_port import announce_address, bind_port
from ddptop.collector.backlog import Backlog
from ddptop.host.processes import boot_and_namespace
from ddptop.protocol.codec import encode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.hosts import HOST_END, Host
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Clock, Event, Hello, Received
from ddptop.transport.curve import AGENTS, Gate, save_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import zmq

    from ddptop.agent.admission import Admission
    from ddptop.agent.launcher import Arguments
    from ddptop.analysis.reducer import Reducer
    from ddptop.collector.agent_port import Listen
    from ddptop.host.exits import RankProcess
    from ddptop.protocol.message_run import EncodedRun
    from ddptop.protocol.messages import Message

UNREACHABLE_NS = 3 * NS
"""Silence after which a host is out of reach (METRICS.md, Health): its agent sends something every 0.5 s."""

LOST_NS = 10 * NS
"""Silence after which a host is lost."""

LAST_REPLIES_MS = 500
"""How long the last acks have to go out at the end."""

BUNDLES = 400
"""Most bundles that are read in one round. 512 hosts send 150 while the collector sleeps and works, and
bundles that are read together cost less."""

TRIM_NS, JOINED_NS = 5 * NS, NS
"""How often free memory is given back to the system: usually, and until TRIM_NS after a host has joined. The
C library keeps tens of MB of messages that waited while many ranks joined. With 4,096 ranks giving it back
takes 3 ms of CPU time and frees 20 MB."""


class RemoteHosts:
    """Receives from the agents, for `Intake`. One thread; nothing blocks."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        arguments: Arguments,
        listen: Listen,
        reducer: Reducer,
        admission: Admission,
        *,
        epoch: int,
    ) -> None:
        """Bind, and write the file from which the agents know where.

        Raises OSError, RunDirectoryError or zmq.ZMQError where that is not possible.
        """
        self._reducer = reducer
        self._admission = admission
        self._run_id = arguments.run_id
        self._backlog = Backlog()
        self._own_host: OwnHost | None = None
        self._report: Callable[[Message, int], None] | None = None
        self._own_name, self._own_boot = socket.gethostname(), boot_and_namespace()
        self._names: dict[int, str] = {}
        """By its session: the name that an agent's host has in this run; empty: the one that it gave."""
        self._begun_ns = time.monotonic_ns()
        self._trim_ns, self._joined_ns = self._begun_ns + TRIM_NS, -TRIM_NS
        self._not_ended: dict[int, str] = {}
        """Name of the host by session of its agent, where that has not reported its end."""
        self._followed: set[int] = set()
        """Agents' sessions after which another one of the same host name has begun: most were killed."""
        self._lost: set[int] = set()
        """Agents' sessions whose hosts were noted as lost."""
        self._gate = Gate(context)
        try:
            self.receiver, self._keys, self._address, self.remark = bind_port(
                context, arguments.run_dir, listen, epoch=epoch, admit=self._admit_message
            )
        except BaseException:
            self._gate.close()
            raise
        self._gate.admit_keys(AGENTS, [self._keys.agents.public])
        self._run_name = arguments.name
        self._announce_address(arguments.run_dir)

    def write_files_again(self, folder: Path) -> None:
        """Write the address and the keys, which a next collector needs, into the folder that was made again.

        Raises RunDirectoryError, OSError.
        """
        save_keys(folder, self._keys)
        self._announce_address(folder)

    def _announce_address(self, folder: Path) -> None:
        announce_address(
            folder, run_id=self._run_id, name=self._run_name, address=self._address, keys=self._keys
        )

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """The sockets to poll for agents."""
        return [self._gate.socket, self.receiver.socket]

    @property
    def refused(self) -> int:
        """Connections, bundles and messages that were refused."""
        return self.receiver.refused + self._gate.refused

    @property
    def refused_why(self) -> str:
        """Why the last of them was."""
        return self.receiver.refused_why or self._gate.refused_why

    @property
    def emptied(self) -> bool:
        """Whether the last `receive_relayed` has read all that had arrived."""
        return self.receiver.emptied

    def receive_relayed(self, now_ns: int, *, at_once: bool = False) -> EncodedRun:
        """The messages in the bundles that have arrived (`BundleReceiver.drain_bundles`). What agents report
        of a rank's process is as of that rank."""
        # Questions first: who is let in now may send in this round.
        self._gate.answer_questions()
        arrived = self.receiver.drain_bundles(now_ns, BUNDLES, at_once=at_once)
        # Hosts that share a name are rare, so that messages are looked at one by one only with them.
        if len(arrived) and any(self._names.values()):
            arrived.take_apart(Clock)
            for number, (place, received) in enumerate(arrived.others):
                if isinstance(received.message, (Host, Hello, Clock)):
                    arrived.replace(number, *self._rename_host(received, arrived.body(place)))
        return arrived

    def recall_message(self, received: Received) -> None:
        """Take from a message, which an earlier collector has recorded, what is known of hosts."""
        message = received.message
        if isinstance(message, Host) and message.session:
            self._names[message.session] = message.name  # as it was recorded
            self._note_agent(message.session, message.name)
        elif isinstance(message, Event) and message.kind == HOST_END:
            self.note_end(received.session)
        self._backlog.recall_message(message)

    def note_end(self, session: int) -> None:
        """Note that the agent with this session has reported its end: all that it had is recorded."""
        self._not_ended.pop(session, None)

    def not_ended(self, now_ns: int) -> set[str]:
        """Names of the hosts whose agents have not reported their end, without those that are lost.

        If another agent of the host has taken over, the earlier one counts only while it is not silent.
        """
        heard_ns = {agent.host.session: agent.heard_ns for agent in self.receiver.connected_agents()}
        return {
            name
            for session, name in self._not_ended.items()
            if self._silence_ns(heard_ns.get(session, self._begun_ns), now_ns)
            <= (UNREACHABLE_NS if session in self._followed else LOST_NS)
        }

    def begin_reports(
        self, report: Callable[[Message, int], None], processes: Callable[[], Iterable[RankProcess]]
    ) -> None:
        """Report about this host, too, from now on: see `OwnHost`."""
        self._report = report
        self._own_host = OwnHost(self._run_id, report, processes)

    def check_hosts(self, begun_ns: int, *, emptied: bool, interrupted: bool) -> None:
        """End a round: report this host's usage; ask the agents for less, or more, detail; now and then give
        free memory back.

        `emptied`: all that had arrived was read; `interrupted`: this process had not run for a while.
        """
        now_ns = time.monotonic_ns()
        if self._own_host is None or self._report is None:
            return
        self._own_host.report_if_due(now_ns)
        if interrupted:
            self._backlog.forget_backlog(now_ns)
        elif self._backlog.note_round(begun_ns, now_ns, emptied=emptied):
            self._report(self._backlog.change_event(now_ns), now_ns)
        self.receiver.thin = self._backlog.thin
        if now_ns >= self._trim_ns:
            self._trim_ns = now_ns + (JOINED_NS if now_ns - self._joined_ns < TRIM_NS else TRIM_NS)
            with suppress(OSError, AttributeError):  # another C library than glibc has none
                ctypes.CDLL(None).malloc_trim(0)

    def is_remote(self, hello: Hello) -> bool:
        """Whether a recorded HELLO came through an agent."""
        return hello.host != self._own_name

    def check_rank(self, hello: Hello, host: str) -> None:
        """Refuse a HELLO from one host for a rank whose process, on another host, still reports.

        The newest process has a rank once the one before it has sent BYE, is reported to have exited, or has
        been silent for as long as puts a host out of reach; also one of a later incarnation, which any may
        claim: a restart ends the processes before it. A process that is refused tries again. Raises
        ProtocolError.
        """
        ranks = self._reducer.state.ranks
        holder = ranks[hello.rank] if hello.rank < len(ranks) else None
        if holder is None or holder.hello is None or not holder.running:
            return
        if holder.session == hello.session or holder.host == host:  # a host decides about its own processes
            return
        # A host whose agent is silent cannot say that its process has ended, and must not keep the rank for
        # ever.
        if self._silence_ns(holder.heard_ns, time.monotonic_ns()) < UNREACHABLE_NS:
            raise ProtocolError(f"rank {hello.rank} of host {host} is a process on host {holder.host}")

    def reachable_sessions(self, sessions: Iterable[int], now_ns: int) -> list[int]:
        """The sessions among these that can be asked: those behind a silent agent cannot."""
        agent_of = self.receiver.agent_of
        reached = []
        for session in sessions:
            agent = agent_of(session)
            if agent is None or self._silence_ns(agent.heard_ns, now_ns) <= UNREACHABLE_NS:
                reached.append(session)
        return reached

    def newly_lost(self, now_ns: int) -> bool:
        """Whether a host with ranks that run has become lost since the last call."""
        # First the cheap test: interruptions of this process are looked up only for silent agents.
        silent = [agent for agent in self.receiver.connected_agents() if now_ns - agent.heard_ns > LOST_NS]
        members = self._reducer.state.ranks if silent else ()
        running = {member.host for member in members if member.running}
        lost = {
            agent.host.session
            for agent in silent
            if self._silence_ns(agent.heard_ns, now_ns) > LOST_NS and self._name_of(agent.host) in running
        }
        before, self._lost = self._lost, lost
        # Lost ones that come back leave the set, and are news when they are lost again.
        return not lost <= before

    def close(self) -> None:
        """Close the sockets; the context is the caller's."""
        self.receiver.close(LAST_REPLIES_MS)
        self._gate.close()

    def _silence_ns(self, heard_ns: int, now_ns: int) -> int:
        return self._reducer.state.interruptions.silence_ns(heard_ns, now_ns)

    def _admit_message(self, message: Hello | Host, host: Host | None) -> None:
        if isinstance(message, Host):
            name_before = self._names.get(message.session)
            # A name is given once: an agent that connects again keeps it.
            if name_before is None or name_before == message.name:
                self._names[message.session] = "" if name_before else self._free_name(message)
            if name_before is None:
                self._note_agent(message.session, self._name_of(message))
        elif host is not None:
            # Which process is the rank is decided by its agent; here only its world, and that no other host
            # has it.
            self._admission.check_world(message)
            self.check_rank(message, self._name_of(host))

    def _note_agent(self, session: int, name: str) -> None:
        """Note that an agent has connected. An earlier one of the same name was killed, or runs beside it."""
        self._joined_ns = time.monotonic_ns()
        self._trim_ns = min(self._trim_ns, self._joined_ns + JOINED_NS)
        self._followed |= {
            agent_session
            for agent_session, host in self._not_ended.items()
            if host == name and agent_session != session
        }
        self._not_ended[session] = name

    def _name_of(self, host: Host) -> str:
        return self._names.get(host.session) or host.name

    def _free_name(self, host: Host) -> str:
        """A name for the host that no other machine of the run has; empty: the one that it gave itself."""
        name, number = host.name, 1
        while self._is_another_machine(name, host):
            number += 1
            name = f"{host.name} ({number})"
        return "" if number == 1 else name

    def _is_another_machine(self, name: str, host: Host) -> bool:
        # This host has no agent at this port, and is compared by itself.
        if name == self._own_name and host.boot_id != self._own_boot:
            return True
        now_ns = time.monotonic_ns()
        # A lost host does not keep its name: the same machine may come back, with another boot id.
        return any(
            self._name_of(agent.host) == name
            and agent.host.boot_id != host.boot_id
            and self._silence_ns(agent.heard_ns, now_ns) <= LOST_NS
            for agent in self.receiver.connected_agents()
        )

    def _rename_host(self, received: Received, body: bytes) -> tuple[Received, bytes]:
        message = received.message
        if not isinstance(message, (Host, Hello, Clock)):
            return received, body
        # By the connection: a HELLO says the name that the rank's own host gives itself.
        agent = self.receiver.agent_of(received.session)
        name = "" if agent is None else self._names.get(agent.host.session, "")
        if not name:
            return received, body
        if isinstance(message, Host):
            renamed: Host | Hello | Clock = replace(message, name=name)
        else:
            renamed = replace(message, host=name)
        return received._replace(message=renamed), encode(renamed)


class OwnHost:
    """Reports the collector's own host: introduces it, then reports its usage once a second.

    These messages have session 0, as all messages of the collector itself.
    """

    def __init__(
        self,
        run_id: str,
        report: Callable[[Message, int], None],
        processes: Callable[[], Iterable[RankProcess]],
    ) -> None:
        """`report` takes a message and the time; `processes` gives those of the ranks on this host."""
        self._report = report
        self._sampler = HostSampler(processes)
        self._due_ns = 0
        # Read once, so that the message's time is that of its clocks.
        clocks = (time.monotonic_ns(), time.time_ns())
        report(describe_host(socket.gethostname(), run_id, 0, lambda: clocks), clocks[0])

    def report_if_due(self, now_ns: int) -> None:
        """Report the usage, if it is due."""
        if now_ns < self._due_ns:
            return
        self._due_ns = next_second_ns(now_ns)
        self._report(self._sampler.read_usage(now_ns), now_ns)
