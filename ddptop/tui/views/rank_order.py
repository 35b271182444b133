"""Which rows the table of ranks has: ranks that pass the filter, sorted, and grouped by host where many."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.columns import distinct_texts
from ddptop.frames.conditions import PROBLEM_STATES, word_of_state
from ddptop.frames.figures import figures_shown
from ddptop.frames.hosts import host_index
from ddptop.render.context import CALM
from ddptop.render.hosts import ByHost, by_host, worst_first
from ddptop.render.rank_table import figure_values
from ddptop.tui import match
from ddptop.tui.scene import TableRows, host_row

if TYPE_CHECKING:
    from ddptop.frames.figures import Ranks
    from ddptop.protocol.vocabulary import FrameSource
    from ddptop.tui.scene import Place, Scene

SORTS = {
    figure.title: figure
    for figure, _ in figures_shown(lambda figure: figure.screen)
    if figure.largest_first is not None
}
"""By title, the figures that the table can be sorted by."""

COLUMNS = ("rank", "host", "dev", "state", *SORTS)
"""Everything that the table can be sorted by."""

FEW_RANKS = 8
"""Ranks that are not grouped by themselves: they are quickly paged through."""

_RANK_OF_STATE = {state: at for at, state in enumerate((*PROBLEM_STATES, "waiting", "live", "finished"))}


def order_rows(scene: Scene, room: int) -> TableRows:
    """The rows, for `room` lines of them. Ranks of several hosts are grouped where they do not fit."""
    chosen = _filter_shown(scene)
    if not is_grouped(scene, chosen, room):
        return rows_of_ranks(scene, chosen)
    worst = by_default(scene.place)
    groups = by_host(scene.frame, worst_first(scene, chosen) if worst else _sort_ranks(scene, chosen))
    hosts, names = groups.hosts.tolist(), host_index(scene.frame.ranks.host).names
    folded = _choose_folded(scene, groups, room)
    rows = [host_row(host) for host in hosts]
    # From the end, so that the places before stay: of thousands of hosts few are unfolded.
    for index in (index for index in range(len(hosts) - 1, -1, -1) if hosts[index] not in folded):
        rows[index + 1 : index + 1] = groups.of(index)
    leads = dict(zip(hosts, groups.ranks[groups.starts[:-1]].tolist(), strict=True))
    called = dict(zip(hosts, map(names.__getitem__, hosts), strict=True))
    return TableRows(tuple(rows), tuple(groups.ranks.tolist()), leads, called, folded)


def rows_of_ranks(scene: Scene, chosen: list[int]) -> TableRows:
    """The rows of some ranks in the order of the table, not grouped."""
    order = tuple(_trouble_first(scene, chosen) if by_default(scene.place) else _sort_ranks(scene, chosen))
    return TableRows(order, order)


def is_grouped(scene: Scene, chosen: list[int], room: int) -> bool:
    """Whether the chosen ranks are shown by host: a key has chosen so, or they are more than `room`."""
    grouped = scene.place.folds.grouped
    if grouped is False or (grouped is None and len(chosen) <= max(room, FEW_RANKS)):
        return False
    hosts = host_index(scene.frame.ranks.host).of_rank[chosen]
    return bool((hosts != hosts[:1]).any())


def _choose_folded(scene: Scene, groups: ByHost, room: int) -> frozenset[int]:
    """Hosts whose ranks are not shown."""
    folds, names = scene.place.folds, host_index(scene.frame.ranks.host).names
    hosts = groups.hosts.tolist()
    folded = set(hosts) if folds.all_folded is not False else set()
    if folds.changed:
        folded = {host for host in hosts if folds.changed.get(names[host], host in folded)}
    if folds.all_folded is None:
        place, _ = scene.attention
        least, largest = groups.least_and_largest(place)
        sizes = np.diff(groups.starts)
        free_lines = (
            room
            - len(hosts)
            - sum(int(sizes[index]) for index, host in enumerate(hosts) if host not in folded)
        )
        # Of a lost host all ranks are alike: to unfold it shows nothing more.
        for index in np.flatnonzero((least < CALM) & (least < largest) & (sizes <= free_lines)).tolist():
            host, size = hosts[index], int(sizes[index])
            if host in folded and names[host] not in folds.changed and size <= free_lines:
                folded.remove(host)
                free_lines -= size
    return frozenset(folded)


def by_default(place: Place) -> bool:
    """Whether no order was chosen: by rank, those in trouble first."""
    return place.sort == "rank" and not place.inverted


def worst_is_first(scene: Scene, grouped: bool) -> bool:
    """Whether the default order is another one than that of ranks: hosts, or some rank comes first."""
    states, unwell = distinct_texts(scene.frame.ranks.state), set(_unwell_states(scene))
    has_worst = bool(scene.stragglers or scene.responsible or (states & unwell and states - unwell))
    return by_default(scene.place) and (grouped or has_worst)


def _unwell_states(scene: Scene) -> tuple[str, ...]:
    """States of ranks that come first in the default order."""
    return ("waiting",) if scene.is_gathering else PROBLEM_STATES


def is_moving(place: Place, grouped: bool) -> bool:
    """Whether rows change places as figures change; the cursor then stays in its line, as in htop."""
    if place.follow:
        return False
    return place.sort in SORTS or place.sort == "state" or (grouped and by_default(place))


def order_ranks(scene: Scene, room: int) -> list[int]:
    """Ranks that pass the filter, sorted."""
    return list(order_rows(scene, room).order)


def _filter_shown(scene: Scene) -> list[int]:
    """Ranks that pass the filter, and the one that is followed."""
    frame, place = scene.frame, scene.place
    chosen = filter_ranks(frame.ranks, place.filter, frame.source)
    if place.follow and place.rank not in chosen and place.rank < len(frame.ranks.state):
        chosen = sorted([*chosen, place.rank])
    return chosen


def _sort_ranks(scene: Scene, chosen: list[int]) -> list[int]:
    """The ranks by the chosen column; those that a stall is due to and stragglers come first in every order.

    What is not known comes last, whichever way round the rest is.
    """
    ranks, place = scene.frame.ranks, scene.place
    chosen_set, flagged = set(chosen), dict.fromkeys((*sorted(scene.responsible), *scene.stragglers))
    pinned = [rank for rank in flagged if rank in chosen_set]
    chosen = [rank for rank in chosen if rank not in flagged] if pinned else chosen
    if place.sort in SORTS:
        figure = SORTS[place.sort]
        column = figure_values(scene, figure)
        keys = -column if figure.largest_first != place.inverted else column
        return pinned + [chosen[index] for index in np.argsort(keys[chosen], kind="stable").tolist()]
    if place.sort == "state":
        chosen.sort(key=lambda rank: _RANK_OF_STATE.get(ranks.state[rank], 0), reverse=place.inverted)
    elif place.sort in ("host", "dev"):
        texts = ranks.host if place.sort == "host" else ranks.device
        chosen.sort(key=texts.__getitem__, reverse=place.inverted)
    elif place.inverted:
        chosen.reverse()
    return pinned + chosen


def _trouble_first(scene: Scene, chosen: list[int]) -> list[int]:
    states, stragglers = scene.frame.ranks.state, {*scene.stragglers, *scene.responsible}
    unwell = _unwell_states(scene)
    front = [rank for rank in chosen if states[rank] in unwell or rank in stragglers]
    lifted = set(front)
    place, _ = scene.attention
    front.sort(key=lambda rank: int(place[rank]))
    return front + [rank for rank in chosen if rank not in lifted]


def filter_ranks(ranks: Ranks, typed: str, source: FrameSource = "live") -> list[int]:
    """Ranks that a filter lets pass: numbers and spans are ranks, words are host, device, state or phase."""
    if not match.parse_conditions(typed):
        return list(range(len(ranks.state)))
    states = tuple(word_of_state(state, source) for state in ranks.state)
    return match.find_matches(
        typed, _searched_texts(ranks.host, ranks.device, states, ranks.phase), number=int
    )


@lru_cache(maxsize=2)
def _searched_texts(*columns: tuple[str, ...]) -> list[str]:
    """What is known of every rank in words; a frame is painted many times while a filter is typed."""
    return [" ".join(words).lower() for words in zip(*columns, strict=True)]
