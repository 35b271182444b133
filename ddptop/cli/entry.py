"""Where the commands `ddptop` and `ddptop-run` begin: from here on, Ctrl-C ends them without a traceback."""

from __future__ import annotations

import signal


def main() -> int:
    """Run `ddptop` with the process's arguments and return the exit code."""
    try:
        from ddptop.cli.main import main as run_command

        return run_command()
    except KeyboardInterrupt:  # in the imports
        return 130


def launch() -> int:
    """Run `ddptop-run` with the process's arguments and return the exit code of the training."""
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:  # in the imports, where there is nothing to clean up
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ddptop.cli.launch import main as run_launcher

    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run_launcher()
