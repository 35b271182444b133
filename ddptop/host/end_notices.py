"""A launcher's notice to the ranks of its host: it ends them by a signal in a moment.

A signal ends a rank at once, and with it the steps that its publisher has not sent, of up to a quarter of a
second. The launcher knows it before. So each rank has a datagram socket in the run's folder. Before its
signal the launcher asks each of them to send what it has, and waits for their answers, NOTICE_S at most. A
rank whose step lasts also sends its stacks: the others may have given up waiting for it.

The ranks handle signals as without ddptop: handlers, masks and what forked processes inherit are not
touched. A rank whose publisher cannot run, because C code holds the interpreter lock or its process is
stopped, does not answer, and gets its signal after NOTICE_S.
"""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import suppress
from pathlib import Path

NOTICE_S = 0.05
"""How much later than under torchrun a rank gets its signal at most."""

PREFIX = "end-"
"""How the names of the sockets begin."""

MOST_READ = 64
"""Datagrams that a rank reads at once."""

_WAKE = b"wake"


class EndNotices:
    """A rank's end: its publisher waits for notices, and for other threads of the process that wake it."""

    def __init__(self, folder: Path, session: int) -> None:
        """Raises OSError where there can be no such socket, as on systems without an `AF_UNIX`."""
        # 32 bits are enough among the ranks of a host, and a socket's path must be short.
        self._path = str(folder / f"{PREFIX}{session & 0xFFFFFFFF:08x}")
        self._may_have_arrived = True
        """Whether something may have since the last wait: to find nothing takes 50 us in cold caches."""
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            # The file itself, to be compared: a script may close all descriptors, and open its own with this
            # number.
            self._opened = os.fstat(self._socket.fileno())
            self._socket.setblocking(False)
            self._socket.bind(self._path)
        except OSError:
            self._socket.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def _usable_socket(self) -> socket.socket | None:
        """The socket; None where the script has closed all descriptors: its number may be a file's by now."""
        current = self._socket  # another thread may set it to None
        if current is not None:
            with suppress(OSError):
                if os.path.samestat(os.fstat(current.fileno()), self._opened):
                    return current
            # Only the number is given up: what it stands for is the script's.
            current.detach()
            self._socket = None
        return None

    def wait_for_notice(self, timeout_s: float) -> bool:
        """Wait until something has arrived, at most so long; returns False at once where nothing can."""
        if self._usable_socket() is None:
            return False
        self._may_have_arrived = bool(self._poll.poll(1000 * timeout_s))
        return True

    def end_wait(self) -> None:
        """End a `wait_for_notice`; on any thread."""
        self._send_datagram(_WAKE, self._path)

    def take_notices(self) -> list[str | bytes]:
        """The launchers that have given notice since the last call, as addresses for `answer_launchers`."""
        launchers: list[str | bytes] = []
        if not self._may_have_arrived:
            self._may_have_arrived = True
            return launchers
        usable = self._usable_socket()
        with suppress(OSError):
            for _ in range(MOST_READ if usable is not None else 0):
                data, address = usable.recvfrom(len(_WAKE))  # type: ignore[union-attr]
                # An empty datagram is a launcher's; the one that wakes has bytes.
                if not data and address:
                    launchers.append(address)
        return launchers

    def answer_launchers(self, launchers: list[str | bytes]) -> None:
        """All that there was when these launchers gave notice is sent."""
        for address in launchers:
            self._send_datagram(b"", address)

    def _send_datagram(self, data: bytes, address: str | bytes) -> None:
        usable = self._usable_socket()
        if usable is not None:
            with suppress(OSError):  # many wait there already, or the launcher has gone
                usable.sendto(data, address)

    def close(self) -> None:
        """Close the socket and remove it."""
        if self._usable_socket() is not None:
            self.close_in_child()
            with suppress(OSError):
                os.unlink(self._path)  # noqa: PTH108 - the path is kept as text, as an address

    def close_in_child(self) -> None:
        """In a forked child: close its copy of the socket. Its parent's thread goes on with the other."""
        usable, self._socket = self._usable_socket(), None
        if usable is not None:
            usable.close()


def give_notice(folder: Path, patience_s: float = NOTICE_S) -> int:
    """In a launcher that ends its ranks in a moment: have them send what they have.

    Returns how many have answered, after `patience_s` at most. Of its errors none is raised.
    """
    waiting: set[str] = set()
    answered = 0
    end_s = time.monotonic() + patience_s
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        asking.bind("")  # a name without a file, to be answered
        asking.setblocking(False)
        with os.scandir(folder) as entries:
            # Listed once: a rank that begins now has no steps that could be lost.
            paths = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
        for path in paths:
            with suppress(OSError):  # a rank that was killed has left it
                asking.sendto(b"", path)
                waiting.add(path)
        poll = select.poll()
        poll.register(asking, select.POLLIN)
        while waiting and (left_s := end_s - time.monotonic()) > 0:
            poll.poll(1000 * left_s)
            with suppress(BlockingIOError):
                _, path = asking.recvfrom(1)
                # An answer that came twice, or from elsewhere, is not counted.
                answered += path in waiting
                waiting.discard(path)
    return answered
