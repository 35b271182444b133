"""The one key table: bindings, help, palette and the key line at the foot are all made from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias, get_args

ViewName: TypeAlias = Literal[
    "overview", "timeline", "buckets", "heat", "events", "run", "stall", "hosts",
    "rank", "compare", "picker", "runs", "help", "columns",
]  # fmt: skip

VIEWS: tuple[ViewName, ...] = get_args(ViewName)[:8]
"""Those with a number key, in its order."""

ANSWERS: dict[ViewName, str] = {
    "overview": "is the run healthy, how fast, who is slow and why",
    "timeline": "one step: a lane per rank, each all-reduce: wait, transfer",
    "buckets": "size, time and bandwidth of each bucket, who comes last",
    "heat": "all ranks over the last steps, by any metric",
    "events": "what is wrong now, and what happened when",
    "run": "options, versions, hosts, clocks, records lost, overhead",
    "stall": "a stall or a death: who, where, the stacks",
    "hosts": "every host: its link, clock, load and ranks, the worst first",
    "rank": "one rank: its phases against the group's, its single steps",
    "compare": "two ranks side by side, with their differences",
    "picker": "all runs and recordings of this machine",
    "runs": "two recordings side by side",
    "help": "what the keys do",
    "columns": "what each figure of the page means, and which columns are shown",
}
"""What a view shows."""

TEXTS: tuple[ViewName, ...] = ("help", "run", "stall")
"""Pages of text: there `/` searches, where it filters in the lists."""


class Do(Enum):
    """What a key, a click or a line of the palette can do: the method `action_VALUE` of the application."""

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
    THREADS = "threads"
    LOG = "log"
    CROSS = "cross"
    CROSS_BY = "cross_by"
    ZOOM = "zoom"
    FIT = "fit"
    PAN = "pan"
    PICK_STEP = "pick_step"
    NEWEST = "newest"
    ALL_LANES = "all_lanes"
    CELL = "cell"
    METRIC = "metric"
    CHOOSE_METRIC = "choose_metric"
    SHAPE = "shape"
    FILTER = "filter"
    SEARCH = "search"
    MATCH = "match"
    FOLD = "fold"
    FOLD_ALL = "fold_all"
    GROUP = "group"
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


class Action(NamedTuple):
    """What is to be done, and its arguments."""

    do: Do
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Key:
    """What a key does. `keys` are Textual's names, `shown` is their label."""

    keys: str
    shown: str
    action: Action
    short: str
    """For the key line; empty: only in the help."""
    help: str
    views: tuple[ViewName, ...] = ()
    """Views in which it means this; empty: wherever it means nothing else."""
    replay: bool = False
    """Only of use where a recording is played."""
    hosts: bool = False
    """Only of use where the run has several hosts."""


_Row: TypeAlias = "tuple[str, str, Action, str, str]"

_LANES: tuple[_Row, ...] = (
    ("left", "←", Do.PAN(-1), "", "move left by a quarter of the width"),
    ("right", "→", Do.PAN(1), "", "move right by a quarter of the width"),
    ("z", "z", Do.ZOOM(1), "", "zoom in"),
    ("Z", "Z", Do.ZOOM(-1), "zoom", "zoom out"),
    ("0", "0", Do.FIT(), "", "the whole step"),
    ("comma", ",", Do.PICK_STEP(-1), "", "the previous step that is kept in full"),
    ("full_stop", ".", Do.PICK_STEP(1), "pick", "the next step; f goes to the newest"),
    ("f", "f", Do.NEWEST(), "", "follow the newest step again"),
    ("t", "t", Do.ALL_LANES(), "all", "the all-reduces of every lane, or of one"),
)

_CELLS: tuple[_Row, ...] = (
    ("left", "←", Do.CELL(-1), "", "the previous cell"),
    ("right", "→", Do.CELL(1), "", "the next cell"),
    ("m", "m", Do.METRIC(1), "metric", "the next metric"),
    ("M", "M", Do.METRIC(-1), "", "the previous metric"),
    ("v", "v", Do.SHAPE(), "shape", "ranks by steps, or hosts by local ranks"),
)

_CHARTS: tuple[_Row, ...] = (
    ("l", "l", Do.LOG(), "log", "loss axis: log, linear, automatic"),
    ("x", "x", Do.CROSS(), "crosshair", "crosshair on the charts: arrows move it"),
    ("shift+left", "Shift ←", Do.CROSS_BY(-10), "", "crosshair ten columns to the left"),
    ("shift+right", "Shift →", Do.CROSS_BY(10), "", "crosshair ten columns to the right"),
)

