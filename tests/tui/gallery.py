"""`python -m tests.tui.gallery FOLDER`: every view in every state, size and set of colours, as pages of SVG.

A page is an HTML file that loads nothing, `SIZE-VIEW-COLOURS.html`: look at it in a browser, or as a picture
(`chromium --headless --screenshot`). The frames are made up, so that a change of the screen can be looked at
without a training.
"""

from __future__ import annotations

import argparse
import html
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from rich.style import Style

from ddptop.frames.frame import Frame
from ddptop.frames.history import RankMinutes
from ddptop.render.line import Ground, Line, Role
from ddptop.render.text import ASCII
from ddptop.tui.svg import draw_svg
from ddptop.tui.theme import THEMES, Palette
from tests.tui.drive import Sketch
from tests.tui.fake import (
    CASES,
    evaluating,
    finished,
    last_minutes,
    live,
    loading_data,
    replay_from_the_start,
    saving,
    straggler,
    with_ledger,
    with_steps_left_out,
    without_ddp,
)
from tests.tui.fake_hosts import placed, silent, slow_rank
from tests.tui.fake_start import held_up, on_their_way
from tests.tui.fake_views import WantedSource
from tests.tui.troubles import died, missing

SIZES = {"80x24": (80, 24), "160x50": (160, 50), "67x19": (67, 19), "50x24": (50, 24), "30x6": (30, 6)}

VIEWS_BY_NUMBER = ("overview", "timeline", "buckets", "heat", "events", "run", "stall", "hosts", "bill")

PAGES: Mapping[str, tuple[str, ...]] = {
    **{view: (str(at),) for at, view in enumerate(VIEWS_BY_NUMBER, 1)},
    "why": ("w",), "rank": ("enter",), "compare": ("c", "down", "c"), "help": ("question_mark",),
    "figures": ("f1",), "start": ("S",),
}  # fmt: skip
"""The keys that lead to a view."""

WORLDS: Mapping[str, Callable[[], Frame]] = {
    **{
        name: partial(lambda make: placed(make()), make)
        for name, make in {
            "healthy": live, "loads data": loading_data, "straggler": straggler,
            "two stragglers": CASES["several"], "stall": missing,
            "with a bill": saving, "dead": died, "evaluating": evaluating, "finished": finished,
            "waiting": CASES["waiting"], "replay": replay_from_the_start, "2 ranks": lambda: straggler(2),
            "8 ranks": lambda: straggler(8), "64 ranks": lambda: straggler(64), "4,096 ranks": CASES["many"],
            "start held up": held_up, "start of 64": lambda: held_up(64), "start": on_their_way,
            "without DDP": without_ddp, "steps left out": with_steps_left_out,
        }.items()
    },
    "3 hosts": lambda: with_ledger(slow_rank(3, 4)), "a silent host": lambda: with_ledger(silent(3, 4)),
}  # fmt: skip


class WithoutColour(Palette):
    """NO_COLOR on a dark terminal: its own colours for text, dimmed text and text in bold."""

    def __init__(self) -> None:
        super().__init__(THEMES[0], plain=True)

    def style(self, role: Role, ground: Ground = "") -> Style:
        """As a terminal without colours shows it."""
        return self._shown(super().style(role, ground))

    def fill(self, ground: Ground) -> Style:
        """The same."""
        return self._shown(super().fill(ground))

    @staticmethod
    def _shown(style: Style) -> Style:
        letters, ground = "#8a8a8a" if style.dim else "#ffffff" if style.bold else "#cfcfcf", "#101010"
        if style.reverse:
            letters, ground = ground, letters
        return Style(color=letters, bgcolor=ground, bold=style.bold, underline=style.underline)


COLOURS: Mapping[str, Callable[[], Palette]] = {
    **{theme.name.removeprefix("ddptop-"): (lambda theme=theme: Palette(theme)) for theme in THEMES},
    "no-color": WithoutColour,
    "ascii": WithoutColour,
}


