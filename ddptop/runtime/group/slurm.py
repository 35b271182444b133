"""Slurm's own shorthand: lists of hosts and of tasks per node.

Formats as in Slurm's `hostlist` and in the output environment of `srun(1)`.
"""

from __future__ import annotations

import itertools
import re

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")

MAX_HOSTS = 65536
"""Hosts that one list may stand for: above what Slurm itself takes, below what a typing error could mean."""


def hosts(text: str) -> list[str]:
    """The hosts of a node list such as `node[01-03,07],gpu5`, in its order.

    Raises:
        ValueError: for brackets that do not match, an empty name, a range that runs backwards.
    """
    found: list[str] = []
    for entry in _split(text):
        # "rack[1-2]n[3-4]" has odd pieces in brackets, even ones as they are.
        pieces = re.split(r"\[([^\[\]]*)\]", entry)
        if any(mark in piece for piece in pieces[::2] for mark in "[]") or not entry:
            raise ValueError(f"not a Slurm node list: {text!r}")
        choices = [
            _numbers(piece, text) if odd else [piece] for odd, piece in zip(itertools.cycle((0, 1)), pieces)
        ]
        for words in itertools.product(*choices):
            found.append("".join(words))
            if len(found) > MAX_HOSTS:
                raise ValueError(f"a Slurm node list of more than {MAX_HOSTS} hosts: {text[:80]!r}")
    return found


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
        counts += [int(match[1])] * min(int(match[2] or 1), MAX_HOSTS)
    return counts


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside brackets."""
    entries, depth = [""], 0
    for character in text.strip():
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            entries.append("")
        else:
            entries[-1] += character
    return entries


def _numbers(piece: str, text: str) -> list[str]:
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
