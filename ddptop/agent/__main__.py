"""`python -m ddptop.agent`: receives from the ranks of one host and relays to the run's collector elsewhere.

Its arguments, its standard input and its lines on standard output are those of the collector
(`ddptop.agent.launcher`). At the end of the run it writes its summary within a second, and goes on by itself
until the collector has everything, 30 s at most; the launcher need not wait for that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from ddptop.agent.launcher import parse_arguments, send_line
from ddptop.protocol.outlets import print_text

NICENESS = 10
"""As the collector: the ranks come first where they use every core."""

AGAIN = 75
"""Exit code of an agent that is to be restarted: EX_TEMPFAIL of sysexits.h."""


def main(
    argv: Sequence[str] | None = None,
    notify: Callable[[Mapping[str, object]], None] = send_line,
    *,
    collector: Sequence[str] = (),
) -> int:
    """Serve this host; 0 when the run has ended, 1 after one line on stderr when it could not begin.

    `notify` sends a line to the launcher. `collector`: the command that this process executes in its place
    where the collector of the run is to be on this host (`write_role`); it keeps its standard streams and
    the locks of the process that started it.
    """
    arguments = parse_arguments(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        # For the training, whose end is to be recorded; this process ends when the launcher's pipe closes.
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)

    import zmq

    from ddptop.agent.service import Agent
    from ddptop.host.folders import RunDirectoryError

    try:
        agent = Agent(arguments, notify)
    except (RunDirectoryError, OSError, RuntimeError, zmq.ZMQError) as error:
        print_text(f"ddptop agent: {error}", file=sys.stderr)
        return 1
    with agent:
        notify({"ready": True})
        ended = agent.serve_run()
        collects = not ended and agent.is_to_collect
    if collects and collector:
        # What this process has printed must leave before another program takes its place.
        sys.stdout.flush()
        os.execv(collector[0], list(collector))
    return 0 if ended else AGAIN


if __name__ == "__main__":
    sys.exit(main())
