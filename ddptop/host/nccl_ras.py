"""NCCL's own report of a job at a stall: its RAS service (NCCL 2.24 and later), queried over TCP.

Every NCCL process listens on `localhost:28028` or NCCL_RAS_ADDR and answers for the whole job: ranks that do
not respond, ranks that have launched fewer operations, errors. The protocol is that of the `ncclras` program
(NCCL, src/ras/client.cc and client_support.cc): lines that end with a newline, a handshake, then STATUS,
whose answer ends with the connection.

The collector queries it (never the training process) in a thread of its own; the report is recorded as
Event("ras") and shown beside our diagnosis and torch's.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping

from ddptop.protocol.messages import Event, Scalar
from ddptop.protocol.outlets import print_text

DEFAULT_ADDRESS = ("localhost", 28028)

PROTOCOL = 2
"""Version of the protocol; the server ignores the client's, and sends its own."""

COLLECT_S = 5
"""How long NCCL waits for its other processes: its own default."""

DEADLINE_S = 15.0
"""Longest time of one report. NCCL takes up to twice COLLECT_S if processes do not answer."""

CONNECT_S = 1.0

MAX_BYTES = 1 << 18
"""Size of a report at most. A healthy one has 1 KiB, one that lists ten outliers of each kind some more."""

TRIES = 8
"""Every NCCL process of a user on one host listens at the same port (SO_REUSEPORT): the kernel may choose one
of another job, and with each new connection it chooses anew."""

MAX_LINES, LINE_CHARACTERS = 4, 300

_SECTIONS = ("Errors", "Warnings")

NO_COMMUNICATOR = "No communicator data collected"


class RasError(OSError):
    """No RAS service of this job listens there, or what answers is none."""


