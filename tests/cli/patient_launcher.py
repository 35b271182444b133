"""`ddptop-run` that waits longer for what its ranks send at their end: on a busy machine 50 ms are few."""

import sys

from ddptop.cli.launch import main
from ddptop.host import end_notices

if __name__ == "__main__":
    end_notices.give_notice.__defaults__ = (5.0,)
    sys.exit(main())