class StepsSource(WantedSource):
    """With the single steps of the rank in focus as the frame has its newest one."""

    def focus(self, rank: int | None) -> None:
        super().focus(rank)
        if self.frame is None or self.frame.focus is None:
            return
        ranks, steps, rank = self.frame.ranks, self.frame.focus, self.frame.focus.rank
        wobble = 0.3 * np.sin(steps.step / 3)
        parts = {
            "data_ms": ranks.data_ms[rank] + wobble,
            "forward_ms": ranks.forward_ms[rank] - wobble,
            "backward_ms": ranks.backward_ms[rank],
            "optimizer_ms": ranks.optimizer_ms[rank],
            "other_ms": ranks.other_ms[rank],
            "step_ms": ranks.step_ms[rank],
            "own_ms": ranks.own_ms[rank],
            "excess_ms": ranks.excess_ms[rank],
            "lateness_ms": ranks.lateness_ms[rank],
        }
        columns = {name: np.broadcast_to(column, len(steps.step)) for name, column in parts.items()}
        detailed = np.isfinite(steps.wait_ms)
        steps = replace(
            steps,
            step=steps.step - steps.step[-1] + float(self.frame.group.step or 0),
            loss=steps.loss - steps.loss[-1] + ranks.loss[rank],
            wait_ms=np.where(detailed, ranks.exposed_wait_ms[rank], np.nan),
            transfer_ms=np.where(detailed, ranks.exposed_comm_ms[rank] - ranks.exposed_wait_ms[rank], np.nan),
            minutes=_excess_so_far(self.frame, rank) if self.frame.buckets else None,
            **columns,
        )
        self.frame = replace(self.frame, focus=steps)


def _excess_so_far(frame: Frame, rank: int) -> RankMinutes:
    """Of the rank over the last minutes of the run: large at the end if it is flagged."""
    late = frame.straggler
    minutes = last_minutes(int(late is not None and rank in (late.rank, *late.ranks)))
    time_s = minutes.time_s + frame.run.elapsed_s - minutes.time_s[-1]
    parts = (column[time_s > 0] for column in (time_s, minutes.mean_ms, minutes.largest_ms))
    return RankMinutes(*parts)


@cache
def frame_of(world: str) -> Frame:
    """The frame of a state, made once: that of 4,096 ranks takes 0.7 s."""
    return WORLDS[world]()


@cache
def opened(world: str, size: str, ascii_only: bool) -> Sketch:
    """The overview of a state, with which each page begins, with the parts of the frame that it asks for."""
    overview = Sketch(StepsSource(frame_of(world)), SIZES[size], ascii_only)
    overview.repaint()
    return overview


def lines_of(world: str, view: str, size: str, ascii_only: bool = False) -> list[Line]:
    """The picture of a view."""
    like = opened(world, size, ascii_only)
    assert like.shown is not None
    person = Sketch(StepsSource(like.shown), SIZES[size], ascii_only, like)
    person.press(*PAGES[view])
    if view == "rank" and person.view.name == "overview":  # it has unfolded a host
        person.press("down", "enter")
    if view == "compare" and person.view.name == "overview":  # the host had marked its first rank
        person.press("c", "down", "c")
    if view == "rank" and person.view.name == "overview":  # it has folded the first one
        person.press("up", "enter", "down", "enter")
    return [line.mapped(lambda text: text.translate(ASCII)) if ascii_only else line for line in person.lines]


def page(view: str, size: str, colours: str) -> str:
    """One view in all states."""
    palette, columns = COLOURS[colours](), SIZES[size][0]
    pictures = (
        f"<figure><figcaption>{html.escape(world)}</figcaption>"
        f"{draw_svg(lines_of(world, view, size, colours == 'ascii'), columns, palette)}</figure>"
        for world in WORLDS
    )
    style = "body{background:#444;color:#f8f;font:12px monospace}figure{display:inline-block;margin:2px}"
    return f'<meta charset="utf-8"><style>{style}</style>\n' + "\n".join(pictures)


def names() -> Iterator[tuple[str, str, str]]:
    """View, size and colours of every page; other colours than the usual ones at 80 x 24 only."""
    for view in PAGES:
        yield from ((view, size, "dark") for size in SIZES)
        yield from ((view, "80x24", colours) for colours in COLOURS if colours != "dark")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for view, size, colours in names():
        (folder / f"{size}-{view}-{colours}.html").write_text(page(view, size, colours), encoding="utf-8")
