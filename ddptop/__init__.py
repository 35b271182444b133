"""ddptop: `top` for live PyTorch DistributedDataParallel runs.

The public names are loaded when first used, so that `import ddptop` never loads torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Checkpoint", "Group", "Loader", "cleanup", "log", "phase", "setup", "spawn", "wrap"]

if TYPE_CHECKING:
    from ddptop.training.ddp.api import Checkpoint, Group, Loader, cleanup, log, phase, setup, spawn, wrap


def __getattr__(name: str) -> object:
    """Load a public name of the training runtime on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'ddptop' has no attribute {name!r}")
    from ddptop.training.ddp import api

    return getattr(api, name)
