"""One moment has one verdict, and no cost is above what the arrivals explain."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.straggler.cost import late_since
from ddptop.cli.commands import mcp
from ddptop.cli.main import main
from ddptop.export.metrics import metric_families
from ddptop.frames.detail import TimelineRequest
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import lost_to_skew, shown_cost_pct, verdict
from ddptop.protocol.messages import Event
from ddptop.recording.reader import Recording
from ddptop.recording.writer import Writer
from ddptop.render.context import RenderContext
from ddptop.render.plain import draw_frame, watch_line
from ddptop.report.check import figures_of_report
from ddptop.sources.player import Player
from tests.made_up_run import GIB, NS, START_NS, World, collect, feed_together, report_from_messages

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame

LATE = 174_000


def frame_of(reducer: Reducer, world: World, want: str = "") -> Frame:
    return reducer.frame(START_NS + world.now_us * 1000 + NS // 10, want=want)


def begun(world: World) -> Reducer:
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    return reducer


def agree(frame: Frame) -> None:
    """Every outlet tells of the same rank, and by the same figures."""
    said, shown = verdict(frame), snapshot(frame)
    late = frame.straggler or frame.suspect
    assert shown["verdict"]["sentence"] == said.sentence
    line = watch_line(frame)
    if len(frame.ranks.state) < 100:
        assert said.line() in draw_frame(frame, 160).splitlines()[1]
    if late is None:
        assert "slowest rank" not in line
        assert shown["straggler"] is shown["suspect"] is None
    else:
        assert f"slowest rank {late.rank} " in line
        assert f"rank {late.rank} " in said.sentence
        assert (shown["straggler"] or shown["suspect"])["rank"] == late.rank
    group = frame.group
    if group.no_straggler_ms is not None and said.kind in ("straggler", "suspect", "uneven"):
        cost = 100 * (1 - group.no_straggler_ms / group.step_ms_p50)
        assert any(f"{cost:{digits}}%" in said.sentence for digits in (".0f", ".1f"))
        assert f"median step {group.step_ms_p50:,.1f} ms" in said.detail
        assert f"{group.no_straggler_ms:,.1f} without" in said.detail
    alerts = [alert.rank for alert in frame.alerts if alert.kind == "straggler"]
    assert alerts == ([frame.straggler.rank] if frame.straggler else [])


@pytest.mark.parametrize(
    ("size", "rank", "every"), [pytest.param(1024, 341, 1, marks=pytest.mark.slow), (4, 2, 1), (2, 1, 8)]
)
def test_every_outlet_has_one_verdict_over_onset_episode_and_end(size: int, rank: int, every: int) -> None:
    """Rank 341 of 1,024 becomes 174 ms late, for a while."""
    world = World(size, detail_every=every)
    reducer = begun(world)
    look, even = (8, 16) if size > 100 else (4 if every == 1 else 16, 64)
    episode = 64 * every if size < 100 else 24
    kinds = []
    fed = [world.run(), *World(size).introduce()]
    for late, steps in ((0, even), (LATE, episode), (0, even)):
        world.delays = {(rank, "data"): late} if late else {}
        for _ in range(0, steps, look):
            fed += (messages := [*world.steps(look)])
            feed_together(reducer, messages)
            found = frame_of(reducer, world, str(TimelineRequest()))
            agree(found)
            if late and (found.straggler or found.suspect):
                assert found.timeline is not None
                assert found.timeline.last == (found.straggler or found.suspect).rank == rank
            kinds.append((late, verdict(found).kind))
    before = [kind for late, kind in kinds[: even // look]]
    assert set(before[8 * every // look :]) <= {"even"}
    during = [kind for late, kind in kinds if late]
    needs = 12 if size == 2 else 8 if size == 4 else 4
    assert set(during[-(-needs * every // look) + 1 :]) <= {"suspect", "straggler"}, during
    assert during.index("suspect") <= needs * every // look
    if size < 100:
        told = report_from_messages([*fed, world.run("finished", 0)])
        assert [one.rank for one in told.stragglers] == [rank]
        assert told.verdict[0].sentence.startswith(f"rank {rank} was slow: data loading")


def test_the_window_follows_the_onset() -> None:
    """What is said of a rank that has just become slow is said of the steps since, cost and step time."""
    world = World(64)
    reducer = begun(world)
    feed_together(reducer, world.steps(120))
    world.delays = {(21, "data"): LATE}
    feed_together(reducer, world.steps(12))
    found = frame_of(reducer, world, str(TimelineRequest()))
    assert found.suspect is not None
    assert (found.suspect.rank, found.group.window_steps) == (21, 12)
    assert found.group.step_ms_p50 == pytest.approx(188.0)
    assert found.group.no_straggler_ms == pytest.approx(14.0)
    said = verdict(found)
    assert (said.kind, said.sign) == ("suspect", "busy")
    assert said.sentence.endswith("· waiting costs 93%")
    assert said.detail.startswith("median step 188.0 ms over the last 12 steps · 14.0 without waiting")
    one_step = replace(found, group=replace(found.group, window_steps=1))
    assert verdict(one_step).detail.startswith("median step 188.0 ms over the last 1 step ·")
    feed_together(reducer, world.steps(52))
    found = frame_of(reducer, world)
    assert found.straggler is not None
    assert found.straggler.cost_pct == pytest.approx(92.55, abs=0.1)
    assert "over the last 64 steps · 14.0 without the slow rank" in verdict(found).detail


def test_of_uneven_work_no_outlet_blames_a_rank() -> None:
    """Ranks take turns because their batches differ: sentence, alert, events, table and JSON agree."""
    world = World(4, own=True)
    reducer = begun(world)
    rng = np.random.default_rng(5)
    for _ in range(128):
        world.elements = {rank: int(size) for rank, size in enumerate(rng.integers(200, 2000, 4))}
        world.delays = {(rank, "forward"): 10 * size for rank, size in world.elements.items()}
        feed_together(reducer, world.steps(1))
    found = frame_of(reducer, world, str(TimelineRequest()))
    assert found.straggler is not None and found.straggler.cause == "uneven_work"
    shown, said = snapshot(found), verdict(found)
    sentences = [said.sentence, said.detail, watch_line(found), *(alert.message for alert in found.alerts)]
    sentences += [event.message for event in found.events if event.kind.startswith("straggler")]
    assert not [text for text in sentences if re.search(r"ranks? \d", text)], sentences
    assert "straggler" in {alert.kind for alert in found.alerts} & {event.kind for event in found.events}
    assert not [
        one for one in (*found.alerts, *found.events) if one.kind == "straggler" and one.rank is not None
    ]
    assert (shown["straggler"]["rank"], shown["straggler"]["ranks"]) == (None, [])
    assert not RenderContext(found).stragglers


def test_onset_needs_a_clear_change() -> None:
    rng = np.random.default_rng(3)
    assert late_since(np.r_[rng.normal(0, 1, 60), rng.normal(20, 1, 40)]) == 60
    assert late_since(np.r_[rng.normal(0, 1, 60), 20.0 * (rng.random(40) < 0.9)]) in range(58, 64)
    assert late_since(20.0 * (rng.random(100) < 0.6)) == 0
    assert late_since(rng.normal(20, 1, 100)) == 0
    assert late_since(np.r_[rng.normal(20, 1, 60), rng.normal(0, 0.1, 40)]) == 0
    assert late_since(np.r_[np.zeros(97), 20.0, 20.0, 20.0]) == 0, "three steps are no episode"
    assert late_since(np.zeros(0)) == 0


def test_two_equal_ranks_with_jitter_are_no_warning() -> None:
    world = World(2)
    reducer = begun(world)
    rng = np.random.default_rng(7)
    signs = []
    for _ in range(60):
        for _ in range(8):
            world.delays = {(rank, "forward"): int(us) for rank, us in enumerate(rng.exponential(12_000, 2))}
            feed_together(reducer, world.steps(1))
        found = frame_of(reducer, world)
        agree(found)
        signs.append((verdict(found).kind, verdict(found).sign))
    assert ("uneven", "good") in signs
    assert not {sign for _, sign in signs} & {"warning", "critical", "doubt"}


class Stretch(NamedTuple):
    """Steps during which nothing changes."""

    steps: int
    rank: int
    late_us: int
    slower_us: int
    """All ranks' forward."""
    every: int


