"""The one key table: bindings, help, palette and the key line at the foot are all made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

ViewName: TypeAlias = Literal[
    "overview", "timeline", "buckets", "heat", "events", "run", "stall",
    "rank", "compare", "picker", "runs", "help",
]  # fmt: skip

VIEWS: tuple[ViewName, ...] = get_args(ViewName)[:7]
"""Those with a number key, in its order."""

ANSWERS: dict[ViewName, str] = {
    "overview": "is it well, how fast, who is slow and why",
    "timeline": "one step: a lane per rank, every all-reduce as wait and transfer",
    "buckets": "what is sent, how long it takes, at which bandwidth, who comes last",
    "heat": "all ranks over the last steps, by any figure",
    "events": "what is wrong now, and what happened when",
    "run": "options, versions, hosts, clocks, records lost, overhead",
    "stall": "a stall or a death: who, where, the stacks",
    "rank": "one rank: its phases against the group's, its single steps",
    "compare": "two ranks side by side, with their differences",
    "picker": "all runs and recordings of this machine",
    "runs": "two recordings side by side",
    "help": "what the keys do",
}
"""What a view tells a person."""

TEXTS: tuple[ViewName, ...] = ("help", "run", "stall")
"""Pages of text: there `/` searches, where it filters in the lists."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a key does. `keys` are Textual's names, `shown` is what stands on the keyboard."""

    keys: str
    shown: str
    action: str
    short: str
    """For the key line; empty: only in the help."""
    help: str
    views: tuple[ViewName, ...] = ()
    """Where it means this; empty: wherever it means nothing else."""
    replay: bool = False
    """Only of use where a recording is played."""


_Row: TypeAlias = "tuple[str, str, str, str, str]"

_LANES: tuple[_Row, ...] = (
    ("left", "←", "pan(-1)", "", "to the left, by a quarter of what is seen"),
    ("right", "→", "pan(1)", "", "to the right"),
    ("z", "z", "zoom(1)", "", "nearer"),
    ("Z", "Z", "zoom(-1)", "zoom", "farther"),
    ("0", "0", "fit", "", "the whole step"),
    ("comma", ",", "pick_step(-1)", "", "the step before, of those told in full"),
    ("full_stop", ".", "pick_step(1)", "pick", "the step after; f: the newest again"),
    ("f", "f", "newest", "", "follow the newest step again"),
    ("t", "t", "all_lanes", "all", "the all-reduces of every lane, or of one"),
)

_CELLS: tuple[_Row, ...] = (
    ("left", "←", "across(-1)", "", "the cell before"),
    ("right", "→", "across(1)", "", "the cell after"),
    ("m", "m", "figure(1)", "figure", "the next figure"),
    ("M", "M", "figure(-1)", "", "the figure before"),
    ("v", "v", "shape", "shape", "ranks by steps, or hosts by local ranks"),
)

_CHARTS: tuple[_Row, ...] = (
    ("l", "l", "log", "", "loss on a logarithmic axis, or not"),
    ("x", "x", "cross", "", "crosshair on the charts: arrows move it"),
    ("shift+left", "Shift ←", "cross_by(-10)", "", "crosshair ten columns to the left"),
    ("shift+right", "Shift →", "cross_by(10)", "", "crosshair ten columns to the right"),
)

_PLAYING: tuple[_Row, ...] = (
    ("left_square_bracket", "[", "step(-1)", "", "one step back"),
    ("right_square_bracket", "]", "step(1)", "step", "one step on"),
    ("left_parenthesis", "(", "step(-10)", "", "ten steps back"),
    ("right_parenthesis", ")", "step(10)", "", "ten steps on"),
    ("left_curly_bracket", "{", "mark(-1)", "", "to the event before"),
    ("right_curly_bracket", "}", "mark(1)", "event", "to the next event"),
    ("plus", "+", "faster(1)", "", "play at twice the speed; past 64x: as fast as it goes"),
    ("minus", "-", "faster(-1)", "speed", "play at half the speed, down to 0.25x"),
    ("g", "g", "go", "go to", "go to a step, a time or a share such as 50%"),
)

KEYS = (
    *(
        Key(str(at), str(at), f"view('{name}')", name, f"{name}: {ANSWERS[name]}")
        for at, name in enumerate(VIEWS, 1)
    ),
    Key("enter", "Enter", "open", "", "the rank, what an event is about, the run"),
    Key("escape", "Esc", "leave", "", "back; closes a prompt, clears the filter"),
    *(Key(*row, views=("timeline",)) for row in _LANES),
    *(Key(*row, views=("heat",)) for row in _CELLS),
    Key("up", "↑", "move(-1)", "", "up"),
    Key("down", "↓", "move(1)", "", "down"),
    Key("k", "k", "move(-1)", "", "up"),
    Key("j", "j", "move(1)", "", "down"),
    Key("pageup", "PgUp", "page(-1)", "", "a page up"),
    Key("pagedown", "PgDn", "page(1)", "", "a page down"),
    Key("left", "←", "aside(-1)", "", "the view, or the rank, before"),
    Key("right", "→", "aside(1)", "", "the view, or the rank, after"),
    Key("home", "Home", "end(0)", "", "top; of a recording: its start"),
    Key("end", "End", "end(1)", "", "bottom; of a recording: its end"),
    Key("g", "g", "end(0)", "", "top; in a recording: go to"),
    Key("G", "G", "end(1)", "", "bottom; of a recording: its end"),
    Key("tab", "Tab", "next_view(1)", "", "the next view"),
    Key("shift+tab", "S-Tab", "next_view(-1)", "", "the view before"),
    Key("slash", "/", "search", "search", "search the page", views=TEXTS),
    Key("slash", "/", "filter", "filter", "filter: 3, 8-15, node1, !live, /gpu[01]$/"),
    Key("n", "n", "match(1)", "", "the next match of the filter or search"),
    Key("N", "N", "match(-1)", "", "the match before"),
    Key("less_than_sign", "<", "sort(-1)", "", "sort by the column to the left"),
    Key("greater_than_sign", ">", "sort(1)", "", "sort by the column to the right"),
    Key("I", "I", "invert", "", "turn the order round"),
    Key("F", "F", "follow", "follow", "follow the rank: always chosen and in view"),
    Key("c", "c", "compare", "compare", "mark a rank; on another one: compare the two"),
    *(Key(*row, views=("overview",)) for row in _CHARTS),
    Key("s", "s", "save", "save", "save the screen as text and SVG"),
    Key("y", "y", "copy", "", "copy the screen's text to the clipboard"),
    Key("t", "t", "threads", "threads", "all threads, every call", views=("stall",)),
    Key("r", "r", "pick", "runs", "the runs and recordings to choose from"),
    Key("o", "o", "other", "", "the two recordings side by side, where two were opened"),
    Key("colon", ":", "palette", "all", "the palette: any view, rank, theme, run, key by name"),
    Key("ctrl+p", "Ctrl P", "palette", "", "the same"),
    Key("space", "space", "pause", "pause", "freeze the screen, or pause the recording"),
    *(Key(*row, replay=True) for row in _PLAYING),
    Key("question_mark", "?", "help", "help", "this page"),
    Key("f1", "F1", "help", "", "this page"),
    Key("q", "q", "finish", "quit", "leave; the training goes on"),
    Key("f10", "F10", "finish", "", "leave; the training goes on"),
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
