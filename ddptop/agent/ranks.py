"""The ranks of this host as their agent knows them: who reports, how far each is, and what is relayed of it.

What a next agent must know, should this one be killed, is in the file `agent-ranks` of the run's folder: the
HELLOs of processes whose exit the collector does not know, and which of them have sent BYE.
"""

from __future__ import annotations

import socket
import sys
import traceback
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgpack

from ddptop.host.exits import RankProcess
from ddptop.host.folders import RunDirectoryError, check_private, open_private, open_regular, write_private
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.hosts import About
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES, MAX_TEXT, NS
from ddptop.protocol.messages import (
    LEFT,
    Bye,
    Card,
    Event,
    Flag,
    Hello,
    Message,
    Progress,
    Received,
    Scalar,
    Steps,
)
from ddptop.protocol.outlets import print_text
from ddptop.transport.bundles import MAX_THIN

if TYPE_CHECKING:
    from pathlib import Path

    from ddptop.agent.admission import Admission
    from ddptop.agent.outbox import Outbox
    from ddptop.host.rank_processes import ProcessWatch
    from ddptop.transport.bundle_sender import BundleSender
    from ddptop.transport.receiver import AckedReceiver

RANKS_FILE = "agent-ranks"

MAX_FILE_BYTES = 4 << 20

REPORT_REFUSED_NS = 10 * NS
"""Least time between two reports of refused messages."""

END_NS = NS
"""So long a process waits for the ack of its BYE."""

FINAL = frozenset({"lost_rank", "exit"})
"""Kinds of events after which a process need not be watched any more."""


@dataclass(slots=True)
class _Session:
    hello: Hello
    next_step: int = 0
    """Steps whose rows have arrived."""
    progress: Progress | None = None
    bus_id: str = ""
    reported: int = 0
    """Number of the agent's message that reports its exit; 0: it has not exited, -1: the collector knows."""
    said_bye: bool = False


