"""`python -m ddptop.collector`: started by the launcher, and ended with it."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from ddptop.agent.launcher import parse_arguments, send_line
from ddptop.protocol.outlets import print_text

NICENESS = 10
"""The ranks come first where they use every core; they keep their records until this process has time."""

ALLOCATIONS = 20_000
"""Time between two searches of Python's for unused cycles of objects. Messages are in none: with 4,096 ranks
these searches took 6 % of the CPU time at Python's own number, and up to 40 ms at a time."""

AGAIN = 75
"""Exit code of a collector that is to be restarted: EX_TEMPFAIL of sysexits.h."""


def main(
    argv: Sequence[str] | None = None, notify: Callable[[Mapping[str, object]], None] = send_line
) -> int:
    """Serve a run; 0 when it has ended, 1 after one line on stderr when it could not begin.

    `notify` sends a line to the launcher.
    """
    arguments = parse_arguments(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        # For the training, whose end is to be recorded; this process ends when the launcher's pipe closes.
        signal.signal(number, signal.SIG_IGN)
    _allow_many_connections()
    os.nice(max(0, NICENESS - os.nice(0)))  # it may have been an agent before, with the same

    import zmq

    from ddptop.collector.metrics_process import LOGGER_VARIABLE, VARIABLE, MetricsProcess
    from ddptop.collector.service import Collector
    from ddptop.host.folders import RunDirectoryError

    try:
        collector = Collector(arguments, notify)
    except (RunDirectoryError, OSError, RuntimeError, zmq.ZMQError) as error:
        print_text(f"ddptop collector: {error}", file=sys.stderr)
        return 1
    # Never freed, so that no search for cycles needs to look at them.
    gc.freeze()  # modules stay
    gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
    with collector:
        notify({"ready": True})
        with ExitStack() as exports:
            for name in (VARIABLE, LOGGER_VARIABLE):
                target = os.environ.get(name, "")
                exports.enter_context(MetricsProcess(target, arguments.run_id, notify))
            summary = collector.serve_run()
    if summary is None:
        return AGAIN
    notify(summary)
    return 0


def _allow_many_connections() -> None:
    """A descriptor per rank and viewer; the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems report a hard limit that they do not grant
            return


if __name__ == "__main__":
    sys.exit(main())
