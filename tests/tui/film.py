"""`python -m tests.tui.film [FILE]`: the moving picture of the README, made from a real run.

Four ranks train under `ddptop-run` (`filmed_training.py`). The real screen watches them without a terminal,
its lines are taken twice a second, and keys are pressed: a rank becomes slow, `w` shows why; a rank hangs,
`w` shows where. What lies between these scenes is cut out. The result is an SVG of shapes and letters that
moves by CSS: it is sharp at any size, loads nothing, and GitHub shows it. The figures are the machine's: make
it on one without other work, and look at each scene.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from ddptop.frames.frame import Frame
from ddptop.host.runs import RunFile, read_run_file
from ddptop.render.line import Line
from ddptop.sources.live import LiveSource
from ddptop.tui.app import DdptopApp
from ddptop.tui.lines_widget import LinesWidget
from ddptop.tui.svg import CELL_HEIGHT, CELL_WIDTH, FONTS, MARGIN, svg_row
from ddptop.tui.theme import THEMES, Palette
from tests.processes import DDPTOP_RUN, environment, started, until
from tests.tui import filmed_training as training

PICTURE = Path(__file__).parents[2] / "examples" / "pictures" / "ddptop.svg"
COLUMNS, ROWS = 80, 24
COMMAND = ("--standalone", "--nproc-per-node", "4", "train.py")
PERIOD_S = 0.5
"""Between two pictures of a scene."""
DEADLINE_S = 300.0
EVEN_STEPS = 60
"""So many steps have been made in the first scene: the ranks are slow at first."""
CAPTION_HEIGHT, CAPTION_SIZE = 46, 21
"""Pixels; the letters can be read on a telephone."""


@dataclass(frozen=True)
class Shot:
    """A picture of the screen, shown for some time below a caption."""

    lines: tuple[Line, ...]
    seconds: float
    caption: str
    key: str = ""
    """The key that was pressed before."""


def typed() -> list[Shot]:
    """The two commands, as they are typed."""
    first = Line("$ ", "dim").add(f"ddptop-run {' '.join(COMMAND)}", "strong")
    second = Line("$ ", "dim").add("ddptop", "strong")
    here, there = (Line(f"# {text}", "dim") for text in ("in place of torchrun", "in a second terminal"))
    return [
        Shot((Line(), here, first), 0.9, "Start your script as it is."),
        Shot((Line(), here, first, Line(), there, second), 1.0, "Look at it from a second terminal."),
    ]


class Director:
    """Presses keys on the screen of a run, and keeps the pictures of each scene."""

    def __init__(self, app: DdptopApp, source: LiveSource, press: Callable[[str], object]) -> None:
        self._app, self._source, self._press = app, source, press
        self.shots: list[Shot] = []

    async def wait(self, condition: Callable[[Frame], bool], what: str) -> None:
        """Wait until the newest frame is so."""
        for _ in range(int(DEADLINE_S / 0.05)):
            frame = self._source.latest()
            if frame is not None and condition(frame):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"after {DEADLINE_S:g} s still not: {what}")

    async def press(self, key: str) -> None:
        """Press a key of the screen."""
        await self._press(key)  # type: ignore[misc]

    async def shoot(self, n_pictures: int, caption: str, key: str = "") -> None:
        """Take some pictures, PERIOD_S apart."""
        for _ in range(n_pictures):
            self._app.repaint()
            lines = tuple(self._app.query_one(LinesWidget).lines)
            self.shots.append(Shot(lines, PERIOD_S, caption, key))
            await asyncio.sleep(PERIOD_S)


async def film(run: RunFile) -> list[Shot]:
    """Watch a run of the filmed training from its begin to its hang."""
    source = LiveSource(run)
    source.start()
    app = DdptopApp(source)
    try:
        async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
            director = Director(app, source, pilot.press)
            await director.wait(lambda frame: (frame.group.step or 0) >= EVEN_STEPS, "even ranks")
            await director.shoot(3, "Four ranks train. None is slow.")
            await director.wait(is_slow, "a slow rank with its cause")
            await director.shoot(5, f"Rank {training.SLOW_RANK} becomes slow.")
            await director.wait(names_line, "the line that takes its time")
            await director.press("w")
            await director.shoot(7, "why it is slow, in which line, and what that costs", "w")
            await director.press("escape")
            await director.wait(hangs, "the hang with a line of the script")
            await director.shoot(4, "Later, the training hangs.")
            await director.press("w")
            await director.shoot(7, "which rank hangs, in which file and line", "w")
            return director.shots
    finally:
        source.close()


def is_slow(frame: Frame) -> bool:
    """Whether the slow rank is named with its cause."""
    late = frame.straggler
    return late is not None and late.rank == training.SLOW_RANK and late.cause == "data"


def names_line(frame: Frame) -> bool:
    """Whether the slow rank's line of code is known."""
    return training.read_batch.__name__ in repr(frame.sampled)


