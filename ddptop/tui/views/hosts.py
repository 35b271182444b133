"""The hosts: a line each with state, ranks, link, clock, load and what its agent keeps; worst first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ddptop.frames.conditions import UNREACHABLE
from ddptop.frames.hosts import host_index
from ddptop.frames.numbers import counted
from ddptop.frames.phrases import host_total, several_hosts, window_phrase
from ddptop.render import table
from ddptop.render.host_table import FIGURES, SORTS, host_columns, host_notes, host_value
from ddptop.render.hosts import figures_by_trouble, host_troubles
from ddptop.render.line import Line, draw_rule, highlight_matches
from ddptop.render.metrics import HOST_FIELDS
from ddptop.render.text import wrap_lines
from ddptop.tui import match
from ddptop.tui.keys import Do
from ddptop.tui.page_figures import PageFigures
from ddptop.tui.scene import Page, PageLayout, Place, Scene
from ddptop.tui.screen import Screen
from ddptop.tui.view import View
from ddptop.tui.views.host_detail import DETAIL, LEAST_PANELS, draw_host_below, draw_host_panels
from ddptop.tui.views.panels import has_panels

if TYPE_CHECKING:
    from ddptop.frames.hosts import HostFigures

ROOM_FOR_DETAIL = 12
"""Lines from which these are worth taking from the list."""


def make_host_filter(hosts: tuple[str, ...], host: str) -> str:
    """A filter of ranks that lets this host alone pass."""
    text = host.lower()
    words = match.parse_conditions(text)
    # A name that reads as a number or an expression, or is part of another name, has to be escaped.
    plain = len(words) == 1 and words[0].text == text and words[0].span is None
    if plain and sum(text in name.lower() for name in hosts) == 1:
        return text
    escaped = "".join(letter if letter.isalnum() or letter in "-_" else f"\\{letter}" for letter in text)
    return f"/^{escaped} /"


def _filter_hosts(scene: Scene, hosts: tuple[HostFigures, ...]) -> list[HostFigures]:
    typed = scene.place.hosts.filter
    if not match.parse_conditions(typed):
        return list(hosts)
    texts = [" ".join((host.name, *_searched_words(host))).lower() for host in hosts]
    return [hosts[index] for index in match.find_matches(typed, texts)]


def _sort_hosts(scene: Scene, hosts: list[HostFigures]) -> list[HostFigures]:
    """The hosts by the chosen column, else worst first. What is not known comes last."""
    state = scene.place.hosts
    figure = FIGURES.get(state.sort)
    if figure is not None:
        sign = -1.0 if figure.largest_first != state.inverted else 1.0

        def key(host: HostFigures) -> tuple[bool, float]:
            value = host_value(figure, host)
            return (True, 0.0) if value is None else (False, sign * value)

        return sorted(hosts, key=key)
    if state.sort == "host":
        hosts = sorted(hosts, key=lambda host: host.name)
    elif state.sort == "state":
        hosts = sorted(hosts, key=lambda host: host.state)
    return hosts[::-1] if state.inverted else hosts


def _searched_words(host: HostFigures) -> list[str]:
    """What a filter matches besides the name."""
    words = [host.state, *host_notes(host)]
    words += ["thinned"] if host.thinned else []
    return [*words, "collector"] if host.collector else words


def _count_hosts(scene: Scene, hosts: list[HostFigures]) -> str:
    total = host_total(scene.frame)
    state = scene.place.hosts
    words = [counted(total, "host") if len(hosts) == total else f"{len(hosts):,} of {counted(total, 'host')}"]
    words += [f"filter {scene.clean(state.filter)!r}"] if state.filter else []
    order = [] if state.sort or total < 2 else ["worst first"]
    times = [] if scene.frame.group.step is None else [f"ms, {window_phrase(scene.frame.group)}"]
    return " · ".join([*words, *host_troubles(scene.frame), *order, *times])


def _explain_empty(scene: Scene) -> str:
    if scene.place.hosts.filter:
        return f"no host matches {scene.clean(scene.place.hosts.filter)!r}: Esc shows all"
    if host_total(scene.frame) == 1:
        return "all ranks run on one host: hosts are compared where a run has several"
    return "no host has reported yet"


class HostColumns(PageFigures):
    """The columns of the table of hosts."""

    fields = HOST_FIELDS

    def titles(self, scene: Scene) -> tuple[str, ...]:
        """All columns with a figure."""
        return tuple(FIGURES)

    def current(self, place: Place) -> str:
        """The column that the hosts are sorted by."""
        return place.hosts.sort or "excess"


class HostsView(View):
    """Every host, the worst first."""

    name = "hosts"
    answers = "every host: its link, clock, load and ranks, the worst first"
    number = "8"
    always_named = True
    filters_here = True
    filter_hint = f"hosts to show: a name, {UNREACHABLE}, !live, records locally, /regex/"
    figures = HostColumns()

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """The list, and below it what is known of the host under the cursor."""
        state = scene.place.hosts
        hosts = _sort_hosts(scene, _filter_hosts(scene, figures_by_trouble(scene)))
        detail, panels = 0, has_panels(width, height)
        if hosts and (panels or height >= ROOM_FOR_DETAIL):
            least = LEAST_PANELS if panels else DETAIL + 1
            detail = max(least, height - 2 - len(scene.frame.hosts))
        names = [host.name for host in hosts]
        scroll = scene.place.scroll
        stays_in_line = state.moving and state.cursor in state.order[scroll.cursor : scroll.cursor + 1]
        if state.cursor in names and not stays_in_line:
            scroll = replace(scroll, cursor=names.index(state.cursor))
        room = height - 2 - detail
        scroll, shown = scroll.fitted(len(hosts), room)
        columns = table.choose_columns(host_columns(scene, hosts, width), scene.place.columns)
        columns = table.fit_columns(columns, width - 1)
        titles = tuple(column.title for column in columns if column.title in SORTS)
        sign = "▾" if (state.sort in FIGURES and FIGURES[state.sort].largest_first) != state.inverted else "▴"
        head = Line(" ").extend(table.draw_head(columns, 1, state.sort or None, sign, Do.SORT_BY))
        lines = [draw_rule(width, _count_hosts(scene, hosts)), head]
        pattern = match.highlight_pattern(scene.place.searched)
        for index in shown:
            chosen = index == scroll.cursor
            line = Line("▸" if chosen else " ", "accent", ground="cursor" if chosen else "")
            line.extend(highlight_matches(table.draw_row(columns, index), pattern))
            line.target = index
            lines.append(line)
        if not hosts:
            lines += [Line("  ").add(row, "dim") for row in wrap_lines(_explain_empty(scene), width - 2)]
        lines += [Line()] * (height - detail - len(lines))
        if detail and panels:
            lines += draw_host_panels(scene, hosts[scroll.cursor], width, detail)
        elif detail:
            state_now = next(
                (column.cell(scroll.cursor) for column in columns if column.title == "state"), None
            )
            lines += draw_host_below(scene, hosts[scroll.cursor], state_now, width, detail)
        return Page(lines, PageLayout(scroll, hosts=tuple(names), sortable=titles))

    def exists(self, scene: Scene | None) -> bool:
        """Whether the run has several hosts."""
        return scene is not None and several_hosts(scene.frame)

    def filter_text(self, place: Place) -> str:
        """The filter of hosts."""
        return place.hosts.filter

    def set_filter(self, place: Place, text: str) -> None:
        """Filter the hosts."""
        place.hosts.filter = text

    def move(self, screen: Screen, lines: int) -> None:
        """Move the cursor to another host."""
        screen.place.point_at_host(screen.place.scroll.cursor + lines)
        screen.repaint()

    def point_at(self, place: Place, target: int) -> None:
        """A click on a host."""
        place.point_at_host(target)

    def show_host(self, screen: Screen, name: str) -> None:
        """Open the list at a host."""
        screen.place.hosts.filter, screen.place.hosts.cursor = "", name
        screen.open_view(self.name)

    def open_chosen(self, screen: Screen) -> None:
        """The table of ranks, with those of the host under the cursor alone."""
        place = screen.place
        names = place.hosts.order
        if not names or screen.shown is None:
            return
        host = place.hosts.cursor
        if host not in names:
            host = names[min(place.scroll.cursor, len(names) - 1)]
        index = host_index(screen.shown.ranks.host)
        if host not in index.names:
            screen.show_note("no rank runs on this host")
            return
        place.filter, place.follow = make_host_filter(index.names, host), False
        place.rank, place.on_host = index.ranks(index.names.index(host))[0], False
        screen.open_view("overview")

    def sorted_by(self, place: Place) -> tuple[str, bool]:
        """The order of the hosts; no column: the worst first."""
        return place.hosts.sort, place.hosts.inverted

    def sort_by(self, place: Place, column: str, *, inverted: bool = False) -> None:
        """Sort the hosts."""
        place.hosts.sort, place.hosts.inverted = column, inverted

    def can_sort_by(self, column: str) -> bool:
        """A bound is a title too, but not one to sort by."""
        return column in SORTS
