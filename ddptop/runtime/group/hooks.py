"""DDP communication hooks by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook

Hook = Callable[[Any, Any], Any]

HOOKS: dict[str, Hook] = {
    "allreduce": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "powersgd": powerSGD_hook.powerSGD_hook,
    "noop": debugging_hooks.noop_hook,
}
"""`noop` leaves each rank its own gradients: for measuring what communication costs, not for training."""


def hook_and_state(comm_hook: str | Hook, state: Any, process_group: Any) -> tuple[Any, Hook]:
    """The arguments of `register_comm_hook`: the state that a named hook needs, and the hook.

    Raises:
        ValueError: for a name that is not known.
    """
    if not isinstance(comm_hook, str):
        return state, comm_hook
    if comm_hook not in HOOKS:
        raise ValueError(f"comm_hook must be one of {', '.join(HOOKS)} or a function, not {comm_hook!r}")
    if state is None:
        power = comm_hook == "powersgd"
        state = powerSGD_hook.PowerSGDState(process_group=process_group) if power else process_group
    return state, HOOKS[comm_hook]
