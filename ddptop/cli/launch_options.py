"""The options of `ddptop-run`: its own, beside all of torchrun's."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EXEC = "--ddptop-exec"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that are read for another


@dataclass(frozen=True)
class LaunchOptions:
    """What `ddptop-run` was asked for."""

    name: str | None
    record: str
    """`auto`, `off` or a path."""
    record_limit: int
    """Bytes."""
    budget: float
    """Percent of step time."""
    stall: float
    """Seconds."""
    detail: str
    """`full` or `auto`."""
    off: bool

    @classmethod
    def of(cls, parsed: argparse.Namespace) -> LaunchOptions:
        """From the parsed command line."""
        return cls(
            name=parsed.ddptop_name,
            record=parsed.ddptop_record,
            record_limit=parsed.ddptop_record_limit,
            budget=parsed.ddptop_budget,
            stall=parsed.ddptop_stall,
            detail=parsed.ddptop_detail,
            off=parsed.ddptop_off,
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ddptop's own options, all optional, to a parser."""
    group = parser.add_argument_group("ddptop")
    add = group.add_argument
    add("--ddptop-name", type=_name, metavar="NAME", help="how `ddptop NAME` finds the run")
    add("--ddptop-record", default="auto", metavar="PATH", help="where to record, or `off`")
    add("--ddptop-record-limit", type=_size, default=2**30, metavar="SIZE", help="thin past it (1GiB)")
    add("--ddptop-budget", type=_percent, default=1.0, metavar="PCT", help="share of step time to take (1.0)")
    add(
        "--ddptop-stall",
        type=_seconds,
        default=15.0,
        metavar="SECONDS",
        help="least time that is a stall (15)",
    )
    add(
        "--ddptop-detail",
        choices=("full", "auto"),
        default="auto",
        help="every bucket of every step, or sampled",
    )
    add("--ddptop-off", action="store_true", help="plain torchrun")


def split_exec(argv: Sequence[str]) -> tuple[LaunchOptions, list[str]] | None:
    """The options and the command of `ddptop-run [options] --ddptop-exec COMMAND [args]`; None if it is none."""
    if EXEC not in argv:
        return None
    place = list(argv).index(EXEC)
    parser = argparse.ArgumentParser(prog="ddptop-run", allow_abbrev=False)
    add_options(parser)
    parsed, others = parser.parse_known_args(list(argv[:place]))
    if any(not word.startswith("-") for word in others):
        return None  # a script came first: what follows are its own arguments
    if others:
        parser.error(f"{others[0]} is torchrun's: give it to the command after {EXEC}")
    command = list(argv[place + 1 :])
    if not command:
        parser.error(f"{EXEC} needs a command")
    return LaunchOptions.of(parsed), command


def run_name(options: LaunchOptions, words: Sequence[str]) -> str:
    """The run's name: as asked for, or the script's and four characters."""
    if options.name:
        return options.name
    script = next((w for w in words if w.endswith(".py")), words[0] if words else "run")
    stem = (
        script.rsplit(".", 1)[-1] if "/" not in script and not script.endswith(".py") else Path(script).stem
    )
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_") or "run"
    return f"{plain[:40]}-{''.join(secrets.choice(_LETTERS) for _ in range(4))}"


def command_line(words: Sequence[str]) -> str:
    """Words as a person would type them."""
    return " ".join(shlex.quote(word) for word in words)


def prepend_path(variable: str, folder: str) -> str:
    """The value of a path variable with `folder` in front."""
    before = os.environ.get(variable)
    return f"{folder}{os.pathsep}{before}" if before else folder


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: letters, digits, '.', '_' and '-' only, at most 64")
    return text


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: 500MB, 1GiB")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def _percent(text: str) -> float:
    value = float(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 100")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return value
