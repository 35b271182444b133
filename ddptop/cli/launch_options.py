"""The options of `ddptop-run`: its own, beside all of torchrun's."""

from __future__ import annotations

import argparse
import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from ddptop.cli.errors import note
from ddptop.protocol.limits import DEFAULT_BUDGET_PCT, DEFAULT_RECORD_LIMIT_BYTES, DEFAULT_STALL_S

PREFIX = "--ddptop-"
EXEC = f"{PREFIX}exec"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that look alike

MIN_LIMIT = 1 << 20
"""Bytes of a recording: below that little remains after thinning."""


class UsageError(Exception):
    """An option of ours, or its value, that cannot be used; the text is one line for the user.

    Not argparse's own error, which prints a page of torchrun's usage as well.
    """


def _parse_record(text: str) -> str:
    if not text:
        raise ValueError("give a path, or `off`")
    if text in ("auto", "off"):
        return text
    if os.path.realpath(text) == os.path.realpath(os.devnull):  # written there, nothing is kept
        return "off"
    # A slash at the end says that it is a folder.
    return f"{Path(text).absolute()}{os.sep if text.endswith(os.sep) else ''}"


def _parser_of_either(first: str, second: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in (first, second):
            raise ValueError(f"{text!r} is neither {first} nor {second}")
        return text

    return parse


_auto_or_off, _full_or_auto, _on_or_off = (
    _parser_of_either("auto", "off"),
    _parser_of_either("full", "auto"),
    _parser_of_either("on", "off"),
)


def _parse_listen(text: str) -> str:
    host, _, port = text.rpartition(":")
    # An IPv6 address needs its brackets: its last colon would be taken for the port's.
    if not host or (":" in host and not host.startswith("[")) or _parse_port(port) == 0:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return text


def metrics_target(text: str) -> str:
    """`prometheus:[HOST:]PORT` or `otlp:URL` as it is. Raises ValueError."""
    kind, _, where = text.partition(":")
    if kind == "prometheus":
        _parse_port(where.rpartition(":")[2])
    elif kind != "otlp" or urlsplit(where).scheme not in ("http", "https") or not urlsplit(where).hostname:
        raise ValueError(f"{text!r} is neither prometheus:[HOST:]PORT nor otlp:URL")
    return text


def _parse_logger(text: str) -> str:
    kind, _, folder = text.partition(":")
    if kind == "tensorboard" and folder:
        # Absolute: the process that writes has another working folder.
        return f"tensorboard:{Path(folder).absolute()}"
    if text not in ("wandb", "mlflow"):
        raise ValueError(f"{text!r} is none of tensorboard:DIR, wandb and mlflow")
    return text


def _parse_target(text: str) -> str:
    if not text.strip():
        raise ValueError("give a command or a URL")
    return text


def _parse_port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 65_536:
        raise ValueError(f"{text!r} is no port")
    return int(text)


def _parse_switch(text: str) -> bool:
    return _on_or_off(text) == "on"


def _parse_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r}: letters, digits, '.', '_' and '-' only, at most 64")
    return text


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if not match:
        raise ValueError(f"{text!r} is no size: 500MB, 1GiB")
    size = int(float(match[1]) * _UNITS[match[2] or ""])
    if size < MIN_LIMIT:
        raise ValueError(f"{text!r} is less than 1MiB; `--ddptop-record off` records nothing")
    return size


def _parse_percent(text: str) -> float:
    if not 0 < _number_or_nan(text) <= 100:
        raise ValueError(f"{text!r} is no percentage from above 0 to 100")
    return _number_or_nan(text)


def _parse_seconds(text: str) -> float:
    if not 0 < _number_or_nan(text) < 1e6:
        raise ValueError(f"{text!r} is no number of seconds above 0")
    return _number_or_nan(text)


def _number_or_nan(text: str) -> float:
    """NaN for what is not a number: no comparison is true for it."""
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class Option:
    """An option of `ddptop-run`. Its field in `LaunchOptions` names it: `record_limit` is
    `--ddptop-record-limit` and `DDPTOP_RECORD_LIMIT`."""

    default: str | None
    parse: Callable[[str], Any]
    """The value that a text gives. Raises ValueError."""
    metavar: str
    help: str
    """`{default}` stands for the default."""
    goes_to: Literal["ranks", "collector", "collector in secret"] | None = None
    """Who else reads it: ranks read its variable; the collector an argument of the same name, or the variable
    of an option that may hold a secret, because every user of the machine can read arguments."""


