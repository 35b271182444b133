"""What an agent relays of its host's ranks, and how far each of them is.

What a next agent must know, should this one be killed, is in the file `agent-ranks` of the run's folder: the
HELLOs of processes whose exit the collector does not know, and which of them have sent BYE.
"""

from __future__ import annotations

import socket
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgpack

from ddptop.host.exits import RankProcess
from ddptop.host.folders import RunDirectoryError, open_private, read_private, write_private
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.hosts import About
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES, NS
from ddptop.protocol.messages import (
    FINISHED,
    Bye,
    Card,
    Event,
    Flag,
    Hello,
    Message,
    Progress,
    Received,
    Steps,
)
from ddptop.transport.bundles import MAX_THIN

if TYPE_CHECKING:
    from pathlib import Path

    from ddptop.agent.local_ranks import LocalRanks
    from ddptop.agent.outbox import Outbox
    from ddptop.transport.bundle_sender import BundleSender

RANKS_FILE = "agent-ranks"

MAX_FILE_BYTES = 4 << 20

END_NS = NS
"""How long a process waits for the ack of its BYE."""

FINAL = frozenset({"lost_rank", "exit"})
"""Kinds of events after which a process need not be watched any more."""


@dataclass(slots=True)
class _RelayedSession:
    hello: Hello
    next_step: int = 0
    """Steps whose rows have arrived."""
    progress: Progress | None = None
    bus_id: str = ""
    reported: int = 0
    """Number of the agent's message that reports its exit; 0: it has not exited, -1: the collector knows."""
    said_bye: bool = False


