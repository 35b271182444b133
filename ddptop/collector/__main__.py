"""`python -m ddptop.collector`: started by the launcher, ends with it."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from ddptop.collector.launcher import parse, say

NICENESS = 10
"""Where the ranks use every core they shall have it: ranks keep their records until this process has time."""


AGAIN = 75
"""Exit code of a collector that is to be started again, as in sysexits.h: the failure is temporary."""


def main(words: Sequence[str] | None = None, tell: Callable[[Mapping[str, object]], None] = say) -> int:
    """Serve a run; 0 when it came to its end, 1 after one line on stderr when it could not begin.

    `tell`: where words for the launcher go.
    """
    arguments = parse(words)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Meant for the training, whose end is to be recorded; ours comes when the launcher's pipe closes.
        signal.signal(number, signal.SIG_IGN)
    _allow_many_connections()
    os.nice(NICENESS)

    import zmq

    from ddptop.collector.service import Collector
    from ddptop.host.folders import RunDirectoryError

    try:
        collector = Collector(arguments, tell)
    except (RunDirectoryError, OSError, RuntimeError, zmq.ZMQError) as error:
        print(f"ddptop collector: {error}", file=sys.stderr)
        return 1
    with collector:
        tell({"ready": True})
        summary = collector.run()
    if summary is None:
        return AGAIN
    tell(summary)
    return 0


def _allow_many_connections() -> None:
    """A descriptor per rank and viewer; the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems name a hard limit that they do not grant
            return


if __name__ == "__main__":
    sys.exit(main())
