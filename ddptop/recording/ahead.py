"""A large recording is decoded in a second process, while the first one takes what was decoded before.

The second process reads the same open file and returns each run of messages in a file in memory, so that its
columns are not copied. Where it cannot be started, ends early or does not answer, the first process decodes
the rest itself: the runs are the same.
"""

from __future__ import annotations

import copyreg
import gc
import io
import mmap
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ddptop.protocol.checks import NAMES
from ddptop.recording.records import BlockReader, Selector
from ddptop.recording.runs import RUN_RECORDS, runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddptop.protocol.message_run import MessageRun
    from ddptop.protocol.messages import Message
    from ddptop.recording.format import Entry

LEAST_BYTES = 6 << 20
"""A smaller part of a file is decoded in less time than a second process takes to start, 0.2 s."""
FIRST_RECORDS = RUN_RECORDS
"""Records that the first process decodes while the second one starts."""
MOST_AHEAD_BYTES = 100 << 20
"""Of runs that wait to be taken."""

ANSWER_S = 5.0
"""The second process is given up when it has sent no run for so long; a run takes 0.04 s of CPU time. Where
it was only slow, some runs are decoded twice."""

_CODE = "import sys; sys.path[:] = sys.argv[3:]; from ddptop.recording.ahead import main; main()"
_ALIGNED = 64


@contextmanager
def runs_ahead(
    reader: BlockReader, entries: Sequence[Entry], selects: Selector, *, before_ns: int
) -> Iterator[Iterator[MessageRun]]:
    """`runs`, of which most are decoded from now on; `selects` is a function of a module."""
    small = not entries or entries[-1].offset - entries[0].offset < LEAST_BYTES
    if small or len(os.sched_getaffinity(0)) < 2:
        yield runs(reader, entries, selects, before_ns=before_ns)
        return
    records = accumulate(entry.summary.records for entry in entries)
    first = next((at for at, count in enumerate(records, 1) if count >= FIRST_RECORDS), len(entries))
    rest, decoder = entries[first:], None
    with suppress(OSError):
        decoder = _Decoder(reader, (rest, selects, before_ns))

    def rest_runs() -> Iterator[MessageRun]:
        taken = 0
        while decoder is not None and (run := decoder.take()) is not None:
            taken += 1
            yield run
        if decoder is None or not decoder.finished:
            yield from islice(runs(reader, rest, selects, before_ns=before_ns), taken, None)

    try:
        yield chain(runs(reader, entries[:first], selects, before_ns=before_ns), rest_runs())
    finally:
        if decoder is not None:
            decoder.close()


class _Decoder:
    """The second process."""

    def __init__(self, reader: BlockReader, request: tuple[Sequence[Entry], Selector, int]) -> None:
        """Start it. Raises OSError."""
        self.finished = False
        """Whether it has decoded everything."""
        self._reader = reader
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_S)
        with other, tempfile.TemporaryFile() as file:
            pickle.dump(request, file, pickle.HIGHEST_PROTOCOL)
            file.seek(0)
            descriptors = (reader.descriptor, other.fileno())
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _CODE, *map(str, descriptors), *sys.path],
                    stdin=file,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=descriptors,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )
            except BaseException:
                self._socket.close()
                raise

    def take(self) -> MessageRun | None:
        """The next run; None: there is no more, it has ended early, or it does not answer."""
        with suppress(OSError, EOFError, ValueError, pickle.UnpicklingError):
            head, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 16, 1)
            if not descriptors:
                self.finished = head == _END
                return None
            try:
                memory = mmap.mmap(descriptors[0], 0, mmap.MAP_PRIVATE)
            finally:
                os.close(descriptors[0])
            run: MessageRun
            run, reader = _unpacked(memoryview(memory), pickle.loads(head))
            self._reader.merge(reader)
            self._socket.send(_TAKEN)
            return run
        return None

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


_TAKEN, _END = b"taken", b"end"


def _reduce(message: Message) -> tuple[type[Message], tuple[Any, ...]]:
    kind = type(message)
    return kind, _FIELDS[kind](message)


_FIELDS = {kind: attrgetter(*names) for kind, names in NAMES.items() if len(names) > 1}
_REDUCE = {**copyreg.dispatch_table, **dict.fromkeys(_FIELDS, _reduce)}
"""Messages are made again from their fields: pickle takes three times as long for a frozen dataclass."""


def _unpacked(data: memoryview, sizes: Sequence[int]) -> Any:
    """What `_packed` has packed; its arrays are in `data`."""
    begins = [0, *accumulate(_aligned(size) for size in sizes)]
    body, *buffers = (data[begin : begin + size] for begin, size in zip(begins, sizes, strict=False))
    return pickle.loads(body, buffers=buffers)


def _packed(content: object) -> tuple[int, list[int]]:
    """A file in memory with the content, pickled, and the sizes of its parts."""
    buffers: list[pickle.PickleBuffer] = []
    body = io.BytesIO()
    pickler = pickle.Pickler(body, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    pickler.dispatch_table = _REDUCE
    pickler.dump(content)
    parts = [body.getbuffer(), *(buffer.raw() for buffer in buffers)]
    descriptor = os.memfd_create("ddptop-run")
    with open(descriptor, "wb", closefd=False) as file:
        for part in parts:
            file.write(part)
            file.write(bytes(_aligned(len(part)) - len(part)))
    return descriptor, [len(part) for part in parts]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def main() -> None:
    """Decode the blocks that stdin names, and send each run."""
    gc.disable()  # messages hold no cycles
    reader, connection = BlockReader(int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
    entries, selects, before_ns = pickle.load(sys.stdin.buffer)
    ahead: deque[int] = deque()
    for run in runs(reader, entries, selects, before_ns=before_ns):
        while sum(ahead) > MOST_AHEAD_BYTES:
            if not connection.recv(len(_TAKEN)):
                return
            ahead.popleft()
        descriptor, sizes = _packed((run, reader))
        socket.send_fds(connection, [pickle.dumps(sizes)], [descriptor])
        os.close(descriptor)
        reader.__init__(reader.descriptor)  # type: ignore[misc]
        ahead.append(sum(sizes))
    connection.send(_END)
    while connection.recv(len(_TAKEN)):  # what is unread at its end would take the last messages with it
        continue