stretches = st.lists(
    st.builds(
        Stretch,
        st.integers(5, 110),
        st.integers(0, 3),
        st.sampled_from((0, 0, 500, 4_000, 30_000, 200_000)),
        st.sampled_from((0, 20_000, 120_000)),
        st.sampled_from((1, 2, 4, 8, 16, 32, 64)),
    ),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=8,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
)
@given(story=stretches, seed=st.integers(0, 1000))
def test_no_cost_is_above_what_the_arrivals_explain(story: list[Stretch], seed: int) -> None:
    """Delays come and go, step times change, detail is sampled: whatever is said of a cost stays possible."""
    world = World(4)
    reducer = begun(world)
    rng = np.random.default_rng(seed)
    fed = [world.run(), *World(4).introduce()]
    walls: list[int] = []
    skews: list[float] = []
    for stretch in story:
        world.detail_every = stretch.every
        for step in range(stretch.steps):
            jitter = rng.exponential(300, 4).astype(int)
            world.delays = {(rank, "forward"): int(us) + stretch.slower_us for rank, us in enumerate(jitter)}
            world.delays[stretch.rank, "data"] = stretch.late_us
            arrivals = [
                world.delays[rank, "forward"] + world.delays.get((rank, "data"), 0) for rank in range(4)
            ]
            messages = [*world.steps(1)]
            feed_together(reducer, messages)
            fed += messages
            walls.append(max(received.message.rows[0].wall_us for received in messages))
            skews.append((max(arrivals) - sorted(arrivals)[-2]) / walls[-1])
            if step % 13 == 0:
                _explained(frame_of(reducer, world), walls, skews)
    _adds_up(report_from_messages([*fed, world.run("finished", 0)]), walls)


