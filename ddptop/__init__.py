"""ddptop: `top` for live PyTorch DistributedDataParallel runs.

The public names are loaded when first used, so that `import ddptop` never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"
__all__ = ["Checkpoint", "Group", "Loader", "cleanup", "log", "phase", "read", "setup", "spawn", "wrap"]

if TYPE_CHECKING:
    from ddptop.export.tables import read
    from ddptop.training.ddp.checkpoint import Checkpoint
    from ddptop.training.ddp.group import Group
    from ddptop.training.ddp.loader import Loader
    from ddptop.training.ddp.logging import log, phase
    from ddptop.training.ddp.setup import cleanup, setup
    from ddptop.training.ddp.spawning import spawn
    from ddptop.training.ddp.wrap import wrap

_MODULES = {
    "Checkpoint": "checkpoint",
    "Group": "group",
    "Loader": "loader",
    "cleanup": "setup",
    "log": "logging",
    "phase": "logging",
    "setup": "setup",
    "spawn": "spawning",
    "wrap": "wrap",
}
"""Public name -> its module in `ddptop.training.ddp`."""


def __getattr__(name: str) -> object:
    """Load a public name on first use. Raises ImportError where torch, if needed, is missing or too old."""
    if name == "read":
        return import_module("ddptop.export.tables").read
    if name not in _MODULES:
        raise AttributeError(f"module 'ddptop' has no attribute {name!r}")
    from ddptop.training.torch_compat import why_unusable

    try:
        problem = why_unusable(f"ddptop.{name}", import_module("torch").__version__)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        problem = why_unusable(f"ddptop.{name}", None)
    if problem is not None:
        raise ImportError(problem, name="torch")
    return getattr(import_module(f"ddptop.training.ddp.{_MODULES[name]}"), name)