def _declare_option(*declared: Any) -> Any:
    return field(metadata={"option": Option(*declared)})


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options of `ddptop-run`. Each is declared here and nowhere else.

    The command line, its help, the variables, and what ranks, collector and agent are told follow from it.
    """

    name: str | None = _declare_option(
        None, _parse_name, "NAME", "name of the run, for: ddptop NAME (default: from the script's name)"
    )
    record: str = _declare_option(
        "auto", _parse_record, "PATH", "file or folder of the recording; off: record nothing"
    )
    """`auto`, `off` or an absolute path."""
    record_limit: int = _declare_option(
        f"{DEFAULT_RECORD_LIMIT_BYTES >> 30}GiB",
        _parse_size,
        "SIZE",
        "largest size of the recording (default {default})",
        "collector",
    )
    """Bytes."""
    budget: float = _declare_option(
        str(DEFAULT_BUDGET_PCT),
        _parse_percent,
        "PCT",
        "percent of the step time that ddptop may take (default {default})",
        "ranks",
    )
    """Percent of step time."""
    stall: float = _declare_option(
        f"{DEFAULT_STALL_S:g}",
        _parse_seconds,
        "SECONDS",
        "report a stall after so long without progress (default {default})",
        "collector",
    )
    """Seconds."""
    detail: str = _declare_option(
        "auto",
        _full_or_auto,
        "full|auto",
        "time every bucket of every step, or a sample (default {default})",
        "ranks",
    )
    argv: bool = _declare_option(
        "on",
        _parse_switch,
        "on|off",
        "record the script's arguments, secrets masked (default {default})",
        "ranks",
    )
    shadow: bool = _declare_option(
        "on",
        _parse_switch,
        "on|off",
        "pause the recorder in 2%% of steps to measure its cost (default {default})",
        "ranks",
    )
    hosts: str = _declare_option(
        "auto", _auto_or_off, "auto|off", "record all hosts as one run, or each by itself (default {default})"
    )
    listen: str | None = _declare_option(
        None,
        _parse_listen,
        "HOST:PORT",
        "let viewers with a key connect here (see ddptop key --help)",
        "collector",
    )
    port: int = _declare_option(
        "0", _parse_port, "PORT", "port where other hosts connect (default: any free one)", "ranks"
    )
    """0: any free one."""
    on_alert: str | None = _declare_option(
        None,
        _parse_target,
        "COMMAND|URL",
        "call this when an alert begins and when it is over",
        "collector in secret",
    )
    metrics: str | None = _declare_option(
        None,
        metrics_target,
        "prometheus:[HOST:]PORT|otlp:URL",
        "export the figures of the run while it lives",
        "collector in secret",
    )
    to: str | None = _declare_option(
        None,
        _parse_logger,
        "tensorboard:DIR|wandb|mlflow",
        "write the figures of the run to this logger",
        "collector in secret",
    )
    off: bool = False
    """Plain torchrun."""
    most_ranks: int | None = None
    """Ranks that torchrun starts at most; None: not known, or the script may start its own."""
    most_hosts: int = 1
    """Hosts that torchrun uses at most."""

    @property
    def may_span_hosts(self) -> bool:
        """Whether torchrun may start ranks on several hosts, which are to be one run."""
        return self.hosts == "auto" and self.most_hosts > 1

    @classmethod
    def from_parsed(cls, parsed: argparse.Namespace) -> LaunchOptions:
        """From the parsed command line."""
        nodes = getattr(parsed, "nnodes", "")
        # Empty where there was no torchrun, whose parser would have these.
        return cls(
            **{name: getattr(parsed, f"ddptop_{name}") for name in OPTIONS},
            off=parsed.ddptop_off,
            most_ranks=_most_ranks(nodes, getattr(parsed, "nproc_per_node", "")),
            most_hosts=1 if getattr(parsed, "standalone", False) else _most_hosts(nodes),
        )

    @classmethod
    def from_words(cls, words: Sequence[str] = ()) -> LaunchOptions:
        """From these words and the environment. Raises UsageError."""
        parser = argparse.ArgumentParser(prog="ddptop")
        add_options(parser)
        return cls.from_parsed(parser.parse_args(words))

    def as_environment(self, name: str) -> dict[str, str]:
        """The options as environment variables, for a process that reads them with `add_options`; `name`: of
        the run."""
        return replace(self, name=name)._variables_of(OPTIONS)

    def variables_for(self, reader: Literal["ranks", "collector in secret"]) -> dict[str, str]:
        """The variables that ranks read, or the collector, of what must not be on its command line."""
        return self._variables_of(name for name, option in OPTIONS.items() if option.goes_to == reader)

    @property
    def collector_arguments(self) -> dict[str, str]:
        """The collector's options, by their names there, with their values."""
        values = self._texts_of(name for name, option in OPTIONS.items() if option.goes_to == "collector")
        return {f"--{_dashed_name(name)}": text for name, text in values.items()}

    def _variables_of(self, names: Iterable[str]) -> dict[str, str]:
        return {_variable_name(name): text for name, text in self._texts_of(names).items()}

    def _texts_of(self, names: Iterable[str]) -> dict[str, str]:
        """The options of these names that have a value, as the text that gives it."""
        values = {name: getattr(self, name) for name in names}
        return {name: _value_text(value) for name, value in values.items() if value is not None}