def _explained(frame: Frame, walls: list[int], skews: list[float]) -> None:
    group = frame.group
    agree(frame)
    step_ms, even_ms, hidden_ms, both_ms = (
        group.step_ms_p50,
        group.no_straggler_ms,
        group.no_exposed_comm_ms,
        group.both_ms,
    )
    assert step_ms is not None
    what_if = json.loads(json.dumps(snapshot(frame)))["group"]["what_if"]
    assert all(value is None or value > 0 for value in what_if.values()), "unknown is null, never 0"
    if even_ms is None or both_ms is None or hidden_ms is None:
        return
    window = slice(-max(group.window_steps, 100), None)
    assert 1 - even_ms / step_ms <= max(skews[window]) + 1e-3
    assert 0 < both_ms <= min(even_ms, hidden_ms) + 1e-6
    assert max(even_ms, hidden_ms) <= step_ms + 1e-6
    if frame.straggler is not None and frame.straggler.pattern != "intermittent":
        assert frame.straggler.cost_pct == pytest.approx(100 * (1 - even_ms / step_ms), abs=1e-6)


def _adds_up(found: object, walls: list[int]) -> None:
    cost, communication = found.cost, found.communication  # type: ignore[attr-defined]  # a Report
    assert cost.step_s == pytest.approx(sum(walls) / 1e6, rel=0.02)
    assert sum(span.lost_s or 0.0 for span in found.spans) == pytest.approx(cost.flagged_s or 0.0)  # type: ignore[attr-defined]
    assert sum(one.lost_s for one in found.stragglers) == pytest.approx(cost.flagged_s or 0.0)  # type: ignore[attr-defined]
    if cost.uneven_pct is None:
        assert communication.no_straggler_ms is None
        return
    assert 0 <= (cost.flagged_s or 0.0) <= cost.uneven_s + 1e-9 <= cost.step_s
    gain_pct = 100 * (1 - communication.no_straggler_ms / communication.step_ms)
    assert gain_pct == pytest.approx(cost.uneven_pct, abs=1e-6)
    assert 0 < communication.both_ms <= communication.no_straggler_ms + 1e-9


