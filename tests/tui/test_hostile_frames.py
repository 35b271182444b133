"""Frames of a far end that lies: refused, or drawn by every view and outlet without harm."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.analysis.reducer import Reducer
from ddptop.cli.commands.mcp import answer_json
from ddptop.cli.errors import note
from ddptop.cli.settings import Settings
from ddptop.cli.show import Mode, print_frame
from ddptop.collector.alert_calls import AlertCalls
from ddptop.collector.incidents import IncidentChange
from ddptop.export.metrics import metric_families
from ddptop.frames.codec import FrameError
from ddptop.frames.frame import Frame
from ddptop.frames.snapshot import snapshot
from ddptop.protocol.outlets import print_text
from ddptop.render.plain import draw_frame, watch_line
from ddptop.sources.saving import save_page
from ddptop.tui.lines_widget import LinesWidget
from ddptop.tui.terminal import Attention
from tests.tui import fake, troubles
from tests.tui.drive import Sketch, Stage, on_stage
from tests.tui.fake_hosts import silent, slow_rank
from tests.tui.fake_start import held_up
from tests.tui.fake_views import WantedSource, told, with_wanted
from tests.tui.gallery import PAGES, SIZES
from tests.tui.hostile import ESCAPES, INFINITY, NAN, changed, lies, paths, sent, value_at

BASES: tuple[Callable[[], Frame], ...] = (
    fake.straggler, fake.several, fake.lost, fake.replay, fake.waiting, fake.unknowns, troubles.missing,
    troubles.mismatch, troubles.died, told, held_up, lambda: slow_rank(3, 4), lambda: silent(3, 4),
)  # fmt: skip

CPU_S = 20.0
"""CPU time of all pictures of a frame, which take half a second: an endless loop is ended."""


def base(number: int) -> Frame:
    """A frame with a heat map and a timeline."""
    return with_wanted(with_wanted(BASES[number](), "heat excess 8 60"), "timeline")


class LyingSource(WantedSource):
    """Lies in what is asked for, too."""

    def __init__(self, frame: Frame, replaced: list[tuple[tuple[Any, ...], Any]]) -> None:
        super().__init__(frame)
        self._replaced = replaced

    def request(self, text: str) -> None:
        super().request(text)
        for path, value in self._replaced:
            try:
                value_at(self.frame, path)
                self.frame = sent(changed(self.frame, path, value))
            except (FrameError, AttributeError, LookupError, TypeError, ValueError):
                continue  # refused, or not in this frame


@contextmanager
def bounded_cpu_time() -> Iterator[None]:
    def end(*_: object) -> None:
        raise AssertionError(f"not drawn within {CPU_S:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def is_clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def draw_everywhere(frame: Frame, replaced: list[Any], size: tuple[int, int], views: list[str]) -> None:
    """Every outlet; `views` of the screen."""
    json.dumps(snapshot(frame), allow_nan=False)
    assert is_clean(draw_frame(frame, size[0]))
    assert watch_line(frame).isprintable()
    list(metric_families(frame))
    person = Sketch(LyingSource(frame, replaced), size)
    for view in views:
        text = person.press("escape", "escape", *PAGES[view])
        assert is_clean(text), view
        assert len(person.lines) == size[1], view
        assert all(line.width <= size[0] for line in person.lines), view
        person.press("right", "left", "plus", "down")


@settings(max_examples=40)
@given(
    st.integers(0, len(BASES) - 1),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=6),
    st.sampled_from(sorted(SIZES.values())),
    st.lists(st.sampled_from(sorted(PAGES)), min_size=3, max_size=3, unique=True),
)
def test_any_frame_is_refused_or_drawn(
    number: int, choices: list[tuple[int, int]], size: tuple[int, int], views: list[str]
) -> None:
    frame = base(number)
    places, replaced = list(paths(frame)), []
    for at, which in choices:
        path = places[at % len(places)]
        values = lies(value_at(frame, path))
        value = values[which % len(values)]
        try:
            sent(changed(frame, path, value))
        except (FrameError, TypeError, ValueError):  # refused here, or no bytes can say it
            continue
        frame = changed(frame, path, value)
        replaced.append((path, value))
    try:
        received = sent(frame)
    except FrameError:
        return
    with bounded_cpu_time():
        draw_everywhere(received, replaced, size, views)


def texts(part: Any) -> list[tuple[Any, ...]]:
    return [path for path in paths(part) if isinstance(value_at(part, path), str)]


@pytest.mark.parametrize("path", [("start", "milestone"), ("start", "ranks", 0, "milestone")])
def test_a_milestone_that_no_rank_has_is_refused(path: tuple[Any, ...]) -> None:
    frame = changed(held_up(), path, "swim")
    with pytest.raises(FrameError, match="milestone that is no StartMilestone"):
        sent(frame)


@pytest.mark.parametrize("row, rank", [(0, -1), (1, 2**40), (2, 0)])
def test_a_heat_map_of_ranks_without_end_is_refused(row: int, rank: int) -> None:
    with pytest.raises(FrameError, match="ranks that are not in order"):
        sent(changed(base(0), ("heat", "rows", row), rank))


@pytest.mark.parametrize("number", range(len(BASES)))
def test_no_text_of_a_frame_arrives_raw(number: int) -> None:
    frame = base(number)
    found = texts(frame)
    assert len(found) > 5
    refused = 0
    for path in found:
        try:
            received = sent(changed(frame, path, ESCAPES))
        except FrameError as error:
            assert str(error).isprintable()
            refused += 1
            continue
        assert "title" in value_at(received, path), path
        assert all(value_at(received, other).isprintable() for other in texts(received)), path
    assert 0 < refused < len(found), "words of the vocabulary are refused, other texts cleaned"


def test_names_in_maps_are_cleaned() -> None:
    frame = fake.live()
    frame = replace(frame, run=replace(frame.run, card={ESCAPES: ESCAPES}))
    ((name, value),) = sent(frame).run.card.items()
    assert name.isprintable() and value.isprintable()


@pytest.mark.parametrize("name", ["time_s", "step_ms", "loss_mean"])
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [INFINITY, NAN, 1e300])
def test_times_are_known_and_finite_where_a_loss_need_not_be(name: str, number: float) -> None:
    frame = fake.live()
    column = np.array(getattr(frame.history, name), np.float64)
    column[len(column) // 2] = number
    lie = replace(frame, history=replace(frame.history, **{name: column}))
    if name == "loss_mean" or (name == "step_ms" and number != number):
        draw_everywhere(sent(lie), [], (80, 24), ["overview", "run"])
    else:
        with pytest.raises(FrameError, match=name):
            sent(lie)


@pytest.mark.parametrize("moment", [NAN, INFINITY, 1e18, -1e18])
def test_a_moment_that_no_calendar_has_is_refused(moment: float) -> None:
    with pytest.raises(FrameError, match="unix_s"):
        sent(replace(fake.live(), unix_s=moment))


def is_accepted(frame: Frame, path: tuple[Any, ...]) -> bool:
    """Whether any text may be there: the words of the vocabulary are looked up by what is drawn."""
    try:
        sent(changed(frame, path, ESCAPES))
    except FrameError:
        return False
    return True


def trusted(frame: Frame) -> Frame:
    """The frame with escapes in all its texts, as if the checks of what enters had let them through."""
    for path in [path for path in texts(frame) if is_accepted(frame, path)]:
        frame = changed(frame, path, ESCAPES)
    return frame


@pytest.mark.parametrize("number", range(len(BASES)))
def test_escapes_behind_the_checks_reach_no_outlet(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    frame = trusted(base(number))
    plain = Settings(color=False)
    print_frame(frame, Mode.JSON, plain)
    print_frame(frame, Mode.ONCE, plain)
    print_text(watch_line(frame))
    note(ESCAPES)
    shown = capsys.readouterr()
    assert is_clean(shown.out) and is_clean(shown.err)
    assert "\\u001b" not in shown.out, "who decodes the JSON may print it"
    print_text(draw_frame(frame, 100, color=True), color=True)
    assert is_clean(re.sub(r"\x1b\[[0-9;]*m", "", coloured := capsys.readouterr().out))
    assert "\x1b[41m" not in coloured
    assert "\\u001b" not in answer_json(snapshot(frame))
    for alert in frame.alerts:
        body = AlertCalls("", Reducer(), lambda *_: None).encode_change(IncidentChange(1, True, alert), 0)
        assert b"\\u001b" not in body


@pytest.mark.parametrize("number", range(len(BASES)))
def test_escapes_behind_the_checks_reach_no_metrics(number: int, tmp_path: Path) -> None:
    prometheus = pytest.importorskip("ddptop.export.prometheus", reason="pip install 'ddptop[metrics]'")
    prometheus.write_textfile(trusted(base(number)), tmp_path / "metrics.prom")
    assert is_clean((tmp_path / "metrics.prom").read_text())


@pytest.mark.parametrize("view", ["overview", "run", "events", "stall"])
def test_escapes_behind_the_checks_reach_no_screen(view: str, tmp_path: Path) -> None:
    source = WantedSource(trusted(base(0)))
    source.status = lambda: ESCAPES  # type: ignore[method-assign]

    async def act(stage: Stage) -> None:
        await stage.press("escape", *PAGES[view])
        lines = stage.app.query_one(LinesWidget)
        assert is_clean(lines.text())
        assert len(lines.text().splitlines()) == len(lines.lines), "no text breaks its line"
        assert "title" in lines.text()
        svg = stage.app.picture_svg()
        assert is_clean(svg)
        saved = save_page(ESCAPES, view, 0.0, ESCAPES, folder=tmp_path)
        assert is_clean(saved.read_text()) and saved.name.isprintable()

    on_stage(source, (160, 50), act)
    title = Attention().see(source.frame).removeprefix("\x1b]2;").removesuffix("\x1b\\")
    assert title.isprintable() and "title" in title
