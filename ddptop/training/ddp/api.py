"""The public names of the training runtime, in one place; `ddptop.NAME` loads them from here."""

from __future__ import annotations

from ddptop.training.ddp.checkpoint import Checkpoint
from ddptop.training.ddp.group import Group
from ddptop.training.ddp.loader import Loader
from ddptop.training.ddp.logging import log, phase
from ddptop.training.ddp.setup import cleanup, setup
from ddptop.training.ddp.spawning import spawn
from ddptop.training.ddp.wrap import wrap

__all__ = ["Checkpoint", "Group", "Loader", "cleanup", "log", "phase", "setup", "spawn", "wrap"]
