"""What kind of training a rank without a DDP model runs, by the parameters that its optimizer steps.

Only names are looked for, so that nothing can fail if torch 2.6, 2.13 and 2.15 differ here: what has another
name is taken for collectives of the script's own. What the names mean was checked on 2.13.
"""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist

from ddptop.protocol.vocabulary import TrainingKind

MOST_PARAMETERS = 64
"""Looked at: a model that is sharded has no more that are not."""


def training_kind(optimizer: Any) -> TrainingKind:
    """How a rank trains that steps this optimizer."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return "alone"
    if "deepspeed.runtime.engine" in sys.modules:
        return "deepspeed"
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters[:MOST_PARAMETERS]:
        if type(parameter).__name__ == "DTensor":
            return "fsdp2" if _has_fsdp2() else "dtensor"
        if hasattr(parameter, "_fsdp_flattened"):
            return "fsdp"
    return "collectives"


def _has_fsdp2() -> bool:
    # Before torch 2.6 it was below `_composable`.
    return any(name in sys.modules for name in ("torch.distributed.fsdp._fully_shard", FSDP2_BEFORE))


FSDP2_BEFORE = "torch.distributed._composable.fsdp"
