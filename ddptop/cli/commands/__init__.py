"""The subcommands of `ddptop`: a small class each. To add one, write it and put it in the list."""

from __future__ import annotations

from ddptop.cli.commands.attach import Attach
from ddptop.cli.commands.base import Command
from ddptop.cli.commands.check import CheckCommand
from ddptop.cli.commands.completion import Completion
from ddptop.cli.commands.config import Config
from ddptop.cli.commands.demo import Demo
from ddptop.cli.commands.env import Env
from ddptop.cli.commands.export import Export
from ddptop.cli.commands.key import Key
from ddptop.cli.commands.look import Look
from ddptop.cli.commands.mcp import Mcp
from ddptop.cli.commands.merge import Merge
from ddptop.cli.commands.metrics import Metrics
from ddptop.cli.commands.recordings import Ls, Prune, Rm
from ddptop.cli.commands.relay import Relay
from ddptop.cli.commands.replay import Replay
from ddptop.cli.commands.report import ReportCommand

__all__ = ["COMMANDS", "LOOK", "Command"]

COMMANDS: tuple[Command, ...] = (
    *(Ls(), Replay(), ReportCommand(), CheckCommand(), Export(), Demo(), Rm(), Prune()),
    *(Attach(), Merge(), Metrics(), Mcp(), Env(), Relay(), Key(), Config(), Completion()),
)
"""In the order in which `ddptop --help` lists them."""

LOOK = Look(COMMANDS)
"""What happens without a subcommand."""
