"""The message that a recording begins with, or one in its place."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ddptop.protocol.limits import VERSION
from ddptop.protocol.messages import Hello, Received, Run


def first_run(lasting: Iterable[Received], path: Path, start_ns: int) -> Run:
    """The first RUN among these messages; where its block is damaged, one made up of what the ranks said."""
    hello: Hello | None = None
    for received in lasting:
        if isinstance(received.message, Run):
            return received.message
        if hello is None and isinstance(received.message, Hello):
            hello = received.message
    return Run(
        version=VERSION,
        run_id=hello.run_id if hello else "",
        name=path.stem,
        script="",
        argv=(),
        unix_ns=hello.unix_ns if hello else 0,
        monotonic_ns=start_ns,
        state="live",
        exit_code=None,
        simulated=False,
    )
