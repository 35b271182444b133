"""Recordings in which bytes are wrong, missing, doubled or in another place: what `ddptop` makes of them."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from functools import partial
from pathlib import Path
from random import Random
from unittest import mock

from ddptop.cli.main import main
from tests.faults.row import Result, Row
from tests.made_up_run import a_run, write
from tests.recording.flips import read

STEPS = 120
COMMANDS = (["ls", "--json"], ["report"], ["report", "--json"], ["replay", "--once"], ["replay", "--json"])


def mutated(whole: bytes, chance: Random) -> bytes:
    """The same bytes with one to eight random mutations."""
    data = bytearray(whole)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice([1, 8, 512, 4096]))
        how = chance.randrange(7)
        if how == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            data[at:end] = chance.randbytes(end - at)
        elif how == 2:
            data[at:end] = bytes(end - at)
        elif how == 3:
            del data[at:end]
        elif how == 4:
            data[at:at] = chance.randbytes(chance.choice([1, 8, 512]))
        elif how == 5:
            data[at:at] = data[at:end]
        else:
            del data[at:]
    return bytes(data)


def failures(path: Path) -> list[str]:
    """Commands that an exception ended, or that wrote a traceback."""
    found = []
    for command, *options in COMMANDS:
        words = [command, *([] if command == "ls" else [str(path)]), *options]
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main(words)
        except Exception as error:
            found.append(f"{' '.join(words)}: {error!r}")
        if "Traceback" in out.getvalue() + err.getvalue():
            found.append(f"{' '.join(words)}: a traceback")
    return found


def fuzz(seed: int, files: int) -> Result:
    """Mutate a recording so many times; each is listed, reported and replayed."""
    chance = Random(seed)
    wrong: list[str] = []
    untold = kept = 0
    with tempfile.TemporaryDirectory(prefix="ddptop-faults-") as folder:
        homes = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"), folder)
        path = Path(folder, "ddptop", "run.ddptop")
        path.parent.mkdir(mode=0o700)
        write(path, a_run(STEPS, buckets=3))
        whole = path.read_bytes()
        with mock.patch.dict(os.environ, homes):
            for _ in range(files):
                path.write_bytes(mutated(whole, chance))
                seen = read(path)
                kept += seen.steps
                untold += seen.steps < STEPS and not seen.told
                wrong += failures(path)
    words = f"{len(wrong)} tracebacks, {untold} silent losses, {kept / files / STEPS:.0%} of the steps read"
    return Result("; ".join([words, *wrong[:2]]), not wrong and not untold)


def row(files: int, *, long: bool = False) -> Row:
    """A row of so many files."""
    done = f"{files} mutated recordings: ls, report, replay"
    return Row(done, "no traceback, losses reported", partial(fuzz, files=files), long=long)


ROWS = (row(30), row(100, long=True))
