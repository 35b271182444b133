"""What every subcommand is, and the options that several of them share."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import TYPE_CHECKING, NoReturn

from ddptop.cli.errors import CliError, Exit
from ddptop.cli.settings import SETTINGS, Settings, flag_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

VALUE_OPTIONS = frozenset(
    {
        "--wait",
        "--connect",
        "--remote-command",
        "--key",
        "--port",
        *(flag_of(name) for name, setting in SETTINGS.items() if setting.metavar is not None),
    }
)
"""Shared options that take a value as the next word; they may stand before the subcommand."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise the mistake instead of printing the usage and leaving."""
        # Raised, so that `main` prints it as all other mistakes.
        raise CliError(f"{message}; {_hint_at(message) or f'see {self.prog} --help'}", Exit.USAGE)


def _hint_at(message: str) -> str:
    """What a user wants who gives a command more than it takes; empty: not known."""
    if not message.startswith("unrecognized arguments:"):
        return ""
    words = message.split()
    if any(word.endswith(".ddptop") for word in words):
        return COMPARES
    return next((f"{word} is of ddptop replay" for word in words if word in OF_REPLAY), "")


COMPARES = "ddptop check NEW --against BASE compares runs, ddptop replay NEW --compare BASE shows both"

OF_REPLAY = ("--at", "--speed", "--follow", "--compare")


MIN_COLUMNS = 11
"""As argparse has it for a terminal that is narrower."""


def wrap_text(text: str, indent: str = "") -> str:
    """The text in lines of the terminal's width. All lines but the first begin with `indent`."""
    # Two less than the terminal's, as argparse leaves.
    width = max(MIN_COLUMNS, shutil.get_terminal_size().columns - 2)
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


class Command:
    """A subcommand. Whatever it imports beyond this package, it imports in `run`."""

    name: str
    summary: str
    """One line, for the list in `ddptop --help`."""
    details: str = ""
    """What else a user of this subcommand must know, for its own `--help`."""
    examples: tuple[str, ...] = ()
    """Command lines, for the beginning of the subcommand's own `--help`."""

    def parser(self) -> Parser:
        """The parser of everything after the subcommand's name."""
        examples = "\n".join(f"  {line}" for line in self.examples)
        parser = Parser(
            prog=f"ddptop {self.name}".strip(),
            # The examples come first: they are what most users look for.
            description=f"{wrap_text(f'{self.summary} {self.details}')}\n\nexamples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            # `a --s` must not become `--save-to` today and another option tomorrow.
            allow_abbrev=False,
        )
        self.add_arguments(parser)
        return parser

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The options that these words give. Raises CliError (2)."""
        return self.parser().parse_args(words)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the subcommand's arguments."""

    def run(self, options: argparse.Namespace) -> int:
        """Run the command and return the exit code. Raises CliError for what the user can correct."""
        raise NotImplementedError


def add_screen_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that opens a screen, or prints instead."""
    how = parser.add_argument_group("instead of the screen")
    how.add_argument("--once", action="store_true", help="print the run's state as text, and end")
    how.add_argument("--json", action="store_true", help="print the run's state as JSON, and end")
    how.add_argument("--watch", action="store_true", help="print a line a second until the run ends")
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser, shown: Collection[str] = SETTINGS) -> None:
    """Add a flag for each setting. Values are checked by `ddptop.cli.settings`.

    `shown`: names of those that help lists. Others are accepted, and change nothing in this command.
    """
    group = parser.add_argument_group("settings (`ddptop config` shows where each one comes from)")
    with_flag = [(name, setting) for name, setting in SETTINGS.items() if setting.help is not None]
    # Help lists those with a value first, then what is turned off, then what is turned on.
    for name, setting in sorted(
        with_flag, key=lambda each: 0 if each[1].metavar else 2 - getattr(Settings, each[0])
    ):
        text = setting.help if name in shown else argparse.SUPPRESS
        if setting.metavar is not None:
            group.add_argument(flag_of(name), metavar=setting.metavar, help=text)
        else:
            turned = not getattr(Settings, name)
            group.add_argument(flag_of(name), dest=name, action="store_const", const=turned, help=text)
