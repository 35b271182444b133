"""torchrun: how ranks exited, from the process that starts and reaps them, which is ours.

In `torch.distributed.elastic.multiprocessing.api`, `SubprocessContext` holds each rank's `Popen` in
`subprocess_handlers[local_rank].proc`, and its `close` ends the ranks that are left when one has failed.
Where that is otherwise, nothing is reported and nothing else changes. Checked on torch 2.6, 2.13 and 2.15.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

Report: TypeAlias = "Callable[[Sequence[tuple[int, int]]], None]"
"""Takes pids with exit codes, negative for a signal, as `subprocess` gives them."""


@contextmanager
def reporting_exits(report: Report) -> Iterator[None]:
    """Inside the block, report how ranks exited: the first before the launcher ends the others."""
    try:
        from torch.distributed.elastic.multiprocessing.api import SubprocessContext
    except ImportError:
        yield
        return
    original = SubprocessContext.close

    @functools.wraps(original)
    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        _report_exited(self, report)
        try:
            return original(self, *args, **kwargs)
        finally:
            _report_exited(self, report)

    SubprocessContext.close = close
    try:
        yield
    finally:
        SubprocessContext.close = original


def _report_exited(context: Any, report: Report) -> None:
    """Report each process once. No broad `except`: the launcher's signal handlers raise exceptions."""
    try:
        known = context.__dict__.setdefault("_ddptop_reported", set())
        processes = [handler.proc for handler in context.subprocess_handlers.values()]
        exited = [
            (process.pid, process.returncode)
            for process in processes
            if process.returncode is not None and process.pid not in known
        ]
        if exited:
            known.update(pid for pid, _ in exited)
            report(exited)
    except (AttributeError, TypeError, OSError):
        return