OPTIONS: dict[str, Option] = {
    declared.name: declared.metadata["option"]
    for declared in fields(LaunchOptions)
    if "option" in declared.metadata
}
"""By the names of their fields. `--ddptop-off` and `--ddptop-exec`, which have no variable, are not in it."""


def _dashed_name(name: str) -> str:
    return name.replace("_", "-")


def _variable_name(name: str) -> str:
    return f"DDPTOP_{name.upper()}"


def _value_text(value: Any) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ddptop's own options, all optional, to a parser."""
    group = parser.add_argument_group("ddptop's options (each is also a variable, such as DDPTOP_BUDGET=0.5)")
    for name, option in OPTIONS.items():
        group.add_argument(
            f"{PREFIX}{_dashed_name(name)}",
            # The variable's value is the default, so that a flag wins.
            default=_from_environment(name, option),
            type=_argparse_type(name, option.parse),
            metavar=option.metavar,
            help=option.help.format(default=option.default),
        )
    group.add_argument(
        EXEC,
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="run a command that starts the ranks (mp.spawn, srun, accelerate); must be the last option",
    )
    group.add_argument("--ddptop-off", action="store_true", help="run plain torchrun, without ddptop")


DESCRIPTION = """\
Start a training as torchrun does, and record it for ddptop. The script does not change.
While it runs, type `ddptop` in a second terminal.

examples:
  ddptop-run --standalone --nproc-per-node 8 train.py --epochs 3
  ddptop-run --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d \\
      --rdzv-endpoint node0:29500 train.py
  srun ddptop-run --ddptop-exec python train.py
  ddptop-run --ddptop-name llama --ddptop-stall 60 --standalone --nproc-per-node 8 train.py"""

USAGE = """ddptop-run [--ddptop-OPTION ...] [torchrun's options] script.py [args]
       ddptop-run [--ddptop-OPTION ...] --ddptop-exec COMMAND [args]"""


