"""`Placement`: rank, world size and rendezvous address of this process, from its launcher's environment.

Slurm writes lists of hosts and of tasks per node in a shorthand: formats as in Slurm's `hostlist` and in the
output environment of `srun(1)`.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")

MAX_HOSTS = 65536
"""Hosts that one list may name: above Slurm's own limit, below what a typing error could mean."""


def expand_hosts(text: str) -> list[str]:
    """The hosts of a node list such as `node[01-03,07],gpu5`, in its order.

    Raises:
        ValueError: for brackets that do not match, an empty name, a range that runs backwards.
    """
    names: list[str] = []
    for entry in _split_entries(text):
        # "rack[1-2]n[3-4]" has odd pieces in brackets, even ones as they are.
        pieces = re.split(r"\[([^\[\]]*)\]", entry)
        if any(mark in piece for piece in pieces[::2] for mark in "[]") or not entry:
            raise ValueError(f"not a Slurm node list: {text!r}")
        choices = [
            _expand_range(piece, text) if odd else [piece]
            for odd, piece in zip(itertools.cycle((0, 1)), pieces)
        ]
        for parts in itertools.product(*choices):
            names.append("".join(parts))
            if len(names) > MAX_HOSTS:
                raise ValueError(f"a Slurm node list of more than {MAX_HOSTS} hosts: {text[:80]!r}")
    return names


def tasks_per_node(text: str) -> list[int]:
    """The tasks on each node from `SLURM_TASKS_PER_NODE`: `4(x2),3` is [4, 4, 3].

    Raises:
        ValueError: for anything else.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"not Slurm's tasks per node: {text!r}")
        # Bounded: a typing error must not make a list of millions.
        counts += [int(match[1])] * min(int(match[2] or 1), MAX_HOSTS)
    return counts


def _split_entries(text: str) -> list[str]:
    """Split at the commas that are not inside brackets."""
    entries, depth = [""], 0
    for character in text.strip():
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            entries.append("")
        else:
            entries[-1] += character
    return entries


def _expand_range(piece: str, text: str) -> list[str]:
    """`01-03,07` as written out, with the zeros that it was written with."""
    numbers: list[str] = []
    for part in piece.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"not a Slurm node list: {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MAX_HOSTS:
            raise ValueError(f"not a range of hosts: [{part}] in {text[:80]!r}")
        numbers += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return numbers


DEFAULT_PORT = 29500
"""torch's own, for ranks that are numbered by hand."""

SLURM_PORTS = range(10000, 30000)
"""Below the ports that Linux gives to outgoing connections (32768 and up), above those of services."""


@dataclass(frozen=True)
class Placement:
    """Which place one rank has in its job, known before there is a process group."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int
    launcher: str
    """`torchrun` (or any other that sets its variables), `slurm`, `explicit`, or `alone`."""

    @classmethod
    def from_environment(
        cls,
        rank: int | None = None,
        world_size: int | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Placement:
        """From the arguments, torchrun's variables, or Slurm's, in this order; with none of them, alone.

        Raises:
            ValueError: where some of them are set and others missing, naming both.
        """
        if rank is not None or world_size is not None:
            placement = _from_arguments(rank, world_size, environment)
        elif any(name in environment for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
            placement = _from_torchrun(environment)
        elif "SLURM_PROCID" in environment:
            placement = _from_slurm(environment)
        else:
            return cls(0, 1, 0, 1, "127.0.0.1", DEFAULT_PORT, "alone")
        if not 0 <= placement.rank < placement.world_size:
            raise ValueError(
                f"rank {placement.rank} is not in a world of {placement.world_size} (ranks count from 0)"
            )
        return placement

    def launcher_variables(self) -> dict[str, str]:
        """The variables that torchrun would have set: other libraries read them."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }


