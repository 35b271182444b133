"""A large recording is decoded in a second process, while the first one takes what was decoded before.

The second process reads the same open file and returns each run of messages in memory that both map, so that
its columns are not copied. Where it cannot be started, ends early or does not answer, the first process
decodes the rest itself: the runs are the same.
"""

from __future__ import annotations

import copyreg
import ctypes
import errno
import gc
import io
import mmap
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ddptop.protocol.messages import NAMES
from ddptop.recording.records import BlockReader, Selector
from ddptop.recording.runs import RUN_RECORDS, read_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddptop.protocol.message_run import MessageRun
    from ddptop.protocol.messages import Message
    from ddptop.recording.format import BlockEntry

LEAST_BYTES = 6 << 20
"""A smaller part of a file is decoded in less time than a second process takes to start, 0.2 s."""
FIRST_RECORDS = RUN_RECORDS
"""Records that the first process decodes while the second one starts."""
MOST_AHEAD_BYTES = 16 << 20
"""Of runs that wait to be taken."""

LARGE_BYTES = 1 << 20
"""Smaller arrays are copied: one that is kept, such as newest readings, would keep the memory of its run."""

ANSWER_S = 5.0
"""The second process is given up when it has sent no run for so long; a run takes 0.04 s of CPU time. Where
it was only slow, some runs are decoded twice."""

_CODE = "from ddptop.recording.ahead import decode_for_first_process; decode_for_first_process()"
_ALIGNED = 64


