"""The HELLO of this process: what identifies it as a rank, the same while it runs, and its clocks."""

from __future__ import annotations

import os
import secrets
import socket
import time
from dataclasses import replace

from ddptop.protocol.limits import VERSION
from ddptop.protocol.messages import Hello
from ddptop.training.launcher_variables import local_rank, restart_number


def make_hello(rank: int, world_size: int, session: int | None = None) -> Hello:
    """The HELLO of this process, by the launcher's variables; device, backend and budget are not known.

    `session`: the number that this process has reported with before; None: a new one.
    """
    return Hello(
        version=VERSION,
        run_id=os.environ.get("DDPTOP_RUN_ID", ""),
        session=secrets.randbits(62) + 1 if session is None else session,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank(rank),
        incarnation=restart_number(),
        host=socket.gethostname(),
        pid=os.getpid(),
        device="",
        backend="",
        timing_path="",
        monotonic_ns=time.monotonic_ns(),
        unix_ns=time.time_ns(),
        budget_pct=0.0,
    )


def renew_hello(hello: Hello, timing_path: str) -> Hello:
    """A HELLO like this one, with both clocks read together now."""
    return replace(hello, timing_path=timing_path, monotonic_ns=time.monotonic_ns(), unix_ns=time.time_ns())