class HostRanks:
    """Takes what ranks send into the outbox; implements `RanksOfHost` for what is watched from outside."""

    def __init__(
        self,
        directory: Path,
        receiver: AckedReceiver,
        sender: BundleSender,
        outbox: Outbox,
        watch: ProcessWatch,
        admission: Admission,
    ) -> None:
        self._directory = directory
        self._receiver = receiver
        receiver.one_part = True
        self._sender = sender
        self._outbox = outbox
        self._watch = watch
        self._admission = admission
        self._sessions: dict[int, _Session] = {}
        self._session_of: dict[int, int] = {}
        self._ends_until_ns = 0
        self._failed = 0
        """Messages that an error of our own has cost."""
        self._reported_refused = (0, 0)
        self._report_refused_ns = 0
        self._changed = False
        """The file is out of date."""
        self.world_size = 0
        """0: no rank has reported it yet."""
        self.asked: set[int] = set()
        self.thinned = 0
        """Step rows whose bucket detail was left out, because the collector asked for it."""

    def drain(self, now_ns: int) -> int:
        """Take all that has arrived; returns the number of messages."""
        arrived = self._receiver.drain_messages(now_ns)
        for received, body in arrived:
            try:
                self._take(received, body, now_ns)
            except Exception:  # noqa: BLE001 - an error costs one message, not the agent
                self._failed += 1
                if self._failed == 1:
                    print_text(traceback.format_exc(), file=sys.stderr, end="")
        if self._changed:
            self._changed = False
            self._write()
        return len(arrived)

    def report_refused(self, now_ns: int) -> None:
        """Report how many messages were refused or failed, where that has changed since the last time."""
        counts = (self._receiver.refused, self._failed)
        if counts == self._reported_refused or now_ns < self._report_refused_ns:
            return
        self._reported_refused, self._report_refused_ns = counts, now_ns + REPORT_REFUSED_NS
        fields: dict[str, Scalar] = {
            "refused": counts[0],
            "failed": counts[1],
            "reason": f"{socket.gethostname()}: {self._receiver.refused_why}"[:MAX_TEXT],
        }
        self._outbox.report(Event("refused_messages", now_ns, -1, -1, fields), now_ns)

    def any_ends(self, now_ns: int) -> bool:
        """Whether a process has sent BYE just now, and waits for its ack before it ends."""
        return now_ns < self._ends_until_ns

    def recall(self, now_ns: int) -> None:
        """Watch the processes that an agent before this one has watched."""
        for hello, said_bye in _read(self._directory):
            self._admission.recall(hello)
            self._note_hello(hello, now_ns)
            if said_bye:
                self._note_bye(hello.rank, hello.session)
            received = Received(now_ns, hello.rank, hello.session, 0, hello)
            self._outbox.take(received, encode(hello))

    def note_acked(self, number: int) -> None:
        """The collector has the agent's own messages up to this number: exits that it knows are forgotten."""
        done = [name for name, one in self._sessions.items() if 0 < one.reported <= number]
        for name in done:
            self._sessions[name].reported = -1
        self._changed |= bool(done)

    # -- RanksOfHost ------------------------------------------------------------

    def report(
        self, message: Message, now_ns: int, *, about: RankProcess | None = None, keep: bool = True
    ) -> None:
        """Report about one rank's process, or an event of the host as a whole.

        `keep`: False for a reading that only a live screen needs.
        """
        if about is None:
            assert isinstance(message, Event)
            self._outbox.report(message, now_ns, urgent=True)
            return
        if not keep and not self._sender.connected:
            return
        urgent = keep and isinstance(message, Event)
        number = self._outbox.report(About(about.rank, about.session, encode(message)), now_ns, urgent=urgent)
        known = self._sessions.get(about.session)
        if known is not None and isinstance(message, Event) and message.kind in FINAL:
            known.reported = number

    def note_death(self, now_ns: int) -> None:
        """The collector asks the other ranks, once it has the report."""

    def steps_of(self, session: int) -> tuple[int, int]:
        """For a process: (steps whose rows have arrived, steps that it has finished at least)."""
        known = self._sessions.get(session)
        if known is None:
            return 0, 0
        # Where this agent has lost some, the collector is to have the number in any case: it knows which.
        arrived = 0 if self._outbox.lost_rows else known.next_step
        return arrived, max(known.next_step, known.progress.step if known.progress else 0)

    def progress_of(self, process: RankProcess) -> tuple[int, Progress | None]:
        """Its step and newest heartbeat."""
        known = self._sessions.get(process.session)
        progress = None if known is None else known.progress
        return self.steps_of(process.session)[1], progress

    def bus_id_of(self, process: RankProcess) -> str:
        """PCI bus id of the GPU that a rank reports to use; empty where it has none."""
        known = self._sessions.get(process.session)
        return "" if known is None else known.bus_id

    def take_unread(self, hello: Hello, now_ns: int) -> bool:
        """Take the HELLO of a process that exited before it was read; False where its rank is another's."""
        holder = self._sessions.get(self._session_of.get(hello.rank, 0))
        if holder is not None and holder.reported == 0 and not holder.said_bye:
            return False
        try:
            self._admission(hello, None)
        except ProtocolError:
            return False
        self._take(Received(now_ns, hello.rank, hello.session, 0, hello), encode(hello), now_ns)
        return True

    @property
    def known_sessions(self) -> Container[int]:
        """Sessions whose HELLO was received."""
        return self._sessions

    # -- inside -----------------------------------------------------------------

    def _take(self, received: Received, body: bytes, now_ns: int) -> None:
        message, session = received.message, received.session
        known = self._sessions.get(session)
        if isinstance(message, Hello):
            self._note_hello(message, now_ns)
            self._changed = True
        elif isinstance(message, Bye):
            self._note_bye(received.rank, session, left_group=message.reason == LEFT)
            self._changed = True
            self._sender.flush()
            self._ends_until_ns = now_ns + END_NS
        else:
            if session != self._session_of.get(received.rank):
                self._note_returning(received.rank, session, now_ns)
            trains = isinstance(message, Steps)
            self._watch.note_message(session, now_ns, trains=trains)
            if trains:
                self._admission.note_bye(received.rank, session, sent=False)
                if known is not None:
                    known.said_bye = False
        if known is not None:
            if isinstance(message, Steps):
                known.next_step = max(known.next_step, message.first_step + len(message.rows))
                received, body = self._thinned(received, message, body)
            elif isinstance(message, Progress):
                known.progress = message
            elif isinstance(message, Card):
                known.bus_id = str(message.entries.get("gpu.bus_id") or known.bus_id)
        self._outbox.take(received, body)

    def _note_hello(self, hello: Hello, now_ns: int) -> None:
        self.world_size = hello.world_size
        before = self._session_of.get(hello.rank, 0)
        self._watch.forget_session(before)
        if before in self._sessions:
            self._sessions[before].reported = -1
        self._session_of[hello.rank] = hello.session
        self._sessions.setdefault(hello.session, _Session(hello))
        process = RankProcess(hello.session, hello.rank, hello.pid)
        self._watch.watch_process(process, hello.unix_ns / NS, now_ns)

    def _note_bye(self, rank: int, session: int, *, left_group: bool = False) -> None:
        self._watch.note_bye(session, left_group=left_group)
        self._admission.note_bye(rank, session)
        if session in self._sessions:
            self._sessions[session].said_bye = True

    def _note_returning(self, rank: int, session: int, now_ns: int) -> None:
        """A process still reports after the one that replaced it has ended: the collector learns it again."""
        hello = self._admission.returning(rank, session)
        if hello is not None:
            self._note_hello(hello, now_ns)
            self._outbox.take(Received(now_ns, rank, session, 0, hello), encode(hello))

    def _thinned(self, received: Received, steps: Steps, body: bytes) -> tuple[Received, bytes]:
        """Without the bucket detail that the collector does not want at present."""
        thin = self._sender.thin
        if not thin:
            return received, body
        every = max(1, self._sender.detail_every) << thin if thin < MAX_THIN else 0
        rows = tuple(
            row._replace(cells=(), flags=row.flags & ~Flag.DETAIL)
            if row.cells and (not every or step % every)
            else row
            for step, row in enumerate(steps.rows, steps.first_step)
        )
        thinned = sum(bool(old.cells) != bool(new.cells) for old, new in zip(steps.rows, rows, strict=True))
        if not thinned:
            return received, body
        self.thinned += thinned
        message = Steps(steps.generation, steps.first_step, steps.base_ns, rows)
        return received._replace(message=message), encode(message)

    def _write(self) -> None:
        hellos = [(encode(one.hello), one.said_bye) for one in self._sessions.values() if one.reported >= 0]
        with suppress(OSError, RunDirectoryError), open_private(self._directory) as folder:
            write_private(folder, RANKS_FILE, msgpack.packb(hellos))


def _read(directory: Path) -> list[tuple[Hello, bool]]:
    """The HELLOs in the file, and whether a BYE followed; none where there is no file of ours."""
    try:
        with open_private(directory) as folder:
            descriptor = open_regular(RANKS_FILE, inside=folder)
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
                check_private(descriptor, directory / RANKS_FILE)
                data = file.read(MAX_FILE_BYTES)
        pairs = msgpack.unpackb(data, max_bin_len=MAX_RANK_MESSAGE_BYTES, max_str_len=0, max_map_len=0)
        messages = [(decode(body), bool(said_bye)) for body, said_bye in pairs]
    except (OSError, RunDirectoryError, ValueError, TypeError, ProtocolError, msgpack.UnpackException):
        return []
    return [(message, said_bye) for message, said_bye in messages if isinstance(message, Hello)]
