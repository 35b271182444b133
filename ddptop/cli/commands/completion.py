"""`ddptop completion bash`: a script by which a shell asks `ddptop` what can stand where Tab is pressed."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence

from ddptop.cli.commands.base import Command
from ddptop.cli.errors import CliError, Exit
from ddptop.cli.settings import OWN_THEMES
from ddptop.protocol.outlets import print_text

ASKED = "_ARGCOMPLETE"
"""Set by the script of a shell that asks: which word of its line is the program."""


class Completion(Command):
    """Prints a script for a shell."""

    name = "completion"
    summary = "Print a script that lets bash, zsh or fish complete ddptop."
    examples = ('eval "$(ddptop completion bash)"', "ddptop completion fish | source")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the shell."""
        parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="bash|zsh|fish")

    def run(self, options: argparse.Namespace) -> int:
        """Print the script."""
        # argcomplete is imported only where a shell asks: every other command starts without it.
        from argcomplete.shell_integration import shellcode

        print_text(shellcode(["ddptop"], shell=options.shell))
        return Exit.DONE


def answer_shell(
    choose: Callable[[list[str]], tuple[Command, list[str]]], commands: Sequence[Command]
) -> None:
    """Answer the shell that asks by its environment, and end the process.

    `choose`: the subcommand among the words of a line.
    """
    from argcomplete import autocomplete
    from argcomplete.completers import SuppressCompleter
    from argcomplete.lexers import split_line

    words = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3][int(os.environ[ASKED]) :]
    try:
        command, _ = choose(list(words))
    except CliError:
        raise SystemExit(Exit.USAGE) from None
    parser = command.parser()
    first = [] if command.name else [subcommand.name for subcommand in commands]
    if command.name:  # its words come after its name, which argcomplete takes for the program
        os.environ[ASKED] = str(int(os.environ[ASKED]) + 1 + words.index(command.name))
    for action in parser._actions:  # private, but argparse has had it since Python 2.7, and no other way
        _complete(action, first)
    autocomplete(parser, always_complete_options="long", default_completer=SuppressCompleter())


def _complete(action: argparse.Action, first: Sequence[str]) -> None:
    """Say what an argument's values are. `first`: what may stand in place of a run as well."""
    from argcomplete.completers import FilesCompleter

    def names(prefix: str, **_: object) -> list[str]:
        return [*first, *_safe_run_names()]

    def names_and_files(prefix: str, **_: object) -> list[str]:
        return [*_safe_run_names(), *FilesCompleter()(prefix)]

    def views(prefix: str, **_: object) -> Sequence[str]:
        from ddptop.tui.all_views import VIEWS

        return VIEWS.numbered_names

    def themes(prefix: str, **_: object) -> Sequence[str]:
        return OWN_THEMES

    completers: dict[object, Callable[..., Sequence[str]]] = {
        **dict.fromkeys(("TOML", "PATH", "FOLDER", "OUT"), FilesCompleter()),
        **dict.fromkeys(("RUN-or-FILE", "NEW", "BASE", "FILE"), names_and_files),
        "RUN": names,
    }
    by_option = {"view": views, "theme": themes}
    completer = by_option.get(action.dest) or completers.get(action.metavar)
    if completer is not None:
        setattr(action, "completer", completer)  # noqa: B010 - argcomplete's way, which argparse does not declare


def _safe_run_names() -> list[str]:
    """Live runs and recordings, but those whose names would need quoting in every shell's way."""
    from ddptop.cli.find import find_live, find_recorded

    try:
        running = find_live()
        kept = find_recorded(running)
    except CliError:
        return []
    names = dict.fromkeys([*(run.name for run in running), *(item.name for item in kept)])
    return [name for name in names if name == shlex.quote(name) and name.isascii()]
