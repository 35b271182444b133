"""Tests the hosts' clocks with the collectives: none ends before its last rank has arrived.

Let s be the start of an all-reduce and e its end, each by the clock of the rank's host, and θ what has to be
added to a host's clock to get the collector's. For hosts i and j, over all all-reduces k,

    max over k of (s_i - e_j)  <=  θ_j - θ_i  <=  min over k of (e_i - s_j).

The offsets that agents have measured must lie in these intervals, as far as their bounds permit. For hosts
i, j and the collector's this is the triangle of three hosts: the offsets i - collector and collector - j from
clock exchanges and j - i from the collectives must sum to zero within the bounds. It costs no message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.numbers import fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.frames.columns import Column

US_PER_MS = 1000.0

NO_HOST = -1.0


def contradicting_hosts(start: Column, end: Column, host: NDArray[np.int64], bound_ms: Column) -> Column:
    """(2, n) places of a rank of the two hosts whose clocks contradict the collectives of each step; twice
    the same where it is one host's clock that contradicts those of several others. NO_HOST: none does.

    `start`, `end`: (launches, n, ranks) microseconds on the collector's clock, as far as offsets are right;
    `host`: (ranks,) numbers of their hosts; `bound_ms`: (n, ranks), of an arrival against other hosts'.
    """
    hosts = np.full((2, start.shape[1]), NO_HOST)
    _, first = np.unique(host, return_index=True)
    if len(first) < 2:
        return hosts
    late, early = _by_host(start, end, host)
    # How much later each host's ranks arrive than another one's see the end, and the others' than its own.
    ahead = _largest_over_launches(late - _smallest_of_others(early))
    behind = _largest_over_launches(-_smallest_of_others(-late) - early)
    limit = bound_ms[:, first] * US_PER_MS
    n_ahead, n_behind = (ahead > limit).sum(axis=1), (behind > limit).sum(axis=1)
    pair = np.stack([ahead.argmax(axis=1), behind.argmax(axis=1)])
    pair[1] = np.where((n_ahead == 1) & (n_behind > 1), pair[0], pair[1])
    pair[0] = np.where((n_behind == 1) & (n_ahead > 1), pair[1], pair[0])
    contradicts = (n_ahead > 0) & (n_behind > 0)
    hosts[:, contradicts] = first[pair[:, contradicts]]
    return hosts


def usual_pair(places: Column) -> tuple[int, int] | None:
    """The two places that `contradicting_hosts` gave most often; None: there is none. `places`: (2, n)."""
    pairs = places[:, ~np.isnan(places).any(axis=0) & (places[0] != NO_HOST)].astype(np.int64).T
    if not len(pairs):
        return None
    kinds, counts = np.unique(pairs, axis=0, return_counts=True)
    a, b = kinds[counts.argmax()].tolist()
    return int(a), int(b)


def contradiction_phrase(names: Sequence[str], by_ms: float, bound_ms: float) -> str:
    """`the clocks of hosts node1 and node2 contradict the collectives by 49.9 ms, more than their bound of
    0.3 ms`; without names where it is not known whose."""
    by_more_than = f"the collectives by {fixed(by_ms)} ms, more than"
    if len(names) == 1:
        return f"the clock of host {names[0]} contradicts {by_more_than} its bound of {fixed(bound_ms)} ms"
    whose = f"clocks of hosts {' and '.join(names)}" if names else "hosts' clocks"
    return f"the {whose} contradict {by_more_than} their bound of {fixed(bound_ms)} ms"


def _by_host(start: Column, end: Column, host: NDArray[np.int64]) -> tuple[Column, Column]:
    """(launches, n, hosts) the last start and the first end of each host's ranks; NaN: of none."""
    order = np.argsort(host, kind="stable")
    begins = np.flatnonzero(np.diff(host[order], prepend=-1))
    late = np.fmax.reduceat(start[..., order], begins, axis=-1)
    early = np.fmin.reduceat(end[..., order], begins, axis=-1)
    return np.asarray(late), np.asarray(early)


def _smallest_of_others(values: Column) -> Column:
    """(..., hosts) the smallest value of the other hosts; infinite where none is known."""
    known_values = np.where(np.isnan(values), np.inf, values)
    order = np.partition(known_values, 1, axis=-1)
    least = known_values.argmin(axis=-1)[..., None] == np.arange(known_values.shape[-1])
    return np.asarray(np.where(least, order[..., 1:2], order[..., :1]))


def _largest_over_launches(values: Column) -> Column:
    """(n, hosts) the largest value over the launches; unknown ones count as none."""
    return np.asarray(np.where(np.isfinite(values), values, -np.inf).max(axis=0))
