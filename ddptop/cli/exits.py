"""How the ranks ended, from the one who reaps them: torch's launcher, which runs in this process.

Private parts of torch, as in 2.6 to 2.13: in torch.distributed.elastic.multiprocessing.api,
`SubprocessContext` holds each rank's `Popen` in `subprocess_handlers[local_rank].proc`, and its `close` ends
the ranks that are left when one has failed. Where that is otherwise, nobody is told and nothing else changes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"

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


def hide_our_frames(error: BaseException) -> None:
    """Take frames of this package out of the tracebacks of an error and of those it comes from."""
    chain: list[BaseException | None] = [error]
    for each in chain:
        if each is None:
            continue
        each.__traceback__ = _without_ours(each.__traceback__)
        chain += [before for before in (each.__cause__, each.__context__) if before not in chain]


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            entries.append(traceback)
        traceback = traceback.tb_next
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        entry.tb_next = following
    return entries[0] if entries else None


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
