"""The rows of the table of ranks: ranks, and where they are grouped also hosts, whose ranks may be folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HOST_ROWS = -2
"""Rows of hosts count downwards from here: -1 opens the stall page, 0 and more are ranks."""


def host_row(host: int) -> int:
    """The row of a host, by its place in the index of hosts."""
    return HOST_ROWS - host


def host_of(row: int) -> int | None:
    """The host whose row it is; None: a rank's."""
    return HOST_ROWS - row if row <= HOST_ROWS else None


@dataclass(frozen=True)
class TableRows:
    """The rows of the table of ranks, in order."""

    rows: tuple[int, ...] = ()
    """A rank, or `host_row` of a host."""
    order: tuple[int, ...] = ()
    """All ranks that pass the filter, those of folded hosts too, in the order of the table."""
    leads: Mapping[int, int] = field(default_factory=dict)
    """By host: its first rank in this order, the worst one; a folded host shows the figures of this rank.
    Empty: the ranks are not grouped."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Names of these hosts."""
    folded: frozenset[int] = frozenset()

    @property
    def grouped(self) -> bool:
        """Whether the table has rows of hosts."""
        return bool(self.leads)

    def rank(self, row: int) -> int:
        """The rank that a row shows: a host's worst."""
        host = host_of(row)
        return row if host is None else self.leads[host]


@dataclass
class HostFolds:
    """What keys have chosen of the grouping by host; the rest is decided by how many ranks fit."""

    grouped: bool | None = None
    """Whether ranks are grouped by host; None: where several hosts have more ranks than there are lines."""
    all_folded: bool | None = None
    """None: folded, but hosts with a rank in trouble are unfolded as far as all rows fit."""
    changed: dict[str, bool] = field(default_factory=dict)
    """By name, hosts that a key has folded (True) or unfolded."""

    def fold(self, host: str, folded: bool) -> None:
        """Fold or unfold a host."""
        self.changed[host] = folded

    def fold_all(self, folded: bool) -> None:
        """Fold or unfold all hosts."""
        self.all_folded, self.changed = folded, {}
