"""Where the `ddptop` command begins: from its first line on, Ctrl-C ends it without a traceback."""

from __future__ import annotations


def main() -> int:
    """Run `ddptop` with the process's arguments and return the exit code."""
    try:
        from ddptop.cli.main import main as run_command

        return run_command()
    except KeyboardInterrupt:  # in the imports
        return 130
