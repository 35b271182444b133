"""Calm: between two frames of an unchanged healthy run few cells change, and nothing moves."""

from __future__ import annotations

import itertools
import re
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
from ddptop.recording.reader import Recording
from ddptop.render.chart import Scale
from ddptop.render.line import Line
from ddptop.sources.past import RecordedPast
from ddptop.sources.player import Player
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.charts import draw_charts
from tests.made_up_run import NS, World
from tests.recording.frozen_runs import RunBuilder, usual_loss
from tests.recording.replays import complete_frame, replay_to_steps
from tests.truth import traces
from tests.tui.drive import Sketch
from tests.tui.fake import FakeSource, history, live, replay, straggler
from tests.tui.fake_views import timeline
from tests.tui.gallery import PAGES, SIZES
from tests.tui.troubles import died, missing

RECORDINGS = Path(__file__).parents[1] / "recording" / "frozen"
TRACE = Path(__file__).parents[1] / "truth" / "data" / "healthy-load-0.trace"
MOST_CHANGED = 0.12
"""Share of the cells of a picture."""

NEIGHBOURS_S = (
    *((seconds, seconds + 0.25) for seconds in (5.0, 5.25, 5.5, 5.75)),
    (9.6, 9.85),
    *((seconds - 0.1, seconds + 0.15) for seconds in (62.0, 64.0, 66.0, 68.0)),
)
"""Two moments of a recorded run after each other, of which each draws the screen: of a young run; with its
100th step between them; and each time that the charts are drawn again, in 10 s with a longer axis."""


class HealthyRun(RunBuilder):
    """Four ranks on two hosts that take nearly the same time, but for a late batch now and then."""

    def __init__(self) -> None:
        super().__init__(World(4, ("node0", "node1"), own=True), 5)
        self.slow_us = {
            (rank, place): us
            for rank in range(4)
            for place, us in (("data", 2_000), ("forward", 25_000), ("backward", 45_000))
        }
        self.add(self.world.run())
        self.begin()
        while self.world.now_us < 70_000_000:
            self.train(5, self._noisy_loss)

    def _noisy_loss(self, rank: int, step: int) -> float:
        return usual_loss(rank, step) * (1 + self.random.random() / 50)

    def _draw_delays(self) -> None:
        super()._draw_delays()
        for place in self.world.delays:
            self.world.delays[place] += int(2_000 * self.random.random())
        if self.random.random() < 0.02:
            self.world.delays[self.random.randrange(4), "data"] += 40_000


class Moment:
    """A moment of a recorded run, which goes on: the frames that a screen would have of it live."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._player, self._past = Player(recording), RecordedPast(recording)
        self._past.read_new()
        self._frames: dict[tuple[int | None, str], Frame] = {}

    def go_to(self, seconds: float) -> None:
        """To so many seconds after the begin."""
        self._player.go_to(self._recording.start_ns + int(seconds * NS))
        self._frames.clear()

    def frame(self, focus: int | None = None, want: str = "") -> Frame:
        """The frame with what was asked for."""
        if (focus, want) not in self._frames:
            frame = complete_frame(self._player, self._past, focus=focus, want=want)
            self._frames[focus, want] = as_live(frame)
        return self._frames[focus, want]


class MomentSource(FakeSource):
    """Hands out the frame of the moment."""

    def __init__(self, moment: Moment) -> None:
        super().__init__(None)
        self._moment, self._focus, self._want = moment, None, ""  # type: ignore[var-annotated]

    def latest(self) -> Frame:
        return self._moment.frame(self._focus, self._want)

    def focus(self, rank: int | None) -> None:
        self._focus = rank

    def request(self, text: str) -> None:
        self._want = text


Pictures = Mapping[tuple[str, str], Sequence[tuple[list[str], list[str]]]]
"""By view and size: neighbouring pictures."""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of 70 s."""
    path = tmp_path_factory.mktemp("calm") / "healthy.ddptop"
    HealthyRun().write(path)
    return path


@pytest.fixture(scope="module")
def neighbours(healthy: Path) -> Pictures:
    """Each page at each size, with each two moments."""
    with Recording.open(healthy) as recording:
        moment = Moment(recording)
        moment.go_to(NEIGHBOURS_S[0][0])
        people = {(view, size): Sketch(MomentSource(moment), SIZES[size]) for view in PAGES for size in SIZES}
        for (view, _), person in people.items():
            person.press(*PAGES[view])
        pictures: dict[tuple[str, str], list[tuple[list[str], list[str]]]] = {page: [] for page in people}
        seen: dict[float, dict[tuple[str, str], list[str]]] = {}
        for seconds in dict.fromkeys(itertools.chain(*NEIGHBOURS_S)):
            moment.go_to(seconds)
            assert verdict(moment.frame()).kind == "even"
            seen[seconds] = {page: look(person) for page, person in people.items()}
        for page in people:
            pictures[page] = [(seen[one][page], seen[next_one][page]) for one, next_one in NEIGHBOURS_S]
    return pictures


def look(person: Sketch) -> list[str]:
    """The lines of the screen, each padded to the width."""
    width, height = person.size
    lines = [line.ljust(width) for line in person.text().splitlines()]
    return lines + [" " * width] * (height - len(lines))


def as_live(frame: Frame) -> Frame:
    """The frame of a recording as one of the run when it went on."""
    return replace(frame, playback=None, source="live", run=replace(frame.run, state="live"))


def _live_frames(steps: Sequence[int], **requested: str) -> Iterator[Frame]:
    for _, player, past in replay_to_steps(RECORDINGS / "two_hosts.ddptop", steps):
        yield as_live(complete_frame(player, past, **requested))


WITH_PARTS = tuple(size for size in SIZES if size != "30x6")
"""The sizes that have room for a verdict of several lines, a table and charts."""

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


