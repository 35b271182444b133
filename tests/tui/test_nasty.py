"""Foreign text in every place that has any: it neither breaks nor colours nor widens anything."""

from __future__ import annotations

import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len

from ddptop.frames.frame import Alert, Frame, LoggedEvent
from ddptop.tui.runs import RunChoice
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.compare import draw_two_runs
from ddptop.tui.views.picker import draw_picker
from tests.tui.drive import Sketch, Stage, on_stage
from tests.tui.fake import NOW, live, replay
from tests.tui.fake_views import WantedSource
from tests.tui.troubles import died, hostile

NASTY = (
    "[bold red]x[/] \x1b[31mred\x1b]0;title\x07 \u202eltr\u202c"
    " שלום 主机名前 e\u0301 👨‍👩‍👧 \t\r\n\x00 {share} %s"
)

KEYS = (
    *((str(number),) for number in range(1, 8)),
    *(("7", "t"), ("1", "enter"), ("escape", "c", "down", "c"), ("escape", "r"), ("r",), ("question_mark",)),
    *(("escape", "slash", *"הש[", "enter"), ("n",), ("escape", "escape", "colon", *"主", "escape"), ("F",)),
    *(("5", "slash", *"red", "enter", "enter"), ("escape", "space"), ("y",)),
)


def nasty(frame: Frame) -> Frame:
    """All texts of others are nasty."""
    run = replace(frame.run, name=NASTY, script=NASTY, argv=(NASTY, NASTY), backend=NASTY, torch=NASTY)
    run = replace(
        run, recording=f"/data/{NASTY}", card={NASTY: NASTY, "ddp.x": NASTY, "env.NCCL_DEBUG": NASTY}
    )
    world = len(frame.ranks.state)
    ranks = replace(frame.ranks, host=(NASTY,) * world, device=(NASTY,) * world, phase=(NASTY,) * world)
    alert = Alert("nan", "warning", 1, 3, NOW - 5, NASTY, {NASTY: NASTY})
    alerts = (alert, replace(alert, kind=NASTY))
    events = (LoggedEvent(NOW - 5, NASTY, NASTY, 1, 3, NASTY), *frame.events)
    buckets = tuple(replace(bucket, dtype=NASTY, hook=NASTY, group=NASTY) for bucket in frame.buckets)
    return replace(frame, run=run, ranks=ranks, alerts=alerts, events=events, buckets=buckets)


@pytest.mark.parametrize(
    ("size", "ascii_only"), [((80, 24), False), ((160, 50), False), ((33, 9), False), ((80, 24), True)]
)
@pytest.mark.parametrize(
    "make", [replay, hostile, *(pytest.param(make, marks=pytest.mark.slow) for make in (live, died))]
)
def test_no_text_moves_the_cursor_or_widens_a_line(
    make: Callable[[], Frame], size: tuple[int, int], ascii_only: bool
) -> None:
    sketch = Sketch(WantedSource(nasty(make())), size, ascii_only)
    sketch.place.choices = (RunChoice(NASTY, NASTY, True, NASTY, 2, NASTY, NOW, NASTY, NASTY),)
    sketch.source.said = NASTY
    for keys in KEYS:
        text = sketch.press(*keys)
        assert not bad_letters(text), keys
        assert len(sketch.lines) == size[1]
        for line in sketch.lines:
            assert line.width == cell_len(str(line)) <= size[0], (keys, str(line))
        assert text.isascii() or not ascii_only, keys


@pytest.mark.parametrize("size", [(80, 24), (33, 9)])
def test_nor_does_it_in_the_picker_and_beside_another_run(size: tuple[int, int]) -> None:
    choice = RunChoice(NASTY, NASTY, True, NASTY, 2, NASTY, NOW, NASTY, NASTY)
    pages = [draw_picker(Place("picker", choices=(choice,)), *size, ascii_only=False).lines]
    scene = Scene(nasty(replay()), Place("runs"), other=nasty(replay()))
    pages.append(draw_two_runs(scene, *size).lines)
    for lines in pages:
        assert not bad_letters("".join(map(str, lines)))
        assert all(line.cut(size[0]).width <= size[0] for line in lines)


def test_markup_stays_text_and_textual_paints_it_as_such() -> None:
    async def act(stage: Stage) -> None:
        page = await stage.text()
        assert "[bold red]x[/]" in page
        assert "[bold red]x[/]" in await stage.press("5")
        assert "[bold red]x[/]" in await stage.press("6")
        svg = stage.app.picture_svg()
        assert "[bold red]x[/]" in "".join(ElementTree.fromstring(svg).itertext()), "and it is well-formed"
        assert "\x1b" not in svg
        stage.app.to_clipboard(stage.app.picture_text())

    on_stage(WantedSource(nasty(live())), (160, 50), act)


def bad_letters(text: str) -> set[str]:
    """Controls, format and direction marks, but for line ends."""
    return {
        letter
        for letter in text
        if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cf", "Co", "Cn")
    }
