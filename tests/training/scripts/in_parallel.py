"""Starts commands side by side, each with variables of its own: in_parallel.py JSON [IGNORE]

JSON is a list of [VARIABLES, COMMAND]. Waits for all of them and ends none. The exit code is 1 where one of
them has failed, 0 with a second word.
"""

import json
import os
import subprocess
import sys


def main() -> int:
    started = [
        subprocess.Popen(command, env=os.environ | variables)
        for variables, command in json.loads(sys.argv[1])
    ]
    codes = [process.wait() for process in started]
    return int(any(codes) and not sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
