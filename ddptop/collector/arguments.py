"""What the launcher tells its collector."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddptop.host.discovery import read_command


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `python -m ddptop.collector`."""

    run_dir: Path
    """The run's folder, as `create_run_directory` made it."""
    run_id: str
    name: str
    record: Path | None
    """None: no recording."""
    record_limit: int = 1 << 30
    """Bytes after which the recording thins itself."""
    stall_s: float = 15.0
    """Least time without a step that counts as a stall."""
    script: str = ""
    argv: tuple[str, ...] = ()
    """Script and arguments, without secrets, from a file in the run's folder."""
    simulated: bool = False
    """The ranks are made up: their pids mean nothing."""
    most_ranks: int | None = None
    """That the launcher starts; None: not known."""
    alone: tuple[int, int] | None = None
    """No launcher of ours is there; pid and start of the one that is (`collector.alone`)."""


def parse(words: Sequence[str] | None = None) -> Arguments:
    """Arguments from a command line; argparse ends the process with code 2 where they are wrong."""
    parser = argparse.ArgumentParser(prog="python -m ddptop.collector", allow_abbrev=False)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--record", type=_path_or_off, required=True, metavar="PATH|off")
    parser.add_argument("--record-limit", type=_positive, default=1 << 30, metavar="BYTES")
    parser.add_argument("--stall", type=float, default=15.0, metavar="SECONDS", dest="stall_s")
    parser.add_argument("--script", default="")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--most-ranks", type=_positive, default=None, metavar="N")
    parser.add_argument("--alone", type=_process, default=None, metavar="PID:START")
    parsed = vars(parser.parse_args(words))
    argv = read_command(parsed["run_dir"])
    parsed["script"] = parsed["script"] or shlex.join(argv[:1])
    return Arguments(**parsed, argv=argv)


def _path_or_off(text: str) -> Path | None:
    return None if text == "off" else Path(text)


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("must be positive")
    return number


def _process(text: str) -> tuple[int, int]:
    pid, _, start = text.partition(":")
    return int(pid), int(start)
