"""DataLoader workers that have exited, as the iterator of a loader has them. Does not import torch.

Its list `_workers` is the same in torch 2.6, 2.13 and 2.15.
"""

from __future__ import annotations

import traceback
from multiprocessing.process import BaseProcess
from types import TracebackType


def exited_workers(trace: TracebackType | None) -> dict[int, int]:
    """Exit codes of the workers that have exited, by pid, of the loaders in a traceback; -9 is SIGKILL."""
    codes: dict[int, int] = {}
    for frame, _ in traceback.walk_tb(trace):
        workers = getattr(frame.f_locals.get("self"), "_workers", None)
        for worker in workers if isinstance(workers, list) else ():
            if isinstance(worker, BaseProcess) and worker.pid is not None and worker.exitcode is not None:
                codes[worker.pid] = worker.exitcode
    return codes
