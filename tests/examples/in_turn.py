"""Examples one after another in the same ranks, each as `__main__`: in_turn.py COMMANDS

COMMANDS is a JSON list of command lines. Loading torch is what takes the time, and happens once.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

BEGINS = "=== "
"""Before the name of a script, on both streams of rank 0."""

if __name__ == "__main__":
    for words in json.loads(sys.argv[1]):
        script = Path(words[0])
        if os.environ["RANK"] == "0":
            for stream in (sys.stdout, sys.stderr):
                print(f"{BEGINS}{script.stem}", file=stream, flush=True)
        sys.argv = words
        sys.path[0] = str(script.parent)
        runpy.run_path(str(script), run_name="__main__")