_HOSTS: tuple[_Row, ...] = (
    ("z", "z", Do.FOLD(), "", "fold or unfold the host: its worst rank, or all its ranks"),
    ("Z", "Z", Do.FOLD_ALL(), "fold", "fold or unfold all hosts"),
    ("v", "v", Do.GROUP(), "", "group the ranks by host, or do not"),
)

_PLAYING: tuple[_Row, ...] = (
    ("left_square_bracket", "[", Do.STEP(-1), "", "one step back"),
    ("right_square_bracket", "]", Do.STEP(1), "step", "one step on"),
    ("left_parenthesis", "(", Do.STEP(-10), "", "ten steps back"),
    ("right_parenthesis", ")", Do.STEP(10), "", "ten steps on"),
    ("left_curly_bracket", "{", Do.MARK(-1), "", "to the previous event"),
    ("right_curly_bracket", "}", Do.MARK(1), "event", "to the next event"),
    ("plus", "+", Do.FASTER(1), "", "play at twice the speed; past 64x, as fast as possible"),
    ("minus", "-", Do.FASTER(-1), "speed", "play at half the speed, down to 0.25x"),
    ("g", "g", Do.GO(), "go to", "go to a step, a time or a share such as 50%"),
)

KEYS = (
    *(
        Key(str(at), str(at), Do.VIEW(name), name, f"{name}: {ANSWERS[name]}")
        for at, name in enumerate(VIEWS, 1)
    ),
    Key("enter", "Enter", Do.OPEN(), "", "open the rank, the host, the subject of an event, the run"),
    Key("w", "w", Do.WHY(), "why", "why: the page of the rank, or of the stall, that the verdict is about"),
    Key("escape", "Esc", Do.LEAVE(), "", "back; closes a prompt, clears the filter"),
    *(Key(*row, views=("timeline",)) for row in _LANES),
    *(Key(*row, views=("heat",)) for row in _CELLS),
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
    Key("slash", "/", Do.SEARCH(), "search", "search the page", views=TEXTS),
    Key("slash", "/", Do.FILTER(), "filter", "filter: 3, 8-15, node1, !live, /gpu[01]$/"),
    Key("n", "n", Do.MATCH(1), "", "the next match of the filter or search"),
    Key("N", "N", Do.MATCH(-1), "", "the previous match"),
    Key("less_than_sign", "<", Do.SORT(-1), "", "sort by the column to the left"),
    Key("greater_than_sign", ">", Do.SORT(1), "", "sort by the column to the right"),
    Key("I", "I", Do.INVERT(), "", "reverse the order"),
    Key("F", "F", Do.FOLLOW(), "follow", "follow the rank: always chosen and in view"),
    Key("c", "c", Do.COMPARE(), "compare", "mark a rank; on another one: compare the two"),
    *(Key(*row, views=("overview",)) for row in _CHARTS),
    *(Key(*row, views=("overview",), hosts=True) for row in _HOSTS),
    Key("s", "s", Do.SAVE(), "save", "save the screen as text and SVG"),
    Key("y", "y", Do.COPY(), "", "copy the screen's text to the clipboard"),
    Key("t", "t", Do.THREADS(), "threads", "all threads, every call", views=("stall",)),
    Key("r", "r", Do.PICK(), "runs", "the runs and recordings to choose from"),
    Key("o", "o", Do.COMPARE_RUNS(), "", "the two recordings side by side, where two were opened"),
    Key("colon", ":", Do.PALETTE(), "all", "the palette: any view, rank, theme, run, key by name"),
    Key("ctrl+p", "Ctrl P", Do.PALETTE(), "", "the same"),
    Key("space", "space", Do.PAUSE(), "pause", "freeze the screen, or pause the recording"),
    *(Key(*row, replay=True) for row in _PLAYING),
    Key("question_mark", "?", Do.HELP(), "help", "this page"),
    Key("f1", "F1", Do.FIGURES(), "", "what each figure of the page means: formula, unit, bound, source"),
    Key("f2", "F2", Do.FIGURES(), "", "choose the columns: the same page"),
    Key("q", "q", Do.FINISH(), "quit", "quit; training continues"),
    Key("f10", "F10", Do.FINISH(), "", "quit; training continues"),
)

PAIRS = {"Z": "z Z", ".": ", .", "]": "[ ]", "}": "{ }", "-": "+ -"}
"""How the key line shows two keys that belong together."""


def meaning(name: str, view: ViewName, replay: bool) -> Key | None:
    """What a key, by Textual's name, does in a view; None where it does nothing.

    `replay`: whether a recording is played. The view's own meaning comes first, then a recording's.
    """
    rows = [
        key
        for key in KEYS
        if key.keys == name and (view in key.views or not key.views) and (replay or not key.replay)
    ]
    return max(rows, key=lambda key: (bool(key.views), key.replay), default=None)
