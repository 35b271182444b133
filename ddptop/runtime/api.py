"""The public names of the training runtime, in one place; `ddptop.NAME` loads them from here."""

from __future__ import annotations

from ddptop.runtime.group.checkpoint import Checkpoint
from ddptop.runtime.group.handle import Group
from ddptop.runtime.group.loader import Loader
from ddptop.runtime.group.setup import cleanup, setup
from ddptop.runtime.group.spawning import spawn
from ddptop.runtime.group.words import log, phase
from ddptop.runtime.group.wrap import wrap

__all__ = ["Checkpoint", "Group", "Loader", "cleanup", "log", "phase", "setup", "spawn", "wrap"]
