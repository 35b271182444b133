"""A module of ours as a program, with shorter times: in_haste.py PLACE=SECONDS... MODULE WORDS...

PLACE names a constant, for example `ddptop.agent.outbox.OUTAGE_NS`; its unit is its last letters' (S or NS).
What a test waits for then comes sooner; that it comes, and what comes, is the same.
"""

import importlib
import runpy
import sys


def main() -> None:
    """Set the constants, then run the module."""
    words = sys.argv[1:]
    while "=" in words[0]:
        place, _, seconds = words.pop(0).partition("=")
        module, _, name = place.rpartition(".")
        within = importlib.import_module(module)
        assert hasattr(within, name), place
        setattr(within, name, float(seconds) if name.endswith("_S") else int(float(seconds) * 1e9))
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
