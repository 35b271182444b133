"""The help: a line per key, made from the keys that the views declare."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, get_args

from ddptop.frames.conditions import UNREACHABLE
from ddptop.frames.numbers import counted
from ddptop.protocol.vocabulary import RankStatus
from ddptop.render.line import Line, draw_rule, of_state, side_by_side
from ddptop.render.text import fit_text, text_width, wrap_lines
from ddptop.tui.keys import PAIRS, RECORDING_KEYS, SEARCH_KEY, Action, Do, ScreenKey
from ddptop.tui.match import highlight_pattern
from ddptop.tui.scene import Page, PageLayout, Scene, Scroll
from ddptop.tui.screen import Screen
from ddptop.tui.view import View, Views
from ddptop.tui.views.text_page import count_below, draw_text

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY_WIDTH = 8

WORDS = {
    "excess": "own time of a rank minus that of the others",
    "skew": "the ranks' own times differ, so all wait for the slowest one",
    "wait, transfer": "the part of an all-reduce before its last rank joins, and after it",
    "overlapped": "communication while backward computes: it costs no time",
    "exposed": "communication that is not overlapped: the step is longer by it",
    "without waiting": "the step if no rank had to wait for a slower one",
    "if communication were hidden": "the step if all communication were overlapped",
    "overhead": "share of the step that ddptop itself takes",
    "records missing": "steps of a rank that never arrived, or had no room on the recording's disk",
    "thinned": "bucket detail, or steps of a recording, left out to save room",
    "no DDP model": "no buckets are timed, and no bubbles between pipeline stages",
    "ended": "a rank whose process ended because another rank had died",
}
"""Words of the pages that PyTorch's documentation does not explain."""


TOPICS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("move", (
        ("Up Down k j", "up, down"), ("PgUp PgDn", "a page up, down"), ("g G Home End", "top, bottom"),
        ("Left Right", "previous, next view"), ("Tab S-Tab", "the same"), ("Enter", "open"), ("Esc", "back"),
    )),
    ("find", (
        ("/", "filter, search"), ("n N", "next, previous match"), (": Ctrl P", "palette: all by name"),
        ("w S", "why; the start"), ("F1 F2", "figures, columns"),
    )),
    ("ranks and hosts", (
        ("< > I", "sort; reverse"), ("F", "follow the rank"), ("c", "mark; compare two"),
    )),
    ("screen", (
        ("space", "freeze, pause"), ("s y", "save, copy"), ("r o", "runs; two side by side"),
        ("?", "help"), ("q F10", "quit; training goes on"),
    )),
    ("in a recording", (
        ("[ ] ( )", "one step, ten steps"), ("{ }", "previous, next event"), ("+ -", "speed"),
        ("g", "go to a step, a time"),
    )),
)  # fmt: skip
"""The keys of all pages by topic, in as few words as fit beside each other; below them each has a line."""

TOPIC_KEYS, TWO_COLUMNS_FROM, LOW_PAGE = 15, 76, 20
"""Cells of the keys of such a line, and of a page from which it has two columns; lines of a page at 80x24."""

WIDE_FROM = 2 * TWO_COLUMNS_FROM
"""Cells of a page from which the lines of all keys have two columns, or three where two are too long, and
nothing is said twice."""

RUN_HINT = "Enter runs a key"