def ras_address(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Where the service listens: NCCL_RAS_ADDR, `host:port` or `[IPv6]:port`; None: RAS is switched off."""
    if environment.get("NCCL_RAS_ENABLE", "1") == "0":
        return None
    text = environment.get("NCCL_RAS_ADDR", "")
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return DEFAULT_ADDRESS
    return host.strip("[]") or DEFAULT_ADDRESS[0], int(port)


def query_ras(where: tuple[str, int], pids: Collection[int]) -> str:
    """The status as NCCL writes it, from one of these processes. Blocks for DEADLINE_S at most.

    Raises:
        OSError: where no process listens or answers in time, or only processes of other jobs do.
    """
    end = time.monotonic() + DEADLINE_S
    for _ in range(TRIES):
        with socket.create_connection(where, timeout=CONNECT_S) as connection:
            exchange = _RasExchange(connection, end)
            if not exchange.ask_line(f"CLIENT PROTOCOL {PROTOCOL}").upper().startswith("SERVER PROTOCOL "):
                raise RasError("what listens there is no RAS service")
            # A new connection may reach another job's service: the kernel chooses among those that listen.
            # The port is shared by all jobs of the user on this host.
            if not _is_ours(connection, pids):
                continue
            exchange.ask_line(f"TIMEOUT {COLLECT_S}")
            status = exchange.ask_all("VERBOSE STATUS")
            # The section of warnings is the last one: without it the answer is not whole.
            if _SECTIONS[-1] not in status:
                raise RasError("the answer broke off")
            return status
    raise RasError("the RAS services found there belong to other jobs")


def ras_findings(status: str) -> list[str]:
    """The sections `Errors` and `Warnings` of the status, a line for each paragraph.

    `#0-0 MISMATCH: Communicator ranks have different AllReduce operation counts; 3 ranks have launched ...`.
    """
    paragraphs: list[str] = []
    inside = False
    paragraph: list[str] = []
    lines = [line.rstrip() for line in status.splitlines()]
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        underlined = bool(following) and set(following) == {"="}
        if line and not underlined and set(line) != {"="}:
            paragraph.append(line.strip())
            continue
        if inside and paragraph:
            paragraphs.append(_join_paragraph(paragraph))
        paragraph = []
        inside = line in _SECTIONS if underlined else inside
    if inside and paragraph:
        paragraphs.append(_join_paragraph(paragraph))
    return paragraphs[:MAX_LINES]


def _join_paragraph(paragraph: list[str]) -> str:
    """The first line is a title: `#0-0 (27a079b828ff1a75) MISMATCH`."""
    # The hash of the communicator says nothing to a person.
    title = " ".join(word for word in paragraph[0].split() if not word.startswith("("))
    return f"{title}: {'; '.join(paragraph[1:])}"[:LINE_CHARACTERS] if len(paragraph) > 1 else title


class _RasExchange:
    """Lines sent and received over one connection, until a moment of time.monotonic()."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection = connection
        self._end = end
        self._left = b""

    def ask_line(self, command: str) -> str:
        """Send a line; returns the line that answers it."""
        self._send_line(command)
        while b"\n" not in self._left:
            # An end without a newline ends the line, too.
            self._left += self._receive_piece() or b"\n"
        line, _, self._left = self._left.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def ask_all(self, command: str) -> str:
        """Send a line; returns all that comes until the other side closes."""
        self._send_line(command)
        while piece := self._receive_piece():
            self._left += piece
        return self._left.decode("utf-8", "replace")

    def _send_line(self, command: str) -> None:
        self._connection.sendall(command.encode() + b"\n")

    def _receive_piece(self) -> bytes:
        # One deadline for all of the exchange, since each piece starts a new timeout.
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("no answer in time")
        self._connection.settimeout(remaining)
        piece = self._connection.recv(1 << 14)
        if len(self._left) + len(piece) > MAX_BYTES:
            raise RasError("the answer is too long")
        return piece


def _is_ours(connection: socket.socket, pids: Collection[int]) -> bool:
    """Whether the other end of this connection is one of these processes of this host."""
    import psutil

    ours, theirs = connection.getsockname()[1], connection.getpeername()[1]
    for pid in pids:
        try:
            # psutil 6 has a new name for it.
            process = psutil.Process(pid)
            list_connections = getattr(process, "net_connections", None) or process.connections
            connections = list_connections(kind="tcp")
        except (psutil.Error, OSError):
            continue
        # The connection as its other end sees it: the ports change places.
        if any(c.raddr and (c.laddr.port, c.raddr.port) == (theirs, ours) for c in connections):
            return True
    return False


NOTHING_WRONG = "it finds all processes of the job there, with equal operation counts and without errors"
NOTHING_KNOWN = "it knows of no communicator"

Query = Callable[[tuple[str, int], Collection[int]], str]


class RasClient:
    """Queries NCCL's RAS service at a stall, once at a time. `query_at_stall` neither blocks nor raises."""

    def __init__(
        self,
        report: Callable[[Event, int], None],
        *,
        query: Query = query_ras,
        where: tuple[str, int] | None = None,
    ) -> None:
        """`report` takes the result, and the time in ns. `where`: for tests; else as NCCL is configured."""
        self._report = report
        self._query = query
        self._where = where if where is not None else ras_address()
        self._thread: threading.Thread | None = None
        self._asked_ns = 0
        self._status: str | None = None
        self._error = ""
        self._complained = False

    def query_at_stall(self, now_ns: int, answered: tuple[int, int] | None, pids: Collection[int]) -> None:
        """Query when ranks have answered at a stall, and report the result.

        `answered`: when they were asked, and the ASK's number.
        `pids`: this host's ranks whose group is NCCL's."""
        # Reported by this thread: the recording has one writer.
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            self._report_status(now_ns)
        if answered is None or not pids or self._where is None or self._thread is not None:
            return
        self._asked_ns, self._status, self._error = answered[0], None, ""
        self._thread = threading.Thread(
            target=self._query_status, args=(self._where, frozenset(pids)), name="ddptop-ras", daemon=True
        )
        self._thread.start()

    def _query_status(self, where: tuple[str, int], pids: Collection[int]) -> None:
        try:
            self._status = self._query(where, pids)
        except OSError as error:
            self._error = str(error)

    def _report_status(self, now_ns: int) -> None:
        if self._status is None:
            if not self._complained:  # the diagnosis does not need it: older NCCL has none
                self._complained = True
                print_text(f"ddptop collector: NCCL RAS: {self._error}", file=sys.stderr)
            return
        fields: dict[str, Scalar] = {"asked_ns": self._asked_ns}
        lines = ras_findings(self._status)
        if not lines:
            lines = [NOTHING_KNOWN if NO_COMMUNICATOR in self._status else NOTHING_WRONG]
        fields.update((f"text{number}", line) for number, line in enumerate(lines))
        self._report(Event("ras", now_ns, -1, -1, fields), now_ns)
