"""Models that DDP refuses: their process is recorded before DDP has its say, so that its end can be told.

A session begins with the first model that DDP has taken. Where DDP takes none (shapes that differ between
ranks, a lazy module, nothing to train), nobody would hear why the process ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ddptop.runtime.guard import guard, hide_frame

Begin = Callable[[Any], None]


def watch(module: Any, begin: Begin) -> None:
    """Have `begin(device)` called before `torch.nn.parallel.distributed` refuses a model, or may do so.

    What a later torch no longer has is left out.
    """
    model = module.DistributedDataParallel
    _precede(model, "_log_and_throw", lambda ddp, *_: begin(getattr(ddp, "device", None)))
    # A collective: it raises on the ranks whose shapes differ from rank 0's, then rank 0 in the next one.
    verify = "_verify_param_shape_across_processes"
    _precede(module, verify, lambda _, parameters, *__: begin(parameters[0].device))


def _precede(owner: Any, name: str, first: Callable[..., None]) -> None:
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            first(*args)
        except Exception as error:  # noqa: BLE001 - the training boundary: a later torch may pass other arguments
            guard.caught(error)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    setattr(owner, name, wrapper)