class HelpView(View):
    """All keys by topic on one page; below it a line per key, those of the page it was asked on first."""

    name = "help"
    answers = "what the keys do"
    goes_back = True
    left_by_its_key = True

    def __init__(self, views: Views) -> None:
        """`views`: those whose keys it explains."""
        super().__init__()
        self._views = views

    def own_keys(self) -> tuple[ScreenKey, ...]:
        """The key that searches the text."""
        return (SEARCH_KEY,)

    def open_chosen(self, screen: Screen) -> None:
        """Enter: do what the key of the line that was searched for does; without one, offer all of them by
        name."""
        action = screen.place.scroll.action
        if isinstance(action, Action):
            screen.act(action)
        else:
            screen.open_view(screen.place.before)
            screen.act(Do.PALETTE())

    def run_key(self, screen: Screen, key: ScreenKey) -> None:
        """Do what a key does on the page that the help was asked on."""
        screen.open_view(screen.place.before)
        screen.act(key.action)

    def on_open(self, screen: Screen) -> None:
        """Open the page at its first line."""
        screen.place.scrolls[self.name] = Scroll()

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """The page from the line to which it was scrolled."""
        room = height - 1
        if width >= WIDE_FROM:
            body = self._in_columns(scene, width, room)
        else:
            body = [*self._summary(scene, width, room), *chain(*self._blocks(scene, width))]
        lines, scroll = draw_text(scene, body, room)
        hidden = count_below(scroll, body, room)
        marked = body[scroll.hit] if scroll.hit is not None and scroll.hit < len(body) else None
        hint = RUN_HINT if width >= TWO_COLUMNS_FROM else ""
        words = " · ".join(filter(None, (hint, f"{counted(hidden, 'line')} below" if hidden else "")))
        action = None if marked is None else _find_action(marked, scene.place.searched)
        scroll = replace(scroll, action=action)
        return Page(
            [draw_rule(width, scene.place.name_way("keys", width), words), *lines], PageLayout(scroll)
        )

    def _in_columns(self, scene: Scene, width: int, height: int) -> list[Line]:
        """All lines in two columns; in three, where two are longer than the page."""
        left, right = _share_out(self._blocks(scene, width // 2 - 2))
        if max(len(left), len(right)) <= height:
            return side_by_side(left, right, width // 2)
        cells = width // 3
        flow = list(chain(*self._blocks(scene, cells - 1, briefly=True)))
        high = _find_height(flow)
        first, second, third = _flow_into(flow, high)
        return side_by_side(first, side_by_side(second, third, cells), cells)

    def _summary(self, scene: Scene, width: int, height: int) -> list[Line]:
        """Topics in two columns, and blank lines up to the end of the first page; none on a narrow one."""
        if width < TWO_COLUMNS_FROM:
            return []
        view = self._views[scene.place.before]
        own = [_draw_short_key(PAIRS.get(key.shown, key.shown), key.short) for key in view.keys if key.short]
        blocks = [[Line(view.name, "strong"), *own]] if own else []
        for topic, keys in TOPICS:
            blocks.append([Line(topic, "strong"), *(_draw_short_key(*key) for key in keys)])
        columns = side_by_side(*_share_out(blocks), width // 2)
        # What follows begins on the next page of a low screen.
        return columns + [Line()] * max(1, height - len(columns) if height <= LOW_PAGE else 1)

    def _blocks(self, scene: Scene, width: int, *, briefly: bool = False) -> list[list[Line]]:
        """A line per key and word, below the title of its topic. `briefly`: keys that do the same share a
        line."""
        view = self._views[scene.place.before]
        elsewhere, blocks = self._keys_elsewhere(view), []
        if view.keys:
            answers = "" if briefly else f", {view.answers}"
            title = _draw_words(f"on the page before this: {view.name}{answers}", width)
            blocks.append([*title, *chain(*(self._draw_key(key, width) for key in view.keys))])
        shared = self._views.shared_keys
        everywhere = chain(*(self._draw_key(key, width) for key in (_merge(shared) if briefly else shared)))
        blocks.append([Line("everywhere", "dim"), *everywhere])
        in_recording = chain(*(self._draw_key(key, width) for key in RECORDING_KEYS))
        blocks.append([Line("in a recording", "dim"), *in_recording])
        if elsewhere and briefly:
            blocks += _draw_by_view(elsewhere, width)
        elif elsewhere:
            named = ((key, f" ({', '.join(sorted(names))})") for key, names in elsewhere.items())
            others = chain(*(_draw_key(key, width, where) for key, where in named))
            blocks.append([Line("on other pages", "dim"), *others])
        words = (_hang(Line(f"  {word}: ", "strong"), text, width, indent=4) for word, text in WORDS.items())
        blocks.append([Line("words", "dim"), *chain(*words)])
        silent = f"nothing arrives from a host that is {UNREACHABLE}; after 10 s it is lost"
        mouse = "the mouse chooses rows, titles to sort by, keys and the place in a recording"
        signs = [*_draw_signs(width), *_draw_words(silent, width), *_draw_words(mouse, width)]
        return [*blocks, [Line("signs of ranks and hosts", "dim"), *signs]]

    def _draw_key(self, key: ScreenKey, width: int) -> list[Line]:
        """Its lines, of which a click on the first one does what the key does."""
        first, *following = _draw_key(key, width)
        return [first.spot(0, first.width, Action(self.run_key, (key,))), *following]

    def _keys_elsewhere(self, view: View) -> dict[ScreenKey, list[str]]:
        """Keys of other views than this one, with the names of those views."""
        names: dict[ScreenKey, list[str]] = {}
        for explained in self._views:
            for key in explained.keys:
                if key not in view.keys:
                    names.setdefault(key, []).append(explained.name)
        return names


def _find_action(line: Line, searched: str) -> object:
    """What a click on the first match in a line does that lies in the cells of a key; None: there is none."""
    pattern, text = highlight_pattern(searched), str(line)
    if pattern is None:
        return None
    cells = [text_width(text[: hit.start()]) for hit in pattern.finditer(text) if hit[0]]
    spots = (spot for cell in cells for spot in line.spots if spot[0] <= cell < spot[1])
    return next((action for _, _, action in spots), None)


def _share_out(blocks: list[list[Line]]) -> tuple[list[Line], list[Line]]:
    """The lines of two columns, in order and as equal as whole blocks allow."""
    splits = (
        (list(chain(*blocks[:n_left])), list(chain(*blocks[n_left:]))) for n_left in range(len(blocks) + 1)
    )
    return min(splits, key=lambda columns: max(map(len, columns)))


def _merge(keys: Sequence[ScreenKey]) -> list[ScreenKey]:
    """The keys, those that do the same as one, `Up k`, where both names have room."""
    merged: dict[tuple[Action, str], ScreenKey] = {}
    for key in keys:
        first = merged.get((key.action, ""))
        shown = key.shown if first is None else f"{first.shown} {key.shown.replace('Ctrl ', '^')}"
        if len(shown) < KEY_WIDTH:
            merged[key.action, ""] = key if first is None else replace(first, shown=shown)
        else:
            merged[key.action, key.shown] = key
    return list(merged.values())


def _draw_by_view(elsewhere: dict[ScreenKey, list[str]], width: int) -> list[list[Line]]:
    """The keys of other pages below the names of these pages."""
    by_names: dict[str, list[Line]] = {}
    for key, names in elsewhere.items():
        title = f"on the page{'s' * (len(names) > 1)} {', '.join(sorted(names))}"
        by_names.setdefault(title, [Line(title, "dim")]).extend(_draw_key(key, width))
    return list(by_names.values())


def _find_height(lines: list[Line]) -> int:
    """The least height of three columns in which all lines have room."""
    return next(high for high in range(-(-len(lines) // 3), len(lines) + 1) if _flow_into(lines, high)[-1:])


def _flow_into(lines: list[Line], height: int) -> list[list[Line]]:
    """Three columns of at most `height` lines; empty where they do not suffice. No column begins with the
    further lines of a key or a word, or ends with a title."""
    columns: list[list[Line]] = []
    begin = 0
    for _ in range(3):
        end = min(begin + height, len(lines))
        while begin < end < len(lines) and (_goes_on(lines[end]) or not _goes_on(lines[end - 1], 2)):
            end -= 1
        columns.append(lines[begin:end])
        begin = end
    return columns if begin == len(lines) else []


def _goes_on(line: Line, cells: int = 4) -> bool:
    """Whether a line is indented by at least so many cells."""
    return str(line).startswith(" " * cells)


def _draw_signs(width: int) -> list[Line]:
    lines = [Line(" ")]
    for state in (*get_args(RankStatus), "ended"):
        sign, role = of_state(state)
        if lines[-1].width + text_width(f" {sign} {state} ") > width:
            lines.append(Line(" "))
        lines[-1].add(f" {sign}", role).add(f" {state} ")
    return lines


def _draw_words(text: str, width: int) -> list[Line]:
    return [Line(row, "dim") for row in wrap_lines(text, width)]


def _draw_short_key(keys: str, text: str) -> Line:
    return Line(f"  {fit_text(keys, TOPIC_KEYS)}", "accent").add(text)


def _draw_key(key: ScreenKey, width: int, where: str = "") -> list[Line]:
    return _hang(Line(f"  {fit_text(key.shown, KEY_WIDTH)}", "accent"), key.help + where, width)


def _hang(head: Line, text: str, width: int, indent: int = 0) -> list[Line]:
    """A text after what it explains; its further lines begin below it, or `indent` cells from the left."""
    first, *others = wrap_lines(text, max(1, width - head.width)) or [""]
    indent = indent or head.width
    rest = wrap_lines(" ".join(others), max(1, width - indent))
    return [head.add(first), *(Line(" " * indent).add(row) for row in rest)]