class RankRelay:
    """Takes what ranks send into the outbox; implements `RanksOfHost` for what is watched from outside."""

    def __init__(self, directory: Path, ranks: LocalRanks, sender: BundleSender, outbox: Outbox) -> None:
        self._directory = directory
        self._ranks = ranks
        self._sender = sender
        self._outbox = outbox
        self._sessions: dict[int, _RelayedSession] = {}
        self._ends_until_ns = 0
        self._changed = False
        """The file is out of date."""
        self.asked = ranks.asked
        self.thinned = 0
        """Step rows whose bucket detail was left out, because the collector asked for it."""

    def relay_arrived(self, now_ns: int) -> int:
        """Take all that has arrived; returns the number of messages."""
        arrived = self._ranks.receive_messages(now_ns)
        for received, body in arrived:
            with self._ranks.errors:  # an error costs one message, not the agent
                self._take_message(received, body, now_ns)
        if self._changed:
            self._changed = False
            self._write_ranks_file()
        return len(arrived)

    def report_refused(self, now_ns: int) -> None:
        """Report how many messages were refused or failed, where that has changed since the last time."""
        event = self._ranks.take_refused(now_ns, reason_prefix=f"{socket.gethostname()}: ")
        if event is not None:
            self._outbox.report_message(event, now_ns)

    def any_ends(self, now_ns: int) -> bool:
        """Whether a process has sent BYE just now, and waits for its ack before it ends."""
        return now_ns < self._ends_until_ns

    def recall_ranks(self, now_ns: int) -> None:
        """Watch the processes that an agent before this one has watched."""
        for hello, said_bye in _read_ranks_file(self._directory):
            received = Received(now_ns, hello.rank, hello.session, 0, hello)
            self._note_hello(hello)
            self._ranks.recall_sender(received, now_ns)
            if said_bye:
                self._sessions[hello.session].said_bye = True
                self._ranks.recall_sender(received._replace(message=Bye(now_ns, FINISHED)), now_ns)
            self._outbox.take_message(received, encode(hello))

    def note_acked(self, number: int) -> None:
        """Note that the collector has the agent's own messages up to this number: exits that it knows are
        forgotten."""
        done = [name for name, relayed in self._sessions.items() if 0 < relayed.reported <= number]
        for name in done:
            self._sessions[name].reported = -1
        self._changed |= bool(done)

    # -- RanksOfHost ------------------------------------------------------------

    def report_message(
        self, message: Message, now_ns: int, *, about: RankProcess | None = None, keep: bool = True
    ) -> None:
        """Report about one rank's process, or an event of the host as a whole.

        `keep`: False for a reading that only a live screen needs.
        """
        if about is None:
            assert isinstance(message, Event)
            # Events are rare, and what they tell ends a wait of somebody: they do not wait for the next
            # bundle.
            self._outbox.report_message(message, now_ns, urgent=True)
            return
        # A reading for a live screen is worthless by the time at which the link is back.
        if not keep and not self._sender.connected:
            return
        urgent = keep and isinstance(message, Event)
        number = self._outbox.report_message(
            About(about.rank, about.session, encode(message)), now_ns, urgent=urgent
        )
        relayed = self._sessions.get(about.session)
        if relayed is not None and isinstance(message, Event) and message.kind in FINAL:
            relayed.reported = number

    def report_readings(
        self, readings: Sequence[tuple[RankProcess, Message]], now_ns: int, *, keep: bool
    ) -> None:
        """Report readings of processes."""
        for process, reading in readings:
            self.report_message(reading, now_ns, about=process, keep=keep)

    def note_death(self, now_ns: int) -> None:
        """Nothing: the collector asks the other ranks, once it has the report."""

    def steps_of(self, session: int) -> tuple[int, int]:
        """For the process of a session: steps whose rows have arrived, and steps that it has finished at
        least."""
        relayed = self._sessions.get(session)
        if relayed is None:
            return 0, 0
        # If this agent lacks rows, it must report the number in any case: the collector knows which ones.
        arrived = 0 if self._outbox.lost_rows else relayed.next_step
        return arrived, max(relayed.next_step, relayed.progress.step if relayed.progress else 0)

    def progress_of(self, process: RankProcess) -> tuple[int, Progress | None]:
        """Its step and newest heartbeat."""
        relayed = self._sessions.get(process.session)
        progress = None if relayed is None else relayed.progress
        return self.steps_of(process.session)[1], progress

    def bus_id_of(self, process: RankProcess) -> str:
        """PCI bus id of the GPU that a rank reports to use; empty where it has none."""
        relayed = self._sessions.get(process.session)
        return "" if relayed is None else relayed.bus_id

    def take_unread(self, hello: Hello, now_ns: int) -> bool:
        """Take the HELLO of a process that exited before it was read; False where its rank is another's."""
        holder = self._sessions.get(self._ranks.session_of(hello.rank))
        # The rank belongs to a process that still runs and has not said goodbye.
        if holder is not None and holder.reported == 0 and not holder.said_bye:
            return False
        if not self._ranks.admit_unread(hello):
            return False
        self._take_message(Received(now_ns, hello.rank, hello.session, 0, hello), encode(hello), now_ns)
        return True

    @property
    def known_sessions(self) -> Container[int]:
        """Sessions whose HELLO was received."""
        return self._sessions

    # -- inside -----------------------------------------------------------------

    def _take_message(self, received: Received, body: bytes, now_ns: int) -> None:
        hello = self._ranks.find_returning(received)
        if hello is not None:  # the collector, which has the other process's HELLO, learns it again
            self._take_message(
                Received(now_ns, received.rank, received.session, 0, hello), encode(hello), now_ns
            )
        message = received.message
        if isinstance(message, Hello):
            self._note_hello(message)
        self._ranks.note_sender(received, now_ns)
        session = self._sessions.get(received.session)
        if session is not None:
            self._note_message(session, message)
        if isinstance(message, Bye):
            self._sender.flush()
            self._ends_until_ns = now_ns + END_NS
        if session is not None and isinstance(message, Steps):
            received, body = self._thin_steps(received, message, body)
        self._outbox.take_message(received, body)

    def _note_hello(self, hello: Hello) -> None:
        before = self._ranks.session_of(hello.rank)
        if before != hello.session and before in self._sessions:
            # Not to be watched by a next agent: another process has the rank.
            self._sessions[before].reported = -1
        self._sessions.setdefault(hello.session, _RelayedSession(hello))
        self._changed = True

    def _note_message(self, session: _RelayedSession, message: Message) -> None:
        # Steps after a BYE: it has begun to train again, in another process group.
        if isinstance(message, Steps):
            session.said_bye = False
            session.next_step = max(session.next_step, message.first_step + len(message.rows))
        elif isinstance(message, Progress):
            session.progress = message
        elif isinstance(message, Card):
            session.bus_id = str(message.entries.get("gpu.bus_id") or session.bus_id)
        elif isinstance(message, Bye):
            session.said_bye = self._changed = True

    def _thin_steps(self, received: Received, steps: Steps, body: bytes) -> tuple[Received, bytes]:
        """The message without the bucket detail that the collector does not want at present."""
        thin = self._sender.thin
        if not thin:
            return received, body
        # All agents keep the same steps, by their numbers: a bucket is timed only if all ranks have it.
        every = max(1, self._sender.detail_every)
        kept_every = 1 << thin if thin < MAX_THIN else 0
        rows = tuple(
            row._replace(cells=(), flags=row.flags & ~Flag.DETAIL)
            if row.cells and (not kept_every or step // every % kept_every)
            else row
            for step, row in enumerate(steps.rows, steps.first_step)
        )
        thinned = sum(bool(old.cells) != bool(new.cells) for old, new in zip(steps.rows, rows, strict=True))
        if not thinned:
            return received, body
        self.thinned += thinned
        message = Steps(steps.generation, steps.first_step, steps.base_ns, rows)
        return received._replace(message=message), encode(message)

    def _write_ranks_file(self) -> None:
        hellos = [
            (encode(relayed.hello), relayed.said_bye)
            for relayed in self._sessions.values()
            if relayed.reported >= 0
        ]
        # The file only helps the next agent: without it that one knows fewer processes, and goes on.
        with suppress(OSError, RunDirectoryError), open_private(self._directory) as folder:
            write_private(folder, RANKS_FILE, msgpack.packb(hellos))


def _read_ranks_file(directory: Path) -> list[tuple[Hello, bool]]:
    """The HELLOs in the file, and whether a BYE followed; none where there is no file of ours."""
    try:
        data = read_private(directory, RANKS_FILE, MAX_FILE_BYTES)
        pairs = msgpack.unpackb(data, max_bin_len=MAX_RANK_MESSAGE_BYTES, max_str_len=0, max_map_len=0)
        messages = [(decode(body), bool(said_bye)) for body, said_bye in pairs]
    except (OSError, RunDirectoryError, ValueError, TypeError, ProtocolError, msgpack.UnpackException):
        return []
    return [(message, said_bye) for message, said_bye in messages if isinstance(message, Hello)]