def keep_freed_memory() -> None:
    """Memory that this process frees stays its own: for one that ends soon and often drops large arrays.

    The system has to find and clear each page that is asked for again, a tenth of what reading a recording
    takes. Where the C library is not glibc nothing changes."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for option, limit in _KEPT.items():
            libc.mallopt(option, limit)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = {_M_TRIM_THRESHOLD: 1 << 30, _M_MMAP_THRESHOLD: 32 << 20}
"""Bytes; 32 MiB is the most that glibc takes."""


def _start_python(code: str, descriptors: tuple[int, int]) -> subprocess.Popen[bytes]:
    """Start a Python that imports what this one does, and that inherits two open files. Their descriptors are
    pickled in its stdin, which is a file: so nobody waits for its start. Raises OSError."""
    with tempfile.TemporaryFile() as file:
        pickle.dump(descriptors, file, pickle.HIGHEST_PROTOCOL)
        file.seek(0)
        return subprocess.Popen(
            # The same paths in the same order, so that it imports exactly what this process has.
            [sys.executable, "-c", f"import sys; sys.path[:] = sys.argv[1:]; {code}", *sys.path],
            stdin=file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            # numpy would start a thread for each core, which nothing here uses.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )


def start_ahead(reader: BlockReader, size: int) -> Decoder | None:
    """The second process for a file of so many bytes, if it is to have one, before it is known what it will
    decode: meanwhile the first one imports what it needs."""
    # With a single core the two processes would only take turns.
    if size >= LEAST_BYTES and len(os.sched_getaffinity(0)) > 1:
        with suppress(OSError):
            return Decoder(reader)
    return None


@contextmanager
def runs_ahead(
    reader: BlockReader,
    entries: Sequence[BlockEntry],
    selects: Selector,
    before_ns: int,
    started: Decoder | None = None,
) -> Iterator[Iterator[MessageRun]]:
    """`runs`, of which most are decoded from now on; `selects` is a function of a module. `started`: a second
    process that waits for its request."""
    small = not entries or entries[-1].offset - entries[0].offset < LEAST_BYTES
    if small or len(os.sched_getaffinity(0)) < 2:
        if started is not None:
            started.close()
        yield read_runs(reader, entries, selects, before_ns=before_ns)
        return
    records = accumulate(entry.summary.records for entry in entries)
    # A process that was started earlier sends its first run after half the time.
    at_first = FIRST_RECORDS if started is None else FIRST_RECORDS // 2
    first = next((index for index, count in enumerate(records) if count >= at_first), len(entries))
    later_entries, decoder = entries[first:], started
    with suppress(OSError):
        decoder = decoder or Decoder(reader)
        decoder.request_blocks(later_entries, selects, before_ns)

    def rest_runs() -> Iterator[MessageRun]:
        taken = 0
        while decoder is not None and (run := decoder.take_run()) is not None:
            taken += 1
            yield run
        # Its runs are the same as ours, so that those that were taken are simply left out.
        if decoder is None or not decoder.finished:
            yield from islice(read_runs(reader, later_entries, selects, before_ns=before_ns), taken, None)

    try:
        yield chain(read_runs(reader, entries[:first], selects, before_ns=before_ns), rest_runs())
    finally:
        if decoder is not None:
            decoder.close()


class Decoder:
    """The second process."""

    def __init__(self, reader: BlockReader) -> None:
        """Start it. Raises OSError."""
        self.finished = False
        """Whether it has decoded everything."""
        self._reader = reader
        # SEQPACKET keeps the borders of messages and passes descriptors, and its end is noticed when one
        # process ends.
        self._socket, far_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_S)
        self._receiver = _Receiver(self._socket)
        with far_socket:
            descriptors = (reader.descriptor, far_socket.fileno())
            try:
                self._process = _start_python(_CODE, descriptors)
            # Also at Ctrl-C, or the socket would stay open.
            except BaseException:
                self._socket.close()
                raise

    def request_blocks(self, entries: Sequence[BlockEntry], selects: Selector, before_ns: int) -> None:
        """Let it decode these blocks, as `runs` does. Raises OSError where it has ended."""
        # The list of blocks may be larger than a message of a socket may be.
        with os.fdopen(os.memfd_create("ddptop-request"), "wb") as file:
            pickle.dump((entries, selects, before_ns), file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            socket.send_fds(self._socket, [_REQUEST], [file.fileno()])

    def take_run(self) -> MessageRun | None:
        """The next run; None: there is no more, it has ended early, or it does not answer."""
        # Whatever is wrong with the second process, the first one can decode the rest itself.
        with suppress(OSError, EOFError, ValueError, pickle.UnpicklingError):
            content = self._receiver.receive_content()
            self.finished = self._receiver.finished
            if content is None:
                return None
            run: MessageRun
            run, reader = content
            # Damage that it has found is counted as if this process had read the blocks.
            self._reader.add_noted_by(reader)
            return run
        return None

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        # It has nothing to write: there is no need to wait for an orderly end.
        self._process.kill()
        self._process.wait()


_REQUEST, _TAKEN, _END = b"request", b"taken", b"end"
_ANSWER_BYTES = 16


def _reduce_message(message: Message) -> tuple[type[Message], tuple[Any, ...]]:
    kind = type(message)
    return kind, _FIELDS[kind](message)


_FIELDS = {kind: attrgetter(*names) for kind, names in NAMES.items() if len(names) > 1}
_REDUCE: dict[type, Callable[[Any], Any]] = {
    **copyreg.dispatch_table,
    **dict.fromkeys(_FIELDS, _reduce_message),
}
"""Messages are made again from their fields: pickle takes three times as long for a frozen dataclass."""


class _Sender:
    """Sends content in areas of memory that both processes map.

    An area is used again once the receiver holds no array in it: the system takes as long to find and clear
    new pages as a copy takes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._areas: list[mmap.mmap] = []
        self._free: list[int] = []
        """Numbers of areas in which nothing is held."""
        self._waiting: deque[int] = deque()
        """Bytes of what was sent and is not received yet."""

    def send_content(self, content: object) -> None:
        """Send it, pickled; large arrays are not copied by the receiver. Raises OSError."""
        buffers: list[pickle.PickleBuffer] = []
        body = io.BytesIO()

        # Arrays of less than LARGE_BYTES stay in the pickle.
        def is_copied(buffer: pickle.PickleBuffer) -> bool:
            large = buffer.raw().nbytes >= LARGE_BYTES
            if large:
                buffers.append(buffer)
            return not large

        pickler = pickle.Pickler(body, pickle.HIGHEST_PROTOCOL, buffer_callback=is_copied)
        pickler.dispatch_table = _REDUCE
        pickler.dump(content)
        parts = [body.getbuffer(), *(buffer.raw() for buffer in buffers)]
        sizes = [len(part) for part in parts]
        *begins, end = accumulate(map(_round_up_to_alignment, sizes), initial=0)
        number, descriptors = self._reserve_area(end)
        try:
            for begin, part in zip(begins, parts, strict=True):
                self._areas[number][begin : begin + len(part)] = part
            self._waiting.append(end)
            socket.send_fds(self._connection, [pickle.dumps((number, sizes))], descriptors)
        # The receiver has them by now, as descriptors of its own.
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _reserve_area(self, size: int) -> tuple[int, list[int]]:
        """Number of an area of at least so many bytes, and its descriptor if it is a new one."""
        for number in self._free:
            if len(self._areas[number]) >= size:
                self._free.remove(number)
                return number, []
        descriptor = os.memfd_create("ddptop-run")
        # Larger than needed, so that a later and larger run fits in as well.
        os.ftruncate(descriptor, 2 * size)  # what is not written takes no memory
        self._areas.append(mmap.mmap(descriptor, 2 * size))
        return len(self._areas) - 1, [descriptor]

    def read_answers(self) -> bool:
        """Take the receiver's answers, and wait for some while much is not received. False: it has ended."""
        while True:
            # Without a bound a fast decoder would fill the memory with runs that nobody has taken.
            wait = sum(self._waiting) > MOST_AHEAD_BYTES
            try:
                answer = self._connection.recv(_ANSWER_BYTES, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            if not answer:
                # An empty message: the other process has closed its end.
                return False
            if answer == _TAKEN:
                self._waiting.popleft()
            else:
                self._free.append(int(answer))


class _Receiver:
    """Receives what a `_Sender` sends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._areas: dict[int, mmap.mmap] = {}
        self.finished = False
        """Whether the sender has said that there is no more."""

    def receive_content(self) -> Any:
        """The next content, whose large arrays are in an area; None: there is no more. Raises OSError where
        this process may open no more files, or has no memory for the area."""
        head, descriptors, _, _ = socket.recv_fds(self._connection, 1 << 16, 1)
        if head in (_END, b""):
            self.finished = head == _END
            return None
        # From our own child: nobody else has the other end of this pair of sockets.
        number, sizes = pickle.loads(head)
        for descriptor in descriptors:
            try:
                self._areas[number] = mmap.mmap(descriptor, 0)
            finally:
                os.close(descriptor)
        # A descriptor may be missing where this process may open no more files: the kernel then drops it.
        area = self._areas.get(number)
        if area is None:
            raise OSError(errno.EMFILE, "an area of memory came without its descriptor")
        mapped_area = (ctypes.c_ubyte * len(area)).from_buffer(area)
        # It lives as long as any array in it: then the area may be written again.
        weakref.finalize(mapped_area, self._send_answer, b"%d" % number).atexit = False
        data, begins = memoryview(mapped_area), accumulate(map(_round_up_to_alignment, sizes), initial=0)
        body, *buffers = (data[begin : begin + size] for begin, size in zip(begins, sizes, strict=False))
        content = pickle.loads(body, buffers=buffers)
        self._send_answer(_TAKEN)
        return content

    def _send_answer(self, answer: bytes) -> None:
        with suppress(OSError):
            self._connection.send(answer)


def _round_up_to_alignment(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def decode_for_first_process() -> None:
    """Decode the blocks that the first process names, and send it each run."""
    gc.disable()  # messages hold no cycles
    keep_freed_memory()
    file, to_first = pickle.load(sys.stdin.buffer)
    reader, connection = BlockReader(file), socket.socket(fileno=to_first)
    _, descriptors, _, _ = socket.recv_fds(connection, len(_REQUEST), 1)
    if not descriptors:
        return
    with os.fdopen(descriptors[0], "rb") as request:
        request.seek(0)
        entries, selects, before_ns = pickle.load(request)
    sender = _Sender(connection)
    for run in read_runs(reader, entries, selects, before_ns=before_ns):
        # Before the next run is sent, so that free areas are used again.
        if not sender.read_answers():
            return
        sender.send_content((run, reader))
        # What was noted has gone with the run, and is to be counted once.
        reader.begin_anew()
    connection.send(_END)
    while connection.recv(_ANSWER_BYTES):  # what is unread at its end would take the last messages with it
        continue
