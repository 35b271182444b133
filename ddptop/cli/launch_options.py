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
from typing import Any

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
    worlds: tuple[int, int] | None = None
    """Least and most ranks that torchrun starts; None: not known, or the script may start its own."""

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
            worlds=_worlds(getattr(parsed, "nnodes", ""), getattr(parsed, "nproc_per_node", "")),
        )

    def as_environment(self, name: str) -> dict[str, str]:
        """The same as variables, for a process that reads them with `add_options`."""
        record = self.record if self.record in ("auto", "off") else str(Path(self.record).absolute())
        return {
            "DDPTOP_NAME": name,
            "DDPTOP_RECORD": record,
            "DDPTOP_RECORD_LIMIT": str(self.record_limit),
            "DDPTOP_STALL": str(self.stall),
        }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ddptop's own options, all optional, to a parser."""
    group = parser.add_argument_group("ddptop", "Also from the environment: DDPTOP_BUDGET=0.5 and so on.")

    def add(name: str, default: str | None, **rest: Any) -> None:
        # argparse converts and checks a default that is text, as if it had been typed.
        group.add_argument(f"--ddptop-{name}", default=_from_environment(name, default), **rest)

    add("name", None, type=_name, metavar="NAME", help="how `ddptop NAME` finds the run")
    add("record", "auto", metavar="PATH", help="where to record, or `off`")
    add("record-limit", "1GiB", type=_size, metavar="SIZE", help="past it the recording thins itself (1GiB)")
    add("budget", "1.0", type=_percent, metavar="PCT", help="share of step time the recorder may take (1.0)")
    add("stall", "15", type=_seconds, metavar="SECONDS", help="least standstill that is a stall (15)")
    add("detail", "auto", type=_detail, metavar="full|auto", help="every bucket of each step, or sampled")
    group.add_argument(
        EXEC,
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="run COMMAND [args] instead of a script: for one that starts its own ranks (mp.spawn, srun)",
    )
    group.add_argument("--ddptop-off", action="store_true", help="plain torchrun")


def split_exec(argv: Sequence[str]) -> tuple[LaunchOptions, list[str]] | None:
    """Options and command of `ddptop-run [options] --ddptop-exec COMMAND [args]`; None if it is none."""
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


def _from_environment(name: str, default: str | None) -> str | None:
    return os.environ.get("DDPTOP_" + name.upper().replace("-", "_"), default)


def _worlds(nodes: str, processes: str) -> tuple[int, int] | None:
    """From torchrun's `--nnodes 2` or `1:4` and `--nproc-per-node`. A script that is started once on each
    node may be one that spawns its own ranks."""
    ends = nodes.split(":")
    if not all(word.isdecimal() for word in (*ends, processes)) or int(processes) < 2:
        return None
    return int(ends[0]) * int(processes), int(ends[-1]) * int(processes)


def _detail(text: str) -> str:
    if text not in ("full", "auto"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither full nor auto")
    return text


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
