"""`ddptop completion bash`: what a shell needs to complete commands, options and runs."""

from __future__ import annotations

import argparse
import shlex

from ddptop.cli.commands.base import Command
from ddptop.cli.errors import CliError, Exit


class Completion(Command):
    """Prints a script for a shell."""

    name = "completion"
    summary = "Print a script that lets bash, zsh or fish complete ddptop."
    examples = ('eval "$(ddptop completion bash)"',)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The shell. `names` is what the scripts ask for."""
        parser.add_argument("shell", choices=("bash", "zsh", "fish", "names"), metavar="bash|zsh|fish")

    def run(self, options: argparse.Namespace) -> int:
        """Print the script, or the names of the runs that there are."""
        if options.shell == "names":
            return _names()
        from ddptop.cli.commands import COMMANDS, LOOK
        from ddptop.cli.completion import script

        print(script(options.shell, LOOK, COMMANDS), end="")
        return Exit.DONE


def _names() -> int:
    """Live runs and recordings, a name a line; nothing where they cannot be looked up."""
    from ddptop.cli.find import live, recorded

    try:
        running = live()
        kept = recorded(running)
    except CliError:
        return Exit.DONE
    for name in dict.fromkeys([*(run.name for run in running), *(item.name for item in kept)]):
        if name == shlex.quote(name) and name.isascii():  # others would need quoting in every shell's way
            print(name)
    return Exit.DONE
