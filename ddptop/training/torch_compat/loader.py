"""What the iterator of a DataLoader has: workers that have exited, and how far it has come. Does not import
torch.

Its `_workers`, `_num_yielded` and `_index_sampler` are the same in torch 2.6, 2.13 and 2.15.
"""

from __future__ import annotations

import inspect
import traceback
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any


def exited_workers(trace: TracebackType | None) -> dict[int, int]:
    """Exit codes of the workers that have exited, by pid, of the loaders in a traceback; -9 is SIGKILL."""
    codes: dict[int, int] = {}
    for frame, _ in traceback.walk_tb(trace):
        # Runs no code of the script: what an FSDP that failed in its `__init__` is asked for never ends.
        workers = inspect.getattr_static(frame.f_locals.get("self"), "_workers", None)
        for worker in workers if isinstance(workers, list) else ():
            if isinstance(worker, BaseProcess) and worker.pid is not None and worker.exitcode is not None:
                codes[worker.pid] = worker.exitcode
    return codes


KNOWN_SAMPLERS = ("torch.", "accelerate.", "lightning.", "pytorch_lightning.", "transformers.")
"""Modules whose samplers may be asked for their length on another thread. That of a script's own sampler is
code of the user's, which may be slow, or change something."""


def batches_taken(iterator: Any) -> int:
    """Batches that were taken from a DataLoader's iterator in this pass; -1: not known."""
    taken: int = getattr(iterator, "_num_yielded", -1)
    return taken


def batch_size_of(iterator: Any) -> int | None:
    """Samples in a full batch of this iterator, as its batch sampler has it; None: not known.

    Read from the sampler's own attributes, which runs no code of the script."""
    attributes = getattr(getattr(iterator, "_index_sampler", None), "__dict__", {})
    size = attributes.get("batch_size")
    # accelerate may have each rank take a part of the batch.
    return size if type(size) is int and size > 0 and not attributes.get("split_batches") else None


def batches_in_all(iterator: Any) -> int:
    """Batches of a pass over a DataLoader, which its iterator takes by a sampler; -1: not known, as of an
    iterable dataset."""
    sampler = getattr(iterator, "_index_sampler", None)
    parts = (sampler, getattr(sampler, "sampler", None), getattr(sampler, "batch_sampler", None))
    if not all(type(part).__module__.startswith(KNOWN_SAMPLERS) for part in parts if part is not None):
        return -1
    try:
        return len(sampler)  # type: ignore[arg-type]  # None has no length, as some samplers
    except (TypeError, NotImplementedError, ValueError):
        return -1