def help_text(others: argparse.ArgumentParser | None) -> str:
    """The help of `ddptop-run`: examples and our options, then those of torchrun's parser; None: without."""
    ours = argparse.ArgumentParser(
        usage=USAGE,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    add_options(ours)
    if others is None:
        return ours.format_help()
    others.usage, others.description = argparse.SUPPRESS, None
    return f"{ours.format_help()}\ntorchrun's arguments and options\n\n{others.format_help()}"


def split_exec(argv: Sequence[str]) -> tuple[LaunchOptions, list[str]] | None:
    """Options and command of `ddptop-run [options] --ddptop-exec COMMAND [args]`; None for any other command.

    Raises UsageError.
    """
    if EXEC not in argv:
        return None
    index = list(argv).index(EXEC)
    parser = argparse.ArgumentParser(prog="ddptop-run", allow_abbrev=False)
    add_options(parser)
    parsed, remaining = parser.parse_known_args(list(argv[:index]))
    if any(not word.startswith("-") for word in remaining):
        return None  # a script comes first: the option is one of its arguments
    refuse_misspelt(remaining)
    if remaining:
        raise UsageError(f"{remaining[0]} is torchrun's: give it to the command after {EXEC}")
    command = list(argv[index + 1 :])
    if not command:
        raise UsageError(f"{EXEC} needs a command")
    return LaunchOptions.from_parsed(parsed), command


def refuse_misspelt(unknown: Sequence[str]) -> None:
    """Raise UsageError where one of the options that no parser knows was meant for ddptop."""
    misspelt = next((word.partition("=")[0] for word in unknown if word.startswith(PREFIX)), None)
    if misspelt is None:
        return
    names = [*OPTIONS, "exec", "off"]
    near = get_close_matches(misspelt.removeprefix(PREFIX), map(_dashed_name, names), n=1)
    hint = f"did you mean {PREFIX}{near[0]}? " if near else ""
    raise UsageError(f"{misspelt}: there is no such option; {hint}ddptop-run --help lists them")


_LAUNCHERS = re.compile(r"python[0-9.]*|torchrun|torch\.distributed\.(run|launch)")
_BEFORE_SCRIPT = re.compile(r"(.*/)?python[0-9.]*|-[bBdEiIOPqsSuvx]+")
"""Python, and those of its options that take no value."""


def own_script(command: Sequence[str]) -> Sequence[str]:
    """The script or module that a command runs, with its arguments.

    Python, torchrun, their options and the words before them are left out. The whole command if it names no
    script.
    """
    names = [_LAUNCHERS.fullmatch(Path(word).name) is not None for word in command]
    begin = names.index(True) + 1 if True in names else 0
    for index in range(begin, len(command)):
        word, before = command[index], command[index - 1] if begin > 0 else ""
        is_script = _BEFORE_SCRIPT.fullmatch(before) is not None and not word.startswith("-")
        if (is_script or before == "-m" or word.endswith(".py")) and not names[index]:
            return command[index:]
    return command


def run_name(options: LaunchOptions, script: Sequence[str]) -> str:
    """The run's name: as asked for, or the script's and four characters."""
    if options.name:
        return options.name
    word = script[0] if script else "run"
    # A module's last part, or a file without its ending.
    stem = Path(word).stem if "/" in word or word.endswith(".py") else word.rsplit(".", 1)[-1]
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_") or "run"
    # Short enough for a file's name with a number behind it.
    return f"{plain[:40]}-{''.join(secrets.choice(_LETTERS) for _ in range(4))}"


def prepend_path(variable: str, folder: str) -> str:
    """The value of a path variable with `folder` in front."""
    before = os.environ.get(variable)
    return f"{folder}{os.pathsep}{before}" if before else folder


def abbreviate_others_only(parser: argparse.ArgumentParser) -> None:
    """Leave abbreviations to the parser's other options, as they were without ours.

    argparse also looks at the script's own options, whose beginning may be that of ours: `--dd 3` would be
    ambiguous. A private method, the same in Python 3.10 to 3.14: (option, ...) of those that a word may mean.
    """
    find = parser._get_option_tuples
    parser._get_option_tuples = lambda option_string: [  # type: ignore[method-assign]
        match for match in find(option_string) if not match[0].dest.startswith("ddptop_")
    ]


def _argparse_type(name: str, check: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return check(text)
        except ValueError as mistake:
            raise UsageError(f"{PREFIX}{_dashed_name(name)}: {mistake}") from None

    return convert


def _from_environment(name: str, option: Option) -> Any:
    """The value that the option's variable has; where it cannot be used the default, with a warning line."""
    value = None if option.default is None else option.parse(option.default)
    text = os.environ.get(_variable_name(name))
    # Said and ignored: a wrong variable must not keep a training from starting.
    try:
        return value if text is None else option.parse(text)
    except ValueError as mistake:
        note(f"{_variable_name(name)}: {mistake}; ignored")
        return value


def _most_ranks(nodes: str, processes: str) -> int | None:
    """From torchrun's `--nnodes` and `--nproc-per-node`. Other nodes may start more processes each, and a
    script that is started once may be one that spawns its own ranks."""
    if nodes not in ("1", "1:1") or not processes.isdecimal() or int(processes) < 2:
        return None
    return int(processes)


def _most_hosts(nodes: str) -> int:
    """From torchrun's `--nnodes`: N, or MIN:MAX."""
    most = nodes.rpartition(":")[2]
    return int(most) if most.isdecimal() else 1