@pytest.mark.parametrize("view", PAGES)
@pytest.mark.parametrize("size", SIZES)
def test_few_cells_change_while_a_run_is_well(neighbours: Pictures, size: str, view: str) -> None:
    columns, rows = SIZES[size]
    changes = [count_cells(before, after) for before, after in neighbours[view, size]]
    assert 0 < max(changes) <= MOST_CHANGED * columns * rows, changes


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


@pytest.mark.parametrize("run", ["young", "real"])
@pytest.mark.parametrize("size", WITH_PARTS)
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


@pytest.mark.parametrize("size", WITH_PARTS)
def test_the_timeline_of_a_run_whose_steps_all_differ_shows_those_that_look_alike(size: str) -> None:
    """At 70 steps a second. At 160x50 the charts below it go on as the run does, which is 15 s old."""
    columns, rows = SIZES[size]
    seen = list(pictures(_real_frames("timeline -1 0"), SIZES[size], "2"))
    share = np.array([count_cells(before, after) for before, after in itertools.pairwise(seen)])
    share = share / (columns * rows)
    assert share.max() <= MOST_CHANGED, share
    assert np.median(share) < 0.01, share
    steps = {lines[1].split(" ms")[0] for lines in seen}
    axes = {line for lines in seen for line in lines if re.match(r" +0 .* ms", line)}
    assert len(steps) > 1 and len(axes) == 1, (steps, axes)


def test_of_a_healthy_run_whose_buckets_are_timed_a_new_step_changes_few_cells(healthy: Path) -> None:
    with Recording.open(healthy) as recording:
        moment = Moment(recording)
        moment.go_to(20.0)
        people = [Sketch(MomentSource(moment), SIZES[size]) for size in WITH_PARTS]
        for person in people:
            person.press("2")
        before, steps = {person.size: look(person) for person in people}, set()
        for quarter in range(1, 41):
            moment.go_to(20.0 + quarter / 4)
            for person in people:
                seen, (columns, rows) = look(person), person.size
                assert count_cells(before[person.size], seen) <= MOST_CHANGED * columns * rows
                before[person.size] = seen
                steps.add((columns, seen[1].split(" ms")[0]))
    assert len(steps) >= 3 * len(people), steps


def test_the_sentence_on_a_step_has_one_line_at_50x24() -> None:
    """It says who came last in one step, and that no rank stands out in the next one."""
    for slow in ((1,), ()):
        frame = replace(live(), timeline=timeline(slow=slow, skew_ms=3.4))
        ranks = replace(frame.ranks, host=("node0", "node1", "node0", "node1"))
        seen = next(pictures([replace(frame, ranks=ranks)], SIZES["50x24"], "2"))
        assert " ms " in seen[3] and "rank" in seen[2] and "first" not in seen[3], seen[:5]


@pytest.mark.parametrize("view", PAGES)
@pytest.mark.parametrize("size", SIZES)
def test_in_header_verdict_gutters_and_keys_nothing_but_digits_changes(
    neighbours: Pictures, size: str, view: str
) -> None:
    for before, after in neighbours[view, size]:
        for row, (one, other) in enumerate(zip(before, after, strict=True)):
            is_quiet = row == 0 or row >= find_foot(before) or one.startswith("▌") or "┃breakdown" in one
            gutter = GUTTER.match(one)
            n_quiet = len(one) if is_quiet else 0 if gutter is None else gutter.end()
            assert DIGIT.sub(" ", one[:n_quiet]) == DIGIT.sub(" ", other[:n_quiet]), (one, other)


GUTTER = re.compile(r"│?[ \d.,]{1,8}[│└]")
DIGIT = re.compile(r"[\d▏▎▍▌▋▊▉█]")
"""Or an eighth of a cell of the bar beside the verdict."""


def find_foot(lines: Sequence[str]) -> int:
    """The first line of the keys."""
    begins = ("1 over", "1-9", "Esc back")
    return next((row for row, line in enumerate(lines) if line.lstrip().startswith(begins)), len(lines))


@pytest.mark.parametrize("size", WITH_PARTS)
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
    solid = {"work": "work/work", "wait": "wait/wait"}
    assert cells == [solid["work"]] * 6 + ["work/wait"] + [solid["wait"]] * 5, "43 % of 12 cells"


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


def test_the_labels_of_a_chart_keep_the_room_that_they_once_needed() -> None:
    """A loss that falls needs more decimals, and one that rises again fewer: the curve stays in its cells."""
    place, whole = Place(), history(3_800)
    lefts = []
    for at, (low, high) in enumerate([(2.2, 2.4), (0.21, 0.24), (0.0021, 0.0024), (1.0, 2.0), (0.21, 0.24)]):
        loss = np.linspace(high, low, len(whole.step))
        frame = replace(live(), unix_s=2e9 + 10 * at, history=replace(whole, loss_mean=loss, loss_max=loss))
        lefts.append(draw_charts(Scene(frame, place), 80, 10).plots[0].left)
    assert lefts == sorted(lefts) and lefts[-1] > lefts[0]
    assert all((left - lefts[0]) % 2 == 0 for left in lefts), "by two cells at a time"


def test_a_load_that_differs_and_then_does_not_moves_nothing_on_the_page_of_the_rank() -> None:
    frame = straggler()
    alike = np.full(len(frame.ranks.cpu_pct), 90.0)
    differing = np.where(np.arange(len(alike)) == 1, 20.0, alike)
    before, after = (
        next(pictures([replace(frame, ranks=replace(frame.ranks, cpu_pct=cpu_pct))], (80, 24), "w"))
        for cpu_pct in (alike, differing)
    )
    changed = [row for row, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert len(changed) == 1 and "its process uses 20% of a CPU, the others 90%" in after[changed[0]]
