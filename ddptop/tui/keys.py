"""The one key table: bindings, help and the key line at the foot are all made from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """What a key does. `keys` are Textual's names, `shown` is what stands on the keyboard."""

    keys: str
    shown: str
    action: str
    short: str
    """For the key line; empty: only in the help."""
    help: str
    replay: bool = False
    """Only of use where a recording is played."""


KEYS = (
    Key("1", "1", "view('overview')", "overview", "the group: a row per rank, charts"),
    Key("2", "2", "view('buckets')", "buckets", "buckets: sizes, times, bandwidth"),
    Key("3", "3", "view('events')", "events", "what holds now and what happened"),
    Key("4", "4", "view('stall')", "stall", "a stall or a death: who, where, the stacks"),
    Key("enter", "Enter", "open", "", "the rank, or what an event is about"),
    Key("escape", "Esc", "leave", "", "back; closes a prompt, clears the filter"),
    Key("up", "↑", "move(-1)", "", "up"),
    Key("down", "↓", "move(1)", "", "down"),
    Key("pageup", "PgUp", "page(-1)", "", "a page up"),
    Key("pagedown", "PgDn", "page(1)", "", "a page down"),
    Key("left", "←", "aside(-1)", "", "the view, or the rank, before"),
    Key("right", "→", "aside(1)", "", "the view, or the rank, after"),
    Key("home", "Home", "end(0)", "", "top; of a recording: its start"),
    Key("end", "End", "end(1)", "", "bottom; of a recording: its end"),
    Key("slash", "/", "filter", "filter", "some ranks: 3, 8-15, a host, a state"),
    Key("less_than_sign", "<", "sort(-1)", "", "sort by the column to the left"),
    Key("greater_than_sign", ">", "sort(1)", "", "sort by the column to the right"),
    Key("s", "s", "save", "", "save the page of the stall as text"),
    Key("t", "t", "threads", "", "there: all threads, every call"),
    Key("space", "space", "pause", "pause", "hold the picture, or the recording"),
    Key("left_square_bracket", "[", "step(-1)", "", "one step back", replay=True),
    Key("right_square_bracket", "]", "step(1)", "step", "one step on", replay=True),
    Key("left_curly_bracket", "{", "mark(-1)", "", "to the event before", replay=True),
    Key("right_curly_bracket", "}", "mark(1)", "event", "to the next event", replay=True),
    Key("plus", "+", "faster(1)", "", "play at twice the speed, up to 64x", replay=True),
    Key("minus", "-", "faster(-1)", "speed", "play at half the speed, down to 0.25x", replay=True),
    Key("g", "g", "go", "go to", "go to a step, or a share such as 50%", replay=True),
    Key("question_mark", "?", "help", "help", "this page"),
    Key("q", "q", "quit", "quit", "leave; the training goes on"),
)

PAIRS = {"]": "[ ]", "}": "{ }", "-": "+ -"}
"""How the key line shows two keys that belong together."""
