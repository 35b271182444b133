"""The hosts that have introduced themselves, and what their agents report about processes of ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError, UnknownType
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.hosts import About, Host, HostLink, HostUsage
from ddptop.protocol.limits import NS
from ddptop.protocol.machine import Gpu, Usage
from ddptop.protocol.messages import Event, Received

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.steps.clocks import HostClocks
    from ddptop.protocol.message_run import Readings
    from ddptop.protocol.vocabulary import HostState

BACK_NS = 8 * NS
"""Time that the ranks of a host have to answer once it is within reach again: a question that was lost with
its agent is repeated after 5 s."""


@dataclass(slots=True)
class KnownHost:
    """A host that has introduced itself."""

    agent: Host
    usage: HostUsage | None = None
    """The newest reading of its usage."""
    thinned: int = 0
    """As it says."""
    heard_ns: int = 0
    """When the newest message of its agent arrived, on the collector's clock."""
    silent_ns: int = 0
    """Its last silence of more than a second."""
    out_ns: int = 0
    """When it was last found to be out of reach, or another agent of it came; 0: never."""
    out_since_ns: int = 0
    """When the first of the short silences began that follow each other closely."""
    links: tuple[HostLink, ...] = ()
    links_ns: int = 0
    """When its links to other hosts were last read, by its own clock; 0: never."""
    addresses: set[str] = field(default_factory=set)
    """From which links of it have gone out."""
    said_addresses: set[str] = field(default_factory=set)
    """Addresses of its network interfaces, as its agents have said: one that began while a cable was out
    lacks some."""

    def take(self, usage: HostUsage) -> None:
        """A reading of it; the links are not read every time."""
        self.usage, self.thinned = usage, usage.thinned
        if usage.links is not None:
            self.links, self.links_ns = usage.links, usage.t_ns
            self.addresses.update(link.own for link in usage.links)

    def note_out_of_reach(self, now_ns: int, *, briefly: bool) -> None:
        """Nothing comes from it, or its agent is another. `briefly`: for less than counts as silent."""
        if not briefly or now_ns - self.out_ns >= BACK_NS:
            self.out_since_ns = now_ns
        self.out_ns = now_ns

    def note_message(self, t_ns: int) -> None:
        """A message of its agent arrived."""
        if t_ns - self.heard_ns > NS:
            self.silent_ns = t_ns - self.heard_ns
        self.heard_ns = max(self.heard_ns, t_ns)


class Hosts:
    """The hosts whose agents have introduced themselves. A run on one host may have none."""

    def __init__(self) -> None:
        self.known: dict[str, KnownHost] = {}
        self.own: str | None = None
        """The host of the collector; None: not known."""
        self.states: tuple[tuple[int, int], dict[str, HostState]] | None = None
        """What `health/hosts.py` computed last: messages taken and time, and the states of all hosts."""
        self.bad_links: dict[tuple[str, str], tuple[str, float, bool]] = {}
        """By host and address of the other end: a link that loses segments or is slow, in words, since when
        (unix time, s), and whether it loses segments or is cut."""
        self.full_disks: dict[tuple[str, str], tuple[str, float, int]] = {}
        """By host and folder, that nothing can be written there, in words, since when (unix time, s), and the
        time of the newest report (ns)."""
        self._of_agent: dict[int, KnownHost] = {}
        """By session of the agent."""

    def of_agent(self, session: int) -> str | None:
        """The host of an agent; None: no agent has this session."""
        known_host = self._of_agent.get(session)
        return None if known_host is None else known_host.agent.name

    def take(self, host: Host, session: int, t_ns: int) -> None:
        """A host introduces itself; `session` 0: the collector, which is the agent of its own host."""
        before = self.known.get(host.name)
        known_host = self.known[host.name] = before or KnownHost(host, heard_ns=t_ns)
        if known_host.agent.session != host.session:
            known_host.note_out_of_reach(t_ns, briefly=True)
        known_host.agent = host
        known_host.said_addresses.update(host.addresses)
        known_host.note_message(t_ns)
        if session:
            self._of_agent[session] = known_host
        else:
            self.own = host.name

    def note_message(self, session: int, t_ns: int) -> KnownHost | None:
        """A message of an agent arrived, or of the collector itself (session 0)."""
        known_host = self._of_agent.get(session) if session else self.known.get(self.own or "")
        if known_host is not None and session:
            known_host.note_message(t_ns)
        return known_host

    def take_readings(self, readings: Readings, sessions: Sequence[int], t_ns: Sequence[int]) -> None:
        """CLOCK or HOSTUSAGE messages: from whose agent each is, and when it arrived."""
        senders, own_host = [*map(self._of_agent.get, sessions)], self.known.get(self.own or "")
        for known_host, heard_ns in zip(senders, t_ns, strict=True):
            if known_host is not None and heard_ns > known_host.heard_ns:
                known_host.note_message(heard_ns)
        if readings.kind is not HostUsage:
            return
        for known_host, session, usage in zip(senders, sessions, readings.messages(), strict=True):
            host = known_host if session else own_host
            if host is not None:
                host.take(cast("HostUsage", usage))

    def is_remote(self, name: str) -> bool:
        """Whether the host has an agent that is not the collector."""
        return name in self.known and name != self.own

    def remote(self) -> list[str]:
        """The hosts with an agent of their own."""
        names = [*self.known]
        if self.own in self.known:
            names.remove(self.own)
        return names


def unwrap(about: About, t_ns: int, clocks: HostClocks, host: str) -> Received | None:
    """What an agent reports about a process of one of its ranks, as if the collector had seen it.

    None: it is nothing that an agent may report. An event is dated back to when it happened, as far as the
    host's clock is known: it may have been kept while the link was cut.
    """
    try:
        message = decode(about.body)
    except (ProtocolError, UnknownType):
        return None
    if isinstance(message, (Usage, Gpu, Evidence)):
        return Received(t_ns, about.rank, about.session, 0, message)
    if not isinstance(message, Event):
        return None
    happened_ns = clocks.to_collector(host, message.t_ns)
    at_ns = t_ns if happened_ns is None else max(0, min(t_ns, happened_ns))
    fields = {**message.fields, "session": about.session}
    return Received(at_ns, -1, 0, 0, Event(message.kind, at_ns, about.rank, message.step, fields))
