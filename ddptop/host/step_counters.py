"""How many steps the process of a rank has finished, known after it was killed at any moment.

A process counts in 8 bytes that outlive it. Where the run's folder is in memory (tmpfs) they are the begin of
a file there, which has its HELLO too: so they are read also if no collector ever met the process. A store to
a file on a disk could wait for the disk: there they are a memfd, which the collector opens while the process
runs, and the file has the number only as its publisher wrote it, until a collector has answered.

The file is removed by a process that exits in good order and has all its steps acked, and by the collector or
agent that has reported the exit.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ddptop.host.exits import RankProcess
from ddptop.host.folders import NEW_FILE, open_regular
from ddptop.protocol.codec import encode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.limits import MAX_SHOWN_WORLD, MAX_STEP
from ddptop.protocol.messages import Hello

_HEAD = struct.Struct("=Q?B")
"""Begin of the file: steps, whether that is exact, and whether the process exited in good order (1), having
finished (2). The HELLO of the rank follows."""

_ENDED, _FINISHED = 1, 2

_NAME = "ddptop-steps-"
_MAX_BYTES = 64 * 1024


class StepCount(NamedTuple):
    """What the file of a process says."""

    steps: int
    exact: bool
    """False: it may have finished more."""
    ended: bool
    """It has exited in good order, without an ack for all of its steps."""
    hello: Hello | None
    finished: bool = False
    """Neither an exception nor an exit code has ended it."""


def step_counter_name(session: int) -> str:
    """Name of the memory (memfd_create(2)), and of the file, in which the process of a session counts."""
    return f"{_NAME}{session}"


def new_step_counter(directory: Path, hello: Hello) -> int:
    """In a rank: a descriptor of at least 8 bytes to be mapped, in which it counts its steps.

    Raises OSError, or AttributeError where the system has no such memory.
    """
    in_memory = is_in_memory(directory)
    with suppress(OSError):
        flags, path = os.O_RDWR | os.O_CREAT | os.O_EXCL, directory / step_counter_name(hello.session)
        file, data = open_regular(path, flags), _HEAD.pack(0, in_memory, False) + encode(hello)
        try:
            # Head and HELLO in one write: a process that is killed between two would leave a file that names
            # nobody.
            if not _write_all(file, data):
                path.unlink()
            elif in_memory:
                # The mapping stays when the file is removed, and the file when the process is killed.
                return os.dup(file)
        finally:
            os.close(file)
    # In no folder, so that no disk is waited for; it lasts while a process has it open.
    memory = os.memfd_create(step_counter_name(hello.session), os.MFD_CLOEXEC)
    os.ftruncate(memory, 8)
    return memory


def _write_all(file: int, data: bytes) -> bool:
    """False: the disk is full."""
    with suppress(OSError):
        return os.write(file, data) == len(data)
    return False


def is_in_memory(directory: Path) -> bool:
    """Whether a folder is in a tmpfs; False where that is not known."""
    try:
        device = directory.stat().st_dev
        numbers = f"{os.major(device)}:{os.minor(device)}"
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    return any(line.split()[2] == numbers and " - tmpfs " in line for line in lines)


def note_step_count(directory: Path, session: int, steps: int) -> None:
    """In a rank that no collector has answered yet: write the number of steps, where no counter is there."""
    with suppress(OSError):
        file = open_regular(directory / step_counter_name(session), os.O_RDWR)
        try:
            if not _HEAD.unpack(os.pread(file, _HEAD.size, 0))[1]:
                os.pwrite(file, _HEAD.pack(steps, False, False), 0)
        finally:
            os.close(file)


def leave_step_count(
    directory: Path, hello: Hello, steps: int, unacked: int, *, finished: bool = False
) -> None:
    """In a rank that exits in good order: leave its number of steps where the last messages are not acked.

    The file is never made shorter: it may be mapped.
    """
    # All steps have arrived: a count would only be read for nothing.
    if not unacked:
        return remove_step_count(directory, hello.session)
    path, head = (
        directory / step_counter_name(hello.session),
        _HEAD.pack(steps, True, _FINISHED if finished else _ENDED),
    )
    with suppress(OSError):
        try:
            file, data = open_regular(path, NEW_FILE), head + encode(hello)
        except FileExistsError:
            # HELLO stays as it is; only the head is written.
            file, data = open_regular(path, os.O_WRONLY), head
        try:
            os.pwrite(file, data, 0)
        finally:
            os.close(file)


def remove_step_count(directory: Path, session: int) -> None:
    """Remove the file of a process: all of its steps have arrived, or are counted as lost."""
    with suppress(OSError):
        (directory / step_counter_name(session)).unlink()


def open_step_counter(process: RankProcess) -> int | None:
    """A descriptor of the memory or the file, found among those of the process."""
    name = step_counter_name(process.session)
    try:
        links = list(Path(f"/proc/{process.pid}/fd").iterdir())
    except OSError:  # gone, another user's, or a system without /proc
        return None
    for link in links:
        with suppress(OSError):  # closed since it was listed
            # A file that was removed keeps its name in this link, with this addition.
            target = str(link.readlink()).removesuffix(" (deleted)")
            if target.endswith((f"/memfd:{name}", f"/{name}")):
                return os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    return None


def read_step_counter(counter: int | None) -> int | None:
    """Steps counted there; None where there is no counter, or no count in it."""
    data = b"" if counter is None else os.pread(counter, 8, 0)
    steps = int.from_bytes(data, sys.byteorder)
    return steps if len(data) == 8 and steps <= MAX_STEP else None


def read_step_count(directory: Path, session: int) -> StepCount | None:
    """What the file of a process says; None: there is none."""
    return _read_file(directory / step_counter_name(session))


def unread_counts(
    directory: Path, run_id: str, reported_sessions: Container[int]
) -> list[tuple[Hello, StepCount]]:
    """Files of processes of this run, but those of `reported_sessions`; the oldest process first."""
    counts = (
        (count.hello, count)
        for count in _read_unread(directory, reported_sessions)
        if count.hello is not None
    )
    counts_of_run = [(hello, count) for hello, count in counts if hello.run_id == run_id]
    return sorted(counts_of_run, key=lambda pair: (pair[0].unix_ns, pair[0].rank))


def _read_unread(directory: Path, reported_sessions: Container[int]) -> Iterator[StepCount]:
    with suppress(OSError):
        names = [name for name in os.listdir(directory) if name.startswith(_NAME)]  # noqa: PTH208 - once a second
        for name in names[:MAX_SHOWN_WORLD]:
            number = name.removeprefix(_NAME)
            count = (
                _read_file(directory / name)
                if number.isdecimal() and int(number) not in reported_sessions
                else None
            )
            # The name must be the one that its HELLO says: anybody of this user may put files there.
            if count is not None and count.hello is not None and str(count.hello.session) == number:
                yield count


def _read_file(path: Path) -> StepCount | None:
    from ddptop.protocol.decoding import decode  # a rank does without it

    data = b""
    with suppress(OSError), os.fdopen(open_regular(path), "rb") as file:
        data = file.read(_MAX_BYTES)
    if len(data) < _HEAD.size:
        return None
    steps, exact, ended = _HEAD.unpack_from(data)
    message = None
    with suppress(ProtocolError):
        message = decode(data[_HEAD.size :])
    return (
        StepCount(
            steps, exact, bool(ended), message if isinstance(message, Hello) else None, ended == _FINISHED
        )
        if steps <= MAX_STEP
        else None
    )