@pytest.mark.parametrize("place", ["after_optimizer", "optimizer", "data"])
def test_what_was_waited_is_one_figure_in_every_outlet(place: str) -> None:
    world, fed = World(3, own=True), []
    reducer = begun(world)
    fed += [world.run(), *World(3, own=True).introduce()]
    for step in range(160):
        world.delays = {(1, "forward"): 3_000} | ({(2, place): 3_000_000} if step % 50 == 49 else {})
        fed += (messages := [*world.steps(1)])
        feed_together(reducer, messages)
    fed.append(world.run("finished", 0))
    feed_together(reducer, fed[-1:])
    frame = frame_of(reducer, world)
    report = report_from_messages(fed)
    assert frame.ledger is not None and report.ledger is not None
    cost = frame.ledger.run
    assert cost.lost_pct is not None
    assert snapshot(frame)["ledger"]["lost_pct"] == pytest.approx(cost.lost_pct, abs=0.01)
    metrics = {family.name: family for family in metric_families(frame)}
    assert metrics["lost_to_skew"].samples[0].value == pytest.approx(cost.lost_pct / 100)
    assert report.ledger.run.rank_seconds == pytest.approx(cost.rank_seconds)
    assert report.cost.uneven_s == pytest.approx(cost.rank_seconds / 3)
    assert figures_of_report(report)["lost_pct"] == report.ledger.run.lost_pct
    (slow,) = [summary for summary in report.stragglers if summary.rare is not None]
    first = cost.waited_for[0]
    assert (first.rank, first.place) == (slow.rank, slow.place or slow.cause) == (2, place)
    assert slow.lost_s <= first.rank_seconds
    assert frame.straggler is not None
    assert slow.cost_pct == pytest.approx(frame.straggler.cost_pct, rel=0.01)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ranks, of which rank 2 saves 3 s every 50 steps and rank 1 is a little slow in each."""
    path = tmp_path_factory.mktemp("one") / "ddptop" / "slow.ddptop"
    path.parent.mkdir(mode=0o700)
    world, reducer, writer = World(3, own=True), Reducer(), Writer(path, limit_bytes=GIB)
    messages = [world.run(), *world.introduce()]
    for step in range(160):
        world.delays = {(1, "forward"): 3_000} | (
            {(2, "after_optimizer"): 3_000_000} if step % 50 == 49 else {}
        )
        if step % 50 == 49:
            saved = Event(
                "saved", world.host_ns("node0", world.now_us + 2_990_000), 2, step, {"ns": 29 * 10**8}
            )
            messages.append(world.received(2, saved, world.now_us + 2_990_000))
        messages += world.steps(1)
    collect(writer, reducer, [*messages, world.run("finished", 0)])
    writer.close()
    return path


def test_every_command_has_one_cost_rank_and_place(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*words: str) -> str:
        assert main([*words]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    path = str(recorded)
    shown = json.loads(said("replay", path, "--json", "--at", "159"))
    ledger, first = shown["ledger"], shown["ledger"]["waited_for"][0]
    who, place, seconds, lost_pct = first["rank"], first["place"], first["seconds"], ledger["lost_pct"]
    assert (who, place, seconds) == (2, "saving", pytest.approx(18.0, rel=0.01))
    assert (shown["straggler"]["rank"], shown["straggler"]["place"]) == (who, place)
    cost = f"{shown['straggler']['cost_pct']:.0f}%"

    words = "rank 2 is slow in 1 of 53 steps: 3.0 s saving checkpoints"
    once = said("replay", path, "--once", "--at", "159")
    assert words in once and f"costs {cost} of step time" in once, once

    report = json.loads(said("report", path, "--json"))
    assert report["ledger"]["lost_pct"] == pytest.approx(lost_pct, abs=0.06)
    (slow,) = [slow for slow in report["stragglers"] if slow["rare"] is not None]
    assert (slow["rank"], slow["place"]) == (who, place)
    assert f"{slow['cost_pct']:.0f}%" == cost
    suggested = report["advice"][0]
    assert (suggested["kind"], suggested["figures"]["rank"], suggested["figures"]["place"]) == (
        "one_rank_work",
        who,
        place,
    )
    lost, given_back_s = f"{lost_pct:.0f}%", seconds / 2
    text = said("report", path)
    said("report", path, "--html", str(tmp_path / "page.html"))
    for told in (text, html.unescape((tmp_path / "page.html").read_text(encoding="utf-8"))):
        told = " ".join(told.split())
        assert f"{lost} of the ranks' time was lost to waiting for each other" in told
        assert (
            f"rank 2 was slow in 1 of 53 steps: 3.0 s saving checkpoints · cost {given_back_s:.1f} s" in told
        )
        assert f"{cost} of the run" in told and f"without rank 2 saving checkpoints ({cost} less)" in told

    tables: dict[str, list[dict[str, object]]] = {"ledger": [], "waited_for": []}
    said("export", path, "--to", "json", "-o", str(tmp_path / "tables.jsonl"))
    for line in (tmp_path / "tables.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        tables.get(row["table"], []).append(row)
    waiting = sum(row["seconds"] for row in tables["ledger"] if row["class"] == "waiting")
    whole = sum(row["seconds"] for row in tables["ledger"])
    assert 100 * waiting / whole == pytest.approx(lost_pct, abs=0.06)
    row = tables["waited_for"][0]
    assert (row["rank"], row["place"], row["rank_seconds"]) == (who, place, pytest.approx(seconds, abs=0.01))
    assert sum(row["rank_seconds"] for row in tables["waited_for"]) == pytest.approx(waiting, rel=1e-6)

    checked = json.loads(said("check", path, "--against", path, "--json"))
    (of_check,) = [check for check in checked["checks"] if check["figure"] == "lost_pct"]
    assert of_check["new"] == pytest.approx(lost_pct, abs=0.06)
    (of_check,) = [check for check in checked["checks"] if check["figure"] == "straggler_pct"]
    assert of_check["new"] >= slow["cost_pct"] - 0.06

    with Recording.open(recorded) as recording:
        player = Player(recording, next_ns=recording.end_ns)
        player.go_to(recording.end_ns)
        families = {family.name: family.samples for family in metric_families(player.make_frame())}
    assert 100 * families["lost_to_skew"][0].value == pytest.approx(lost_pct, abs=0.06)
    sample = families["waited_for"][0]
    assert (sample.labels, sample.value) == (
        {"rank": "2", "place": place},
        pytest.approx(seconds, abs=0.01),
    )

    monkeypatch.setenv("XDG_STATE_HOME", str(recorded.parents[1]))
    answer = json.loads(mcp.snapshot("slow"))["data"]
    assert answer["ledger"]["lost_pct"] == lost_pct
    first = answer["ledger"]["waited_for"][0]
    assert (first["rank"], first["place"], first["seconds"]) == (who, place, seconds)
    assert (answer["straggler"]["rank"], answer["straggler"]["place"]) == (who, place)
    assert json.loads(mcp.report("slow"))["data"]["ledger"]["lost_pct"] == pytest.approx(lost_pct, abs=0.06)


def test_of_a_rank_that_is_no_longer_slow_the_sums_tell_what_is_lost() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    for late in (0, 9_000, 0):
        world.delays = {(1, "data"): late} if late else {}
        feed_together(reducer, world.steps(150 if late else 80))
    frame = frame_of(reducer, world)
    said, summed = verdict(frame), lost_to_skew(frame)
    assert summed is not None and said.kind == "recovered"
    assert summed[0] == pytest.approx(frame.ledger.run.lost_pct, rel=0.02)
    assert f"{summed[0]:.0f}%" in said.sentence and "of step time" in said.sentence
    assert shown_cost_pct(frame) == summed[0] > 5, "the bar beside it shows the same"
