"""How the ranks ended, from the one who reaps them: torch's launcher, which runs in this process.

Private parts of torch, as in 2.6 to 2.13: in torch.distributed.elastic.multiprocessing.api,
`SubprocessContext` holds each rank's `Popen` in `subprocess_handlers[local_rank].proc`, and its `close` ends
the ranks that are left when one has failed. Where that is otherwise, nobody is told and nothing else changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

Tell: TypeAlias = "Callable[[Sequence[tuple[int, int]]], None]"
"""Takes pids with exit codes, negative for a signal, as `subprocess` gives them."""


@contextmanager
def told(tell: Tell) -> Iterator[None]:
    """Inside the block, tell how ranks ended: the first before the launcher ends the others."""
    try:
        from torch.distributed.elastic.multiprocessing.api import SubprocessContext
    except ImportError:
        yield
        return
    original = SubprocessContext.close

    @functools.wraps(original)
    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        _tell_ended(self, tell)
        try:
            return original(self, *args, **kwargs)
        finally:
            _tell_ended(self, tell)

    SubprocessContext.close = close
    try:
        yield
    finally:
        SubprocessContext.close = original


def _tell_ended(context: Any, tell: Tell) -> None:
    """Tell of each process once. No broad `except`: the launcher's signal handlers raise exceptions."""
    try:
        known = context.__dict__.setdefault("_ddptop_told", set())
        processes = [handler.proc for handler in context.subprocess_handlers.values()]
        ended = [
            (process.pid, process.returncode)
            for process in processes
            if process.returncode is not None and process.pid not in known
        ]
        if ended:
            known.update(pid for pid, _ in ended)
            tell(ended)
    except (AttributeError, TypeError, OSError):
        return