def hangs(frame: Frame) -> bool:
    """Whether the stall has the hung rank's line of code."""
    return frame.stall is not None and training.lock_cache.__name__ in repr(frame.stall)


def moving_svg(shots: Sequence[Shot], palette: Palette) -> str:
    """One SVG of all shots, one after the other without end.

    The pictures lie side by side in a strip that CSS moves behind a window. A line that several pictures have
    is drawn once. Where nothing may move, the last picture after the first key is shown.
    """
    width = COLUMNS * CELL_WIDTH + 2 * MARGIN
    screen_height = ROWS * CELL_HEIGHT + 2 * MARGIN
    height, total_s = screen_height + CAPTION_HEIGHT, sum(shot.seconds for shot in shots)
    rows: dict[str, str] = {}
    strip, moves, begin_s, still = [], [], 0.0, 0
    first_key = next((shot.caption for shot in shots if shot.key), "")
    for number, shot in enumerate(shots):
        moves.append(f"{100 * begin_s / total_s:.3f}%{{transform:translateX({-number * width}px)}}")
        begin_s += shot.seconds
        still = number if shot.caption == first_key else still
        strip.append(f'<g transform="translate({number * width} 0)">')
        for place, line in enumerate(shot.lines):
            if drawn := svg_row(line, COLUMNS, palette):
                name = rows.setdefault(drawn, f"r{len(rows)}")
                strip.append(f'<use href="#{name}" y="{MARGIN + place * CELL_HEIGHT}"/>')
        strip.append(f"{_caption(shot, screen_height, palette)}</g>")
    ground, edge = _hex(palette.fill("").bgcolor), _hex(palette.style("rule").color)
    frame = f'x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"'
    rule = f'<path d="M0 {screen_height - 0.5}h{width}" stroke="{edge}"/>'
    moving = f"#s{{animation:s {total_s:g}s steps(1,end) infinite}}"
    style = f"@media(prefers-reduced-motion:no-preference){{{moving}}}@keyframes s{{{''.join(moves)}}}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            "<title>ddptop: a slow rank, why it is slow and what that costs; then a hang, and where</title>",
            f"<style>.m{{text-anchor:middle}}{style}</style>",
            f'<defs><g font-family="{FONTS}" font-size="13.3">',
            *(f'<g id="{name}">{drawn}</g>' for drawn, name in rows.items()),
            "</g></defs>",
            f'<rect {frame} fill="{ground}" stroke="{edge}"/>{rule}',
            f'<g id="s" transform="translate({-still * width} 0)" font-family="{FONTS}" font-size="13.3">',
            *strip,
            "</g>\n</svg>\n",
        ]
    )


def _caption(shot: Shot, top: int, palette: Palette) -> str:
    """What happens, in large letters, after the key that was pressed."""
    text, key = _hex(palette.style("strong").color), _hex(palette.style("accent").color)
    left, baseline = MARGIN + 4, top + CAPTION_HEIGHT // 2 + 7
    cap = ""
    if shot.key:
        box = f'x="{left}" y="{top + 8}" width="30" height="30" rx="5" fill="none" stroke="{key}"'
        cap = f'<rect {box} stroke-width="2"/><text class="m" x="{left + 15}" y="{baseline}" fill="{key}"'
        cap += f' font-size="{CAPTION_SIZE}" font-weight="bold">{escape(shot.key)}</text>'
        left += 44
    words = f'<text x="{left}" y="{baseline}" fill="{text}" font-family="sans-serif"'
    return f'{cap}{words} font-size="{CAPTION_SIZE}">{escape(shot.caption)}</text>'


def _hex(colour: object) -> str:
    return colour.get_truecolor().hex  # type: ignore[attr-defined,no-any-return]


def live_run(folder: Path) -> RunFile | None:
    """The run whose folder is in this one."""
    runs = (read_run_file(file.parent) for file in folder.glob("*/run.json"))
    return next((run for run in runs if run is not None), None)


def make() -> list[Shot]:
    """Start the training, film it, end it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        env = environment(folder)
        shutil.copy(training.__file__, folder / "train.py")
        with (folder / "cache.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with started([*DDPTOP_RUN, *COMMAND], env, folder, cold=True) as launcher:
                root = Path(env["XDG_RUNTIME_DIR"], "ddptop")
                until(lambda: live_run(root) or launcher.poll() is not None, "the run")
                run = live_run(root)
                assert run is not None, launcher.communicate()[1]
                shots = asyncio.run(film(run))
                launcher.terminate()
                launcher.wait(60)
    return [*typed(), *shots]


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    os.environ.pop("NO_COLOR", None)
    pictures = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(moving_svg(pictures, Palette(THEMES[0])), encoding="utf-8")
    scenes = [key for key, _ in itertools.groupby(shot.caption for shot in pictures)]
    seconds = sum(shot.seconds for shot in pictures)
    print(f"{file}: {file.stat().st_size:,} bytes, {seconds:g} s, {len(scenes)} scenes")
