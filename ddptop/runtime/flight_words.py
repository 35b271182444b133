"""A finding of torch's flight recorder analyser in one line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NAMED = 8
"""Ranks that a line names one by one."""

SIZES_CHARACTERS = 60
"""Of the sizes of one side."""


def words(found: Any) -> str:
    """A `Collective` of torch's analyser in words; empty where it found nothing wrong with it."""
    missing, others = set(found.missing_ranks or ()), found.mismatch_collectives or {}
    parts = []
    if missing:
        has = "has" if len(missing) == 1 else "have"
        parts.append(f"{ranks_words(missing)} {has} not joined {_name(found)}")
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, other in sorted(others.items()):
        looks = _name(other), str(other.input_sizes), str(other.collective_state)
        alike.setdefault(looks, []).append(rank)
    rest = set(found.expected_ranks) - set(others) - missing
    for ranks in alike.values():
        parts.append(_difference(others[ranks[0]], ranks_words(ranks), found, ranks_words(rest)))
    group, _, description = str(found.pg_desc).partition(":")
    where = "" if group == "0" else f" of group {group}" + (f" ({description})" if description else "")
    return f"{', '.join(parts)}: sequence {found.collective_seq_id:,}{where}" if parts else ""


def _difference(other: Any, whose: str, found: Any, rest: str) -> str:
    """How the calls of some ranks differ from those of the rest."""
    kind = other.type_of_mismatch.state.name
    call = f"{whose} {'call' if whose.startswith('ranks') else 'calls'} {_name(other)}"
    if kind == "COLLECTIVE_TYPE_MISMATCH":
        return f"{call}, {rest} {_name(found)}"
    if kind == "COLLECTIVE_STATE_MISMATCH":
        return f"{_name(other)} is {other.collective_state} on {whose}, {found.collective_state} on {rest}"
    if kind == "COLLECTIVE_DTYPE_MISMATCH":
        return f"{call} with other data types than {rest}"
    return f"{call} of {_sizes(other)}, {rest} of {_sizes(found)}"


def _name(found: Any) -> str:
    return str(found.collective_name).rpartition(":")[2]


def _sizes(found: Any) -> str:
    return str(found.input_sizes)[:SIZES_CHARACTERS]


def ranks_words(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0 2 3`, `ranks 0 1 2 3 4 5 6 7 and 4 more`."""
    numbers = sorted(ranks)
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return ("rank " if len(numbers) == 1 else "ranks ") + " ".join(map(str, numbers[:NAMED])) + more
