"""What each figure means, and which columns are shown."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ddptop.frames.frame import Frame
from ddptop.frames.hosts import host_index
from ddptop.render.bucket_table import bucket_columns
from ddptop.render.host_table import FIGURES, host_columns
from ddptop.render.hosts import figures_by_trouble
from ddptop.render.metrics import (
    BUCKET_FIELDS,
    FIELDS,
    HEAT_FIELDS,
    HOST_FIELDS,
    PROCESS_GROUP_FIELDS,
    explain_figure,
)
from ddptop.render.rank_table import plain_rank_columns, rank_columns
from ddptop.report.tables import BUCKET_COLUMNS
from ddptop.report.tables import host_columns as report_hosts
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.compare import FIGURES_OF_RANKS, figure_name
from ddptop.tui.views.heat_figures import METRICS
from ddptop.tui.views.heat_figures import title as heat_title
from ddptop.tui.views.heat_state import NOW_FIGURES
from tests.names import word, words
from tests.tui.drive import Sketch
from tests.tui.fake import FakeSource, live, straggler
from tests.tui.fake_hosts import slow_rank
from tests.tui.fake_views import WantedSource
from tests.tui.gallery import lines_of
from tests.tui.screens import check, unboxed

SIZES = {"80x24": (80, 24), "30x6": (30, 6)}


def test_every_figure_has_a_formula_and_a_source() -> None:
    ranks = {column.title for column in rank_columns(Scene(straggler(), Place()))} - {"rank", "state"}
    buckets = {column.title for column in bucket_columns(Scene(straggler(), Place()))} | {
        "model",
        "group",
        "±",
    }
    tables = ((ranks, FIELDS), (FIGURES, HOST_FIELDS), (NOW_FIGURES, HEAT_FIELDS), (buckets, BUCKET_FIELDS))
    for titles, fields in tables:
        for title in titles:
            meaning = explain_figure(title, fields)
            assert meaning is not None and meaning.formula and meaning.source, title
    used, memory = explain_figure("gpu%"), explain_figure("gpumem")
    assert used is not None and memory is not None and used.formula != memory.formula
    excess = explain_figure("excess")
    assert excess is not None and excess.formula.startswith("own time of the rank − median of the own times")
    assert (excess.unit, excess.name) == ("ms", "excess_ms")


def test_of_a_figure_a_sentence_comes_before_the_formula() -> None:
    text = sketch_figures(straggler(), "f1")
    sentence = "how much longer the rank takes than the others; not longer: 0"
    in_list, below = (number for number, line in enumerate(text) if sentence in line)
    assert text[in_list].startswith("▸  excess    how much longer")
    assert text[below + 1].startswith("  own time of the rank − median")


def test_every_figure_with_a_formula_of_signs_has_a_sentence() -> None:
    """A formula in letters and signs says nothing to who has not read METRICS.md."""
    tables = (FIELDS, HOST_FIELDS, HEAT_FIELDS, BUCKET_FIELDS, PROCESS_GROUP_FIELDS)
    for meaning in (explain_figure(title, fields) for fields in tables for title in fields):
        assert meaning is not None
        is_formula = re.search(r"[−×∪]|\b[a-zA-Z] [=<−]", meaning.formula)
        assert meaning.says or not is_formula, meaning.name


def sketch_figures(frame: Frame, *keys: str) -> list[str]:
    return Sketch(FakeSource(frame), (80, 24)).press(*keys).splitlines()


def test_the_buckets_have_their_own_figures_and_no_columns_to_choose() -> None:
    sketch = Sketch(FakeSource(straggler()), (80, 24))
    text = sketch.press("3", "f1", *["down"] * 9)
    assert "▸  wait      how much of that is waiting for the last rank" in text
    assert "median over steps of the mean over ranks of W = max(0, A − s)" in text
    assert "wait  unit ms  bound ± bound_ms  name wait_ms" in text.replace("Code", "")
    assert "from ddptop/analysis/to_frame/tables.py" in text
    assert "always" not in text
    assert sketch.press("enter") == text and not sketch.place.columns
    assert "buckets" in sketch.press("escape").splitlines()[1]


@pytest.mark.parametrize("size", SIZES)
def test_figures_of_the_ranks(size: str) -> None:
    sketch = Sketch(FakeSource(straggler()), SIZES[size])
    check(f"columns-{size}", sketch.press("f1"))


def test_columns_that_repeat_themselves_give_way_until_they_differ() -> None:
    frame = straggler()
    step = frame.ranks.step.copy()
    assert {"lost", "excess", "loss"} < {*Sketch(FakeSource(frame), (80, 24)).place.sortable}
    step[2] -= 1
    in_next_step = replace(frame, ranks=replace(frame.ranks, step=step))
    assert not {"step", "ms/step"} & {*Sketch(FakeSource(in_next_step), (80, 24)).place.sortable}
    step[2] -= int(0.9 * 1000 / frame.ranks.step_ms[2])
    not_reported_yet = replace(frame, ranks=replace(frame.ranks, step=step))
    assert "step" not in Sketch(FakeSource(not_reported_yet), (80, 24)).place.sortable
    step[2] -= 5
    behind = replace(frame, ranks=replace(frame.ranks, step=step))
    assert "step" in Sketch(FakeSource(behind), (80, 24)).place.sortable


@pytest.mark.parametrize(("share", "is_shown"), [(0.2, False), (0.3, True)])
def test_step_times_that_differ_by_noise_alone_get_no_column(share: float, is_shown: bool) -> None:
    """Of two ranks that trained together on a busy machine, the medians differed by 18 % for a while."""
    frame = live()
    step_ms = frame.ranks.step_ms.copy()
    step_ms[2] *= 1 - share
    seen = Sketch(FakeSource(replace(frame, ranks=replace(frame.ranks, step_ms=step_ms))), (80, 24))
    assert ("ms/step" in seen.place.sortable) is is_shown


def test_a_column_is_shown_always_never_or_where_it_fits() -> None:
    sketch = Sketch(FakeSource(straggler()), (80, 24))
    assert "own" not in sketch.place.sortable and "loss" in sketch.place.sortable
    sketch.press("f2", "down", "enter", *["up"] * 4, "enter", "enter", "f2")
    assert sketch.place.columns == {"own": True, "loss": False}
    assert "own" in sketch.place.sortable and "loss" not in sketch.place.sortable
    sketch.press("f2", "down", "enter", "enter", "escape")
    assert sketch.place.columns == {"loss": False} and sketch.place.view == "overview"


def test_the_heat_map_and_the_hosts_have_their_own_figures() -> None:
    sketch = Sketch(WantedSource(straggler()), (80, 24))
    assert "▸  excess" in sketch.press("4", "f1")
    assert "own time ms" in sketch.press("down", "enter")
    frame = slow_rank(3, 4)
    assert len(host_index(frame.ranks.host).names) == 3
    sketch = Sketch(FakeSource(frame), (80, 24))
    assert "excess of its worst rank" in sketch.press("8", "f1")
    assert "excess" not in sketch.press("enter", "enter", "escape").splitlines()[2]
    text = Sketch(FakeSource(frame), (160, 50)).press("f1")
    assert re.search(r"^│ +clock +how far the offset of the clock may be wrong", text, re.M)


def test_a_figure_has_one_name_on_every_view() -> None:
    scene = Scene(slow_rank(3, 4), Place())
    ranks = words(FIELDS) | {"rank", "state", "vsownbest", "lastupdate", "collectives", "±"}
    hosts, buckets = words(HOST_FIELDS) | {"host", "state", ""}, words(BUCKET_FIELDS) | {"algbw"}
    views = {
        "ranks": (ranks, [column.title for column in rank_columns(scene)]),
        "ranks of --once": (ranks, [column.title for column in plain_rank_columns(scene, [0, 1])]),
        "two ranks": (
            ranks | {word(how.name) for fig, how in FIGURES_OF_RANKS if how.name.startswith(fig.called)},
            [figure_name(figure, how) for figure, how in FIGURES_OF_RANKS],
        ),
        "heat map": (
            ranks | {"wholebackward", "exposedcommunication", "gputemperature"},
            [heat_title(name, scene.frame) for name in METRICS],
        ),
        "buckets": (buckets, [column.title for column in bucket_columns(scene)]),
        "buckets of --once": (buckets, [column.title for column in bucket_columns(scene, plain=True)]),
        "hosts": (hosts, [column.title for column in host_columns(scene, figures_by_trouble(scene), 200)]),
        "hosts of the report": (hosts | {"unreachable"}, [one.title for one in report_hosts(())]),
        "buckets of the report": (buckets, [column.title for _, column in BUCKET_COLUMNS]),
    }
    others = {
        name: [title for title in titles if word(title) not in known]
        for name, (known, titles) in views.items()
    }
    assert not any(others.values()), others


def test_a_large_page_has_each_formula_below_its_figure_and_the_chosen_one_in_full() -> None:
    text = lines_of("healthy", "figures", "160x50")
    rows = [str(line) for line in text]
    at = next(row for row, line in enumerate(rows) if " ms/step " in line)
    assert "end − begin" in rows[at + 1]
    assert sum("half the difference on each" in line for line in rows) == 1, "in the explanation alone"
    assert sum("how much longer the rank takes than the others" in line for line in rows) == 1
    assert sum(not line.strip(" │") for line in rows) <= 4
    assert "end − begin" not in "".join(map(str, lines_of("healthy", "figures", "80x24")))


@pytest.mark.parametrize("page", ["3", "4", "8"])
def test_where_there_is_room_each_figure_has_its_whole_meaning(page: str) -> None:
    lines = unboxed(Sketch(FakeSource(straggler()), (160, 50)).press(page, "f1"))
    assert sum(not line.strip() for line in lines) < 10
    assert sum(" from ddptop/" in line for line in lines) > 10 and not any("…" in line for line in lines)
