"""The ranks of this host on their socket: which process each message is of, acks, and what was refused.

The collector receives the ranks of its host with it, and an agent those of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.agent.internal_errors import InternalErrors
from ddptop.host.exits import RankProcess
from ddptop.host.runs import ingest_endpoint
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.evidence import asks_for_samples, requested_place
from ddptop.protocol.limits import MAX_TEXT, NS
from ddptop.protocol.messages import LEFT, RECORDED, Bye, Event, Hello, Received, Scalar, Steps
from ddptop.transport.receiver import AckedReceiver
from ddptop.transport.sockets import bind_again

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import zmq

    from ddptop.agent.admission import Admission
    from ddptop.host.rank_processes import ProcessWatch

REPORT_REFUSED_NS = 10 * NS
"""Least time between two reports of refused messages: a process that sends them in a loop must not fill the
recording."""


class LocalRanks:
    """Receives what the ranks of one host send, and knows which process is which rank.

    `receiver` is theirs alone. `watches_processes` is False where pids mean nothing (simulated ranks).
    """

    def __init__(
        self,
        receiver: AckedReceiver,
        watch: ProcessWatch,
        admission: Admission,
        *,
        watches_processes: bool = True,
    ) -> None:
        self._receiver = receiver
        self._watch = watch
        self._admission = admission
        self._watches_processes = watches_processes
        self._session_of: dict[int, int] = {}
        self.errors = InternalErrors()
        """Messages that an error of our own has cost."""
        self.world_size = 0
        """0: no rank has reported it yet."""
        self.asked: set[int] = set()
        """Sessions that were asked what they are doing; emptied by `HostWatch`."""
        self._reported_refused = (0, 0)
        self._report_refused_ns = 0

    @classmethod
    def bind(
        cls,
        context: zmq.Context[zmq.Socket[bytes]],
        directory: Path,
        watch: ProcessWatch,
        admission: Admission,
        *,
        run_id: str,
        epoch: int,
        check_hello: Callable[[Hello], None] = lambda hello: None,
        simulated_types: tuple[type, ...] = (),
        one_part: bool = False,
    ) -> LocalRanks:
        """Bind the socket in the run's folder to which the ranks connect.

        `epoch` names this process. `check_hello` raises ProtocolError to refuse a HELLO before the admission
        decides. `simulated_types`: further types of messages that simulated ranks send; empty: the ranks are
        real. `one_part`: as in `AckedReceiver`. Raises zmq.ZMQError.
        """

        def admit(hello: Hello, peer: int | None) -> None:
            check_hello(hello)
            admission(hello, peer)

        receiver = AckedReceiver(
            context,
            ingest_endpoint(directory),
            epoch=epoch,
            run_id=run_id,
            hold_acks=True,
            admit=admit,
            also=simulated_types,
        )
        receiver.one_part = one_part
        return cls(receiver, watch, admission, watches_processes=not simulated_types)

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The socket to poll for messages of ranks."""
        return self._receiver.socket

    def bind_again(self, directory: Path) -> None:
        """Bind in the run's folder once more, which was removed and made again. Raises zmq.ZMQError."""
        bind_again(self._receiver.socket, ingest_endpoint(directory))

    def close(self) -> None:
        """Close the socket; the context is the caller's."""
        self._receiver.close()

    def receive_messages(self, now_ns: int) -> list[tuple[Received, bytes]]:
        """The messages that have arrived, each with its encoded body. Never blocks."""
        return self._receiver.drain_messages(now_ns)

    def session_of(self, rank: int) -> int:
        """Session of the process that has this rank; 0: none has."""
        return self._session_of.get(rank, 0)

    def find_returning(self, received: Received) -> Hello | None:
        """The HELLO of the sender, where it has its rank again: the process that replaced it has ended.

        None where the sender has the rank already, or does not get it back.
        """
        if isinstance(received.message, Hello) or received.session == self.session_of(received.rank):
            return None
        return self._admission.find_returning(received.rank, received.session)

    def note_sender(self, received: Received, now_ns: int) -> None:
        """Note what a message says about the process that sent it."""
        message, session = received.message, received.session
        if isinstance(message, Hello):
            self.note_remote(message)
            if self._watches_processes:
                process = RankProcess(session, message.rank, message.pid)
                self._watch.watch_process(process, message.unix_ns / NS, now_ns)
        elif isinstance(message, Bye):
            self._watch.note_bye(session, left_group=message.reason == LEFT)
            self._admission.note_bye(received.rank, session)
        else:
            # A process may send BYE for one process group, and train on with the next.
            trains = isinstance(message, Steps)
            self._watch.note_message(session, now_ns, trains=trains)
            if trains:
                self._admission.note_bye(received.rank, session, sent=False)
            elif isinstance(message, Event) and message.fields.get("name") == RECORDED:
                self._watch.find_counter(session)

    def note_remote(self, hello: Hello) -> None:
        """Note that this process has its rank; another host's agent watches it."""
        self.world_size = hello.world_size
        # The process that had the rank before is not watched any more: its exit is no news.
        self._watch.forget_session(self.session_of(hello.rank))
        self._session_of[hello.rank] = hello.session

    def recall_sender(self, received: Received, now_ns: int) -> None:
        """Note the sender of a message that a collector or an agent before this one has received, as
        `note_sender`."""
        self.note_sender(received, now_ns)
        if isinstance(received.message, Hello):
            self._admission.recall_hello(received.message)

    def recall_number(self, session: int, seq: int) -> None:
        """Note that an earlier collector has recorded a session up to this number."""
        self._receiver.note_recorded(session, seq)

    def admit_unread(self, hello: Hello) -> bool:
        # No peer: nobody sent it, the process had left it in a file.
        """Whether the HELLO of a process that exited before it was read is admitted."""
        try:
            self._admission(hello, None)
        except ProtocolError:
            return False
        return True

    def ask_rank(self, session: int, number: int) -> None:
        """Ask the rank behind a session what it is doing; may get lost."""
        # Of samples its workers are of interest, where they may be what it waits for.
        if not asks_for_samples(number) or requested_place(number) == "data":
            self.asked.add(session)
        self._receiver.ask_rank(session, number)

    def mark_safe(self, session: int, seq: int) -> None:
        """Note that this session is kept for good up to `seq`; the next `acknowledge` says so to its rank."""
        self._receiver.mark_safe(session, seq)

    def acknowledge(self, *, safe: bool, detail_every: int) -> None:
        """Answer the ranks; `safe`: all that was received so far is kept for good.

        `detail_every`: the group's largest sampling interval, which every ack announces.
        """
        self._receiver.detail_every = detail_every
        self._receiver.acknowledge(safe=safe)

    def take_refused(
        self,
        now_ns: int,
        *,
        reason_prefix: str = "",
        refused_elsewhere: tuple[int, str] = (0, ""),
        final: bool = False,
    ) -> Event | None:
        """An event with the numbers of messages that were refused or failed, where they have changed.

        `refused_elsewhere`: how many were refused on other links, and why the last of them was. None where
        nothing has changed, or the last event was too short a time ago and this is not the `final` one.
        """
        n_elsewhere, why_elsewhere = refused_elsewhere
        counts = (self._receiver.refused + n_elsewhere, self.errors.count)
        if counts == self._reported_refused or (now_ns < self._report_refused_ns and not final):
            return None
        self._reported_refused, self._report_refused_ns = counts, now_ns + REPORT_REFUSED_NS
        reason = reason_prefix + (why_elsewhere or self._receiver.refused_why)
        fields: dict[str, Scalar] = {"refused": counts[0], "failed": counts[1], "reason": reason[:MAX_TEXT]}
        return Event("refused_messages", now_ns, -1, -1, fields)