def _from_arguments(rank: int | None, world_size: int | None, environment: Mapping[str, str]) -> Placement:
    if rank is None or world_size is None:
        given, missing = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise ValueError(f"ddptop.setup({given}=...) needs {missing}= as well")
    return Placement(
        rank,
        world_size,
        _whole_number(environment, "LOCAL_RANK", rank),
        _whole_number(environment, "LOCAL_WORLD_SIZE", world_size),
        environment.get("MASTER_ADDR", "127.0.0.1"),
        _whole_number(environment, "MASTER_PORT", DEFAULT_PORT),
        "explicit",
    )


def _from_torchrun(environment: Mapping[str, str]) -> Placement:
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    _all_there(environment, needed, "torchrun or ddptop-run sets all of them")
    rank = _whole_number(environment, "RANK")
    world_size = _whole_number(environment, "WORLD_SIZE")
    return Placement(
        rank,
        world_size,
        _whole_number(environment, "LOCAL_RANK", rank),
        _whole_number(environment, "LOCAL_WORLD_SIZE", world_size),
        environment["MASTER_ADDR"],
        _whole_number(environment, "MASTER_PORT"),
        "torchrun",
    )


def _from_slurm(environment: Mapping[str, str]) -> Placement:
    _all_there(environment, ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"), "srun sets all of them")
    world_size = _whole_number(environment, "SLURM_NTASKS")
    return Placement(
        _whole_number(environment, "SLURM_PROCID"),
        world_size,
        _whole_number(environment, "SLURM_LOCALID"),
        _slurm_local_world_size(environment, world_size),
        environment.get("MASTER_ADDR") or _slurm_first_host(environment),
        _whole_number(environment, "MASTER_PORT", _slurm_port(environment)),
        "slurm",
    )


def _slurm_local_world_size(environment: Mapping[str, str], world_size: int) -> int:
    # The step's own first: a job may have steps of fewer tasks.
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if environment.get(name):
            counts = tasks_per_node(environment[name])
            node = _whole_number(environment, "SLURM_NODEID", 0)
            if node < len(counts):
                return counts[node]
    return _whole_number(environment, "SLURM_NTASKS_PER_NODE", world_size)


def _slurm_first_host(environment: Mapping[str, str]) -> str:
    # The step's own nodes first: rank 0 is on the first of these.
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environment.get(name):
            return expand_hosts(environment[name])[0]
    raise ValueError(
        "Slurm's task is set (SLURM_PROCID) but no SLURM_JOB_NODELIST: set MASTER_ADDR to a host"
    )


def _slurm_port(environment: Mapping[str, str]) -> int:
    """A port that is the same on all ranks of a job step, and seldom the same for two jobs on one host."""
    job = _whole_number(environment, "SLURM_JOB_ID", 0)
    step = _whole_number(environment, "SLURM_STEP_ID", 0)
    return SLURM_PORTS[(job + 7919 * step) % len(SLURM_PORTS)]  # a prime: steps of one job get distant ports


def _all_there(environment: Mapping[str, str], names: tuple[str, ...], who: str) -> None:
    missing = [name for name in names if not environment.get(name)]
    if missing:
        present = [name for name in (*names, "LOCAL_RANK") if environment.get(name)]
        raise ValueError(
            f"the environment is half set: {', '.join(present)} without {', '.join(missing)} ({who}). "
            "Start the script by its launcher, unset them, or give ddptop.setup() rank= and world_size="
        )


def _whole_number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "").strip()
    if text.isdecimal():
        return int(text)
    # A wrong number of Slurm's is not the user's mistake: the default is taken.
    if default is None or (text and not name.startswith("SLURM_")):
        raise ValueError(f"{name} must be a whole number, not {text!r}")
    return default


def refuse_while_importing(call: str) -> None:
    """Raise RuntimeError where a child of multiprocessing reaches `call` while it imports its script."""
    # multiprocessing sets this while a spawned child imports the script.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            f"{call} was reached while a process that this script has started imports it: "
            "put what the script does below `if __name__ == '__main__':`"
        )
