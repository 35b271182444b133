"""DDP communication hooks by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
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


def one_bucket(model: torch.nn.Module, process_group: Any) -> dict[str, float]:
    """DDP's options for a named PowerSGD hook: one bucket for all gradients, on gloo; none elsewhere.

    From the callbacks of one bucket torch's hook launches the next collectives and waits for them. On gloo
    callbacks of several buckets run side by side, in another order on each rank, and ranks then wait for ever
    or abort (seen with torch 2.13 and two buckets, with and without ddptop).
    """
    parameters = list(model.parameters())
    on_cpu = any(parameter.device.type == "cpu" for parameter in parameters)
    if not on_cpu and dist.get_backend(process_group) != "gloo":
        return {}
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    return {"bucket_cap_mb": size / 2**20 + 1}
