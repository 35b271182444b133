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
class Key:
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


def view_key(keys: str, shown: str, method: ViewMethod, short: str, help_text: str, *arguments: Any) -> Key:
    """A key that calls a method of a view."""
    return Key(keys, shown, Action(method, arguments), short, help_text)


SEARCH_KEY = Key("slash", "/", Do.SEARCH(), "search", "search the page")
"""On pages of text; in lists `/` filters."""

RECORDING_KEYS = (
    Key("left_square_bracket", "[", Do.STEP(-1), "", "one step back"),
    Key("right_square_bracket", "]", Do.STEP(1), "step", "one step on"),
    Key("left_parenthesis", "(", Do.STEP(-10), "", "ten steps back"),
    Key("right_parenthesis", ")", Do.STEP(10), "", "ten steps on"),
    Key("left_curly_bracket", "{", Do.MARK(-1), "", "to the previous event"),
    Key("right_curly_bracket", "}", Do.MARK(1), "event", "to the next event"),
    Key("plus", "+", Do.FASTER(1), "", "play at twice the speed; past 64x, as fast as possible"),
    Key("minus", "-", Do.FASTER(-1), "speed", "play at half the speed, down to 0.25x"),
    Key("g", "g", Do.GO(), "go to", "go to a step, a time or a share such as 50%"),
)
"""Only of use where a recording is played."""

COMMON_KEYS = (
    Key("enter", "Enter", Do.OPEN(), "", "open the rank, the host, the subject of an event, the run"),
    Key("w", "w", Do.WHY(), "why", "why: the page of the rank, or of the stall, that the verdict is about"),
    Key("escape", "Esc", Do.LEAVE(), "", "back; closes a prompt, clears the filter"),
    Key("up", "↑", Do.MOVE(-1), "", "up"),
    Key("down", "↓", Do.MOVE(1), "", "down"),
    Key("k", "k", Do.MOVE(-1), "", "up"),
    Key("j", "j", Do.MOVE(1), "", "down"),
    Key("pageup", "PgUp", Do.PAGE(-1), "", "a page up"),
    Key("pagedown", "PgDn", Do.PAGE(1), "", "a page down"),
    Key("left", "←", Do.SIDEWAYS(-1), "", "the previous view, or rank"),
    Key("right", "→", Do.SIDEWAYS(1), "", "the next view, or rank"),
    Key("home", "Home", Do.TO_END(0), "", "top; in a recording, its start"),
    Key("end", "End", Do.TO_END(1), "", "bottom; in a recording, its end"),
    Key("g", "g", Do.TO_END(0), "", "top; in a recording, go to a step"),
    Key("G", "G", Do.TO_END(1), "", "bottom; in a recording, its end"),
    Key("tab", "Tab", Do.NEXT_VIEW(1), "", "the next view"),
    Key("shift+tab", "S-Tab", Do.NEXT_VIEW(-1), "", "the previous view"),
    Key("slash", "/", Do.FILTER(), "filter", "filter: 3, 8-15, node1, !live, /gpu[01]$/"),
    Key("n", "n", Do.MATCH(1), "", "the next match of the filter or search"),
    Key("N", "N", Do.MATCH(-1), "", "the previous match"),
    Key("less_than_sign", "<", Do.SORT(-1), "", "sort by the column to the left"),
    Key("greater_than_sign", ">", Do.SORT(1), "", "sort by the column to the right"),
    Key("I", "I", Do.INVERT(), "", "reverse the order"),
    Key("F", "F", Do.FOLLOW(), "follow", "follow the rank: always chosen and in view"),
    Key("c", "c", Do.COMPARE(), "compare", "mark a rank; on another one: compare the two"),
    Key("s", "s", Do.SAVE(), "save", "save the screen as text and SVG"),
    Key("y", "y", Do.COPY(), "", "copy the screen's text to the clipboard"),
    Key("r", "r", Do.PICK(), "runs", "the runs and recordings to choose from"),
    Key("o", "o", Do.COMPARE_RUNS(), "", "the two recordings side by side, where two were opened"),
    Key("colon", ":", Do.PALETTE(), "all", "the palette: any view, rank, theme, run, key by name"),
    Key("ctrl+p", "Ctrl P", Do.PALETTE(), "", "the same"),
    Key("space", "space", Do.PAUSE(), "pause", "freeze the screen, or pause the recording"),
    Key("question_mark", "?", Do.HELP(), "help", "this page"),
    Key("f1", "F1", Do.FIGURES(), "", "what each figure of the page means: formula, unit, bound, source"),
    Key("f2", "F2", Do.FIGURES(), "", "choose the columns: the same page"),
    Key("q", "q", Do.FINISH(), "quit", "quit; training continues"),
    Key("f10", "F10", Do.FINISH(), "", "quit; training continues"),
)
"""Keys that mean the same on every page, unless the page or a recording has a meaning of its own for them."""

PAIRS = {"Z": "z Z", ".": ", .", "]": "[ ]", "}": "{ }", "-": "+ -"}
"""How the key line shows two keys that belong together."""
