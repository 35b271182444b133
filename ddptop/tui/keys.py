"""What a key does, and the keys that mean the same on every page; a view declares its own (`tui/view.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias


class Do(Enum):
    """What can be done on every page: the method `action_VALUE` of the application."""

    VIEW = "view"
    HELP = "help"
    FIGURES = "figures"
    NEXT_VIEW = "next_view"
    OPEN = "open"
    WHY = "why"
    LEAVE = "leave"
    COMPARE_RUNS = "compare_runs"
    PICK = "pick"
    SWITCH = "switch"
    PALETTE = "palette"
    RUN_PALETTE = "run_palette"
    RANK = "rank"
    MOVE = "move"
    PAGE = "page"
    SIDEWAYS = "sideways"
    TO_END = "to_end"
    FILTER = "filter"
    SEARCH = "search"
    MATCH = "match"
    SORT = "sort"
    SORT_BY = "sort_by"
    INVERT = "invert"
    FOLLOW = "follow"
    COMPARE = "compare"
    COMPARE_WITH = "compare_with"
    PAUSE = "pause"
    STEP = "step"
    MARK = "mark"
    FASTER = "faster"
    SCRUB = "scrub"
    GO = "go"
    SAVE = "save"
    COPY = "copy"
    THEME = "theme"
    SETTING = "setting"
    FINISH = "finish"

    def __call__(self, *arguments: object) -> Action:
        """This, with arguments for the method."""
        return Action(self, arguments)


ViewMethod: TypeAlias = Callable[..., object]
"""A method of a view: it is called with the screen, then with the action's arguments."""


class Action(NamedTuple):
    """What is to be done, and its arguments."""

    do: Do | ViewMethod
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ScreenKey:
    """What a key does. `keys` is Textual's name, `shown` the label."""

    keys: str
    shown: str
    action: Action
    short: str
    """For the key line; empty: only in the help."""
    help: str


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """One line of the palette."""

    name: str
    help: str
    key: str
    """The key that does the same; may be empty."""
    action: Action


def view_key(
    keys: str, shown: str, method: ViewMethod, short: str, help_text: str, *arguments: Any
) -> ScreenKey:
    """A key that calls a method of a view."""
    return ScreenKey(keys, shown, Action(method, arguments), short, help_text)


SEARCH_KEY = ScreenKey("slash", "/", Do.SEARCH(), "search", "search the page")
"""On pages of text; in lists `/` filters."""

RECORDING_KEYS = (
    ScreenKey("left_square_bracket", "[", Do.STEP(-1), "", "one step back"),
    ScreenKey("right_square_bracket", "]", Do.STEP(1), "step", "one step on"),
    ScreenKey("left_parenthesis", "(", Do.STEP(-10), "", "ten steps back"),
    ScreenKey("right_parenthesis", ")", Do.STEP(10), "", "ten steps on"),
    ScreenKey("left_curly_bracket", "{", Do.MARK(-1), "", "to the previous event"),
    ScreenKey("right_curly_bracket", "}", Do.MARK(1), "event", "to the next event"),
    ScreenKey("plus", "+", Do.FASTER(1), "", "play at twice the speed; past 64x, as fast as possible"),
    ScreenKey("minus", "-", Do.FASTER(-1), "speed", "play at half the speed, down to 0.25x"),
    ScreenKey("g", "g", Do.GO(), "go to", "go to a step, a time or a share such as 50%"),
)
"""Only of use where a recording is played."""

COMMON_KEYS = (
    ScreenKey("enter", "Enter", Do.OPEN(), "", "open the rank, the host, the subject of an event, the run"),
    ScreenKey(
        "w", "w", Do.WHY(), "why", "why: the page of the rank, or of the stall, that the verdict is about"
    ),
    ScreenKey("escape", "Esc", Do.LEAVE(), "", "back; closes a prompt, clears the filter"),
    ScreenKey("S", "S", Do.VIEW("start"), "", "the start: how far each rank has come to its first step"),
    ScreenKey("up", "Up", Do.MOVE(-1), "", "up"),
    ScreenKey("down", "Down", Do.MOVE(1), "", "down"),
    ScreenKey("k", "k", Do.MOVE(-1), "", "up"),
    ScreenKey("j", "j", Do.MOVE(1), "", "down"),
    ScreenKey("pageup", "PgUp", Do.PAGE(-1), "", "a page up"),
    ScreenKey("pagedown", "PgDn", Do.PAGE(1), "", "a page down"),
    ScreenKey("left", "Left", Do.SIDEWAYS(-1), "", "the previous view, or rank"),
    ScreenKey("right", "Right", Do.SIDEWAYS(1), "", "the next view, or rank"),
    ScreenKey("home", "Home", Do.TO_END(0), "", "top; in a recording, its start"),
    ScreenKey("end", "End", Do.TO_END(1), "", "bottom; in a recording, its end"),
    ScreenKey("g", "g", Do.TO_END(0), "", "top; in a recording, go to a step"),
    ScreenKey("G", "G", Do.TO_END(1), "", "bottom; in a recording, its end"),
    ScreenKey("tab", "Tab", Do.NEXT_VIEW(1), "", "the next view"),
    ScreenKey("shift+tab", "S-Tab", Do.NEXT_VIEW(-1), "", "the previous view"),
    ScreenKey("slash", "/", Do.FILTER(), "filter", "filter: 3, 8-15, node1, !live, /gpu[01]$/"),
    ScreenKey("n", "n", Do.MATCH(1), "", "the next match of the filter or search"),
    ScreenKey("N", "N", Do.MATCH(-1), "", "the previous match"),
    ScreenKey("less_than_sign", "<", Do.SORT(-1), "", "sort by the column to the left"),
    ScreenKey("greater_than_sign", ">", Do.SORT(1), "", "sort by the column to the right"),
    ScreenKey("I", "I", Do.INVERT(), "", "reverse the order"),
    ScreenKey("F", "F", Do.FOLLOW(), "follow", "follow the rank: always chosen and in view"),
    ScreenKey("c", "c", Do.COMPARE(), "compare", "mark a rank; on another one: compare the two"),
    ScreenKey("s", "s", Do.SAVE(), "save", "save the screen as text and SVG"),
    ScreenKey("y", "y", Do.COPY(), "", "copy the screen's text to the clipboard"),
    ScreenKey("r", "r", Do.PICK(), "runs", "the runs and recordings to choose from"),
    ScreenKey("o", "o", Do.COMPARE_RUNS(), "", "the two recordings side by side, where two were opened"),
    ScreenKey("colon", ":", Do.PALETTE(), "all", "the palette: any view, rank, theme, run, key by name"),
    ScreenKey("ctrl+p", "Ctrl P", Do.PALETTE(), "", "the same"),
    ScreenKey("space", "space", Do.PAUSE(), "pause", "freeze the screen, or pause the recording"),
    ScreenKey("question_mark", "?", Do.HELP(), "help", "this page"),
    ScreenKey(
        "f1", "F1", Do.FIGURES(), "", "what each figure of the page means: formula, unit, bound, source"
    ),
    ScreenKey("f2", "F2", Do.FIGURES(), "", "choose the columns: the same page"),
    ScreenKey("q", "q", Do.FINISH(), "quit", "quit; training continues"),
    ScreenKey("f10", "F10", Do.FINISH(), "", "quit; training continues"),
)
"""Keys that mean the same on every page, unless the page or a recording has a meaning of its own for them."""

PAIRS = {"Z": "z Z", ".": ", .", "]": "[ ]", "}": "{ }", "-": "+ -"}
"""How the key line shows two keys that belong together."""
