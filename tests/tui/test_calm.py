"""Calm: between two frames of an unchanged healthy run few cells change, and nothing moves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.detail import HEAT_FIGURES
from ddptop.frames.frame import Frame, Suspect
from ddptop.frames.history import COLUMNS
from ddptop.frames.verdict import verdict
from ddptop.render.chart import Scale
from ddptop.render.line import Line
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.charts import draw_charts
from tests.recording.replays import complete_frame, replay_to_steps
from tests.truth import traces
from tests.tui.drive import Sketch
from tests.tui.fake import FakeSource, history, live, replay, straggler
from tests.tui.troubles import died, missing

RECORDINGS = Path(__file__).parents[1] / "recording" / "frozen"
TRACE = Path(__file__).parents[1] / "truth" / "data" / "healthy-load-0.trace"
SIZES = {"80x24": (80, 24), "160x50": (160, 50), "50x24": (50, 24), "67x19": (67, 19)}
MOST_CHANGED = 0.12
"""Share of the cells of a picture."""

HEALTHY_STEPS = range(20, 60, 2)
"""Steps of a recorded run of four ranks on two hosts in which no rank is slow."""


@pytest.fixture(scope="module")
def healthy() -> list[Frame]:
    """The frames of these steps, as of a live run."""
    return list(_healthy_frames())


def _healthy_frames() -> Iterator[Frame]:
    for frame in _live_frames(HEALTHY_STEPS):
        assert verdict(frame).kind == "even"
        yield frame


def _live_frames(steps: Sequence[int], **requested: str) -> Iterator[Frame]:
    for _, player, past in replay_to_steps(RECORDINGS / "two_hosts.ddptop", steps):
        frame = complete_frame(player, past, **requested)
        yield replace(frame, playback=None, source="live", run=replace(frame.run, state="live"))


MAP = "heat excess 128 256"
"""A request for a map that is large enough for every size."""

YOUNG_STEPS = range(1, 60, 2)

FRAME_NS = 250_000_000


@pytest.fixture(scope="module")
def with_map() -> Mapping[str, list[Frame]]:
    """Frames with the map of ranks x steps: of the young run, and of a real one of 70 steps a second from its
    20th step on."""
    return {"young": list(_live_frames(YOUNG_STEPS, want=MAP)), "real": _real_frames(MAP)}


def _real_frames(want: str) -> list[Frame]:
    _, _, messages = traces.read(TRACE)
    reducer, real = Reducer(), []
    in_order = sorted(messages, key=lambda message: message.t_ns)  # ranks take turns
    for frame_index, batch in itertools.groupby(in_order, key=lambda message: message.t_ns // FRAME_NS):
        for message in batch:
            reducer.feed(message)
        real.append(reducer.frame((frame_index + 1) * FRAME_NS, want=want))
    return real[1:]


def pictures(frames: list[Frame], size: tuple[int, int], *keys: str) -> Iterator[list[str]]:
    """The screen of each frame, in one sitting, each line padded to the width."""
    person = Sketch(FakeSource(frames[0]), size)
    person.press(*keys)
    for frame in frames:
        person.source.frame = frame
        yield [line.ljust(size[0]) for line in person.text().splitlines()]


@pytest.mark.parametrize("keys", ["1", "3", "5", "6", "8"])
@pytest.mark.parametrize("size", SIZES)
def test_few_cells_change_while_a_run_is_well(healthy: list[Frame], size: str, keys: str) -> None:
    columns, rows = SIZES[size]
    assert max(count_changes(healthy, SIZES[size], keys)) <= MOST_CHANGED * columns * rows


def count_changes(frames: list[Frame], size: tuple[int, int], *keys: str) -> list[int]:
    """How many cells change from each frame to the next."""
    return [count_cells(before, after) for before, after in itertools.pairwise(pictures(frames, size, *keys))]


def count_cells(before: Sequence[str], after: Sequence[str]) -> int:
    """How many cells differ."""
    return sum(
        old != new
        for one, other in zip(before, after, strict=True)
        for old, new in zip(one, other, strict=True)
    )


@pytest.mark.parametrize(
    ("run", "size"), [*(("young", size) for size in SIZES), ("real", "80x24"), ("real", "160x50")]
)
def test_in_no_frame_many_cells_of_the_heat_map_change(
    with_map: Mapping[str, list[Frame]], run: str, size: str
) -> None:
    columns, rows = SIZES[size]
    changes = count_changes(with_map[run], SIZES[size], "4")
    assert 0 < max(changes) <= MOST_CHANGED * columns * rows


@pytest.mark.parametrize("metric", ["forward", "optimizer", "other"])
def test_rare_values_that_come_and_go_shade_the_heat_map_seldom_anew(metric: str) -> None:
    """One value in a hundred is five times the others: the range of the shades, which nearly all values are
    within, is now with and now without them."""
    keys = ["4", *["m"] * HEAT_FIGURES.index(metric)]
    changes = count_changes(_real_frames(MAP.replace("excess", metric)), SIZES["80x24"], *keys)
    assert sum(n_changed > MOST_CHANGED * 80 * 24 for n_changed in changes) <= 2, changes


@pytest.mark.parametrize("size", SIZES)
def test_in_header_verdict_titles_and_gutters_nothing_but_digits_changes(
    healthy: list[Frame], size: str
) -> None:
    seen = list(pictures(healthy, SIZES[size], "1"))
    for before, after in itertools.pairwise(seen):
        for row, (one, other) in enumerate(zip(before, after, strict=True)):
            is_quiet = row < 2 or one.startswith("▌") or "┃breakdown" in one or "━" in one or "──" in one
            gutter = one.partition("│")[0] if "│" in one and "┃" not in one else ""
            n_quiet = len(one) if is_quiet else len(gutter)
            for old, new in zip(one[:n_quiet], other[:n_quiet], strict=True):
                assert old == new or (old.isdigit() and new.isdigit()), (one, other)


@pytest.mark.parametrize("size", SIZES)
def test_all_states_of_a_run_have_their_parts_on_the_same_lines(size: str) -> None:
    """Table, charts and foot stand where they stood, whatever happens."""
    places = set()
    for frame in (live(), straggler(), missing(), died()):
        lines = next(pictures([frame], SIZES[size], "1"))
        n_verdict = sum(line.startswith("▌") for line in lines)
        title = next(row for row, line in enumerate(lines) if " rank" in line and " state" in line)
        charts = [row for row, line in enumerate(lines) if line.startswith("loss ")]
        foot = next(row for row, line in enumerate(lines) if line.startswith(("1 over", "1-9 views")))
        places.add((n_verdict, title, *charts[:1], foot))
    assert len(places) == 1, places


def test_the_bar_of_a_recording_moves_nothing_above_the_charts() -> None:
    of_live, of_replay = (next(pictures([frame], (80, 24), "1")) for frame in (straggler(), replay()))
    first_chart = next(row for row, line in enumerate(of_live) if line.startswith("loss "))
    assert of_live[1:first_chart] == [line.replace("running", "live   ") for line in of_replay[1:first_chart]]


@pytest.mark.parametrize(("size", "lines"), [("80x24", 3), ("160x50", 3), ("50x24", 4), ("67x19", 4)])
def test_the_verdict_has_a_block_of_a_fixed_height(size: str, lines: int) -> None:
    for frame in (live(), straggler(), missing(), died(), replay()):
        seen = next(pictures([frame], SIZES[size], "1"))
        assert [row for row, line in enumerate(seen) if line.startswith("▌")] == [*range(1, 1 + lines)]


def test_on_the_smallest_screen_the_verdict_has_one_line() -> None:
    for frame in (live(), straggler(), missing(), died(), replay()):
        seen = next(pictures([frame], (30, 6), "1"))
        assert [row for row, line in enumerate(seen) if line.startswith(("●", "▲", "■"))] == [1]
        assert " rank" in seen[2]


def test_the_cost_is_a_bar_of_which_waiting_has_its_share() -> None:
    person = Sketch(FakeSource(straggler()), (80, 24))
    line: Line = person.lines[2]
    cells = [role for text, role in line.pieces for _ in text][-12:]
    solid = {"area": "area/area", "wait": "wait/wait"}
    assert cells == [solid["area"]] * 6 + ["area/wait"] + [solid["wait"]] * 5, "43 % of 12 cells"


def test_a_suspicion_that_comes_and_goes_moves_nothing_on_the_page_of_the_rank() -> None:
    suspected = replace(live(), suspect=Suspect(1, 9.1, 0.4, 22, 22, basis="every_step"))
    (title, *before), (suspicion, *after) = (
        next(pictures([frame], (80, 24), "1", "down", "enter"))[1:-3] for frame in (live(), suspected)
    )
    assert before == after
    assert title.startswith("── rank 1 ──")
    assert suspicion.startswith("── rank 1 · was the slowest in 22 of 22 steps, by 9.1 ±0.4 ms ──")


def test_the_scale_of_a_chart_stays_while_the_series_needs_most_of_it() -> None:
    before = Scale(0.0, 20.0)
    assert Scale(0.0, 16.0).settle(before) == Scale(0.0, 12.0).settle(before) == before
    assert Scale(0.0, 10.0).settle(before) == Scale(0.0, 10.0), "as large as two of them"
    assert Scale(0.0, 22.0).settle(before) == Scale(0.0, 22.0), "the series is larger"
    assert Scale(0.0, 16.0, log=True).settle(before) == Scale(0.0, 16.0, log=True), "another axis"
    assert Scale(0.0, 16.0).settle(None) == Scale(0.0, 16.0), "the first drawing"


def test_the_curves_of_a_young_run_are_seldom_drawn_anew_as_a_whole() -> None:
    """A new length of a cell of the time axis, or another scale, changes all of a curve."""
    whole, place = history(3_800), Place()
    noise = np.random.default_rng(7).exponential(4.0, len(whole.step))
    whole = replace(whole, step_ms=whole.step_ms + noise)
    drawings = []
    for until_s in range(40, 100, 2):
        n_points = int(np.searchsorted(whole.time_s, until_s))
        until_then = replace(whole, **{name: getattr(whole, name)[:n_points] for name in COLUMNS})
        frame = replace(live(), unix_s=1e9 + until_s, history=until_then)
        lines = draw_charts(Scene(frame, place), 160, 30).lines
        drawings.append([str(line).ljust(160) for line in lines])
    changes = [count_cells(before, after) / (160 * 30) for before, after in itertools.pairwise(drawings)]
    assert sum(share > 0.06 for share in changes) <= 8, changes
    assert np.median(changes) < 0.03, changes
