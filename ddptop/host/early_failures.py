"""A rank that fails before it has reported anything leaves its HELLO and EVIDENCE in the run's folder.

A rank reports from its first DDP model on. What raises before (an import, the dataset, `init_process_group`)
is read from here by the collector or agent of the host.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from ddptop.host.folders import NEW_FILE, open_regular
from ddptop.protocol.codec import encode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES, MAX_SHOWN_WORLD
from ddptop.protocol.messages import Hello

_NAME = "ddptop-failed-"
_HELLO_BYTES = struct.Struct("=I")
"""The file begins with the length of its HELLO."""


def leave_failure(directory: Path, hello: Hello, evidence: Evidence) -> None:
    """In a rank that fails: leave the file, complete or not at all. Raises OSError."""
    head, body = encode(hello), encode(evidence)
    path = directory / f"{_NAME}{hello.session}"
    unfinished = path.with_name(f".{path.name}")
    with os.fdopen(open_regular(unfinished, NEW_FILE), "wb") as file:
        file.write(_HELLO_BYTES.pack(len(head)) + head + body)
    # Under its own name only when it is complete: it is read once a second.
    unfinished.rename(path)


def take_failures(
    directory: Path, run_id: str, reported_sessions: Container[int]
) -> list[tuple[Hello, Evidence]]:
    """The failures that ranks of this run have left, the earliest first; their files are removed.

    Those of `reported_sessions` are left out.
    """
    failures = []
    with suppress(OSError):
        names = [name for name in os.listdir(directory) if name.startswith(_NAME)]  # noqa: PTH208 - once a second
        # Bounded, since any process of this user can put files there.
        for name in names[:MAX_SHOWN_WORLD]:
            failure = _read_failure(directory / name)
            # Removed whatever it holds: it would be read again in each second.
            with suppress(OSError):
                (directory / name).unlink()
            if (
                failure is not None
                and failure[0].run_id == run_id
                and failure[0].session not in reported_sessions
            ):
                failures.append(failure)
    return sorted(failures, key=lambda failure: failure[1].t_ns)


def _read_failure(path: Path) -> tuple[Hello, Evidence] | None:
    """None where the file is not as `leave_failure` writes it."""
    from ddptop.protocol.decoding import decode  # a rank does without it

    data = b""
    with suppress(OSError), os.fdopen(open_regular(path), "rb") as file:
        data = file.read(2 * MAX_RANK_MESSAGE_BYTES)
    if len(data) < _HELLO_BYTES.size:
        return None
    begin = _HELLO_BYTES.size
    end = begin + _HELLO_BYTES.unpack_from(data)[0]
    with suppress(ProtocolError):
        hello, evidence = decode(data[begin:end]), decode(data[end:])
        if isinstance(hello, Hello) and isinstance(evidence, Evidence):
            return hello, evidence
    return None
