"""`python -m ddptop`: the `ddptop` command."""

import sys

from ddptop.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
