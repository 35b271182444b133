"""Wide screens: the panels beside and below what a view lists."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from ddptop.frames.frame import Frame, GpuFacts, LoggedEvent
from ddptop.tui.keys import Action, Do
from tests.frames.ledgers import checkpoints, ledger, waited
from tests.tui.drive import Sketch
from tests.tui.fake import NOW, FakeSource, straggler
from tests.tui.fake_hosts import slow_rank
from tests.tui.fake_views import WantedSource, on_hosts
from tests.tui.gallery import WORLDS, lines_of
from tests.tui.troubles import missing

WIDE = (160, 50)


def titles(person: Sketch) -> set[tuple[int, int]]:
    """Where the titles of panels begin: lines and cells."""
    lines = person.text().splitlines()
    return {
        (row, hit.start())
        for row, line in enumerate(lines)
        for hit in re.finditer(r"(?:^|[┬┼├┌ ])── (?=\w)", line)
    }


def gpu_facts(rank: int, throttle: str) -> GpuFacts:
    """The GPU of a rank."""
    return GpuFacts(
        util_pct=96.0, mem_bytes=int(61e9), mem_total_bytes=int(81e9), temp_c=64.0, power_w=612.0,
        clock_mhz=1_080, max_clock_mhz=1_980, throttle=throttle, pcie_tx_bytes_s=None, pcie_rx_bytes_s=None,
        nvlink_tx_bytes=None, nvlink_rx_bytes=None, rank=rank, allocated_bytes=None, reserved_bytes=None,
        peak_bytes=None, retries=None,
    )  # fmt: skip


def test_what_is_known_of_an_event_stands_beside_the_list() -> None:
    ledger = checkpoints()
    waited_for = tuple(replace(row, rank=1) for row in ledger.run.waited_for)
    frame = replace(straggler(), ledger=replace(ledger, run=replace(ledger.run, waited_for=waited_for)))
    person = Sketch(FakeSource(frame), WIDE)
    text = person.press("5")
    assert "rank 1 takes 20.3 ±0.1 ms longer in data loading · 96% of steps" in text
    assert re.search(r"data +21\.5 +1\.3 +\+20\.2", text), "beside the other ranks"
    assert re.search(r"wait +20\.3 +0\.2 +\+20\.1", text), "after and before it became slow"
    assert "try: speed up the data loading of rank 1" in text
    assert "rank-seconds" in text
    rules = titles(person)
    text = person.press("down", "down")
    assert "rank 1 takes" not in text and "9 min ago" in text
    assert titles(person) == rules, "nothing moves with the cursor"


def test_a_click_beside_the_list_leaves_the_cursor_alone() -> None:
    person = Sketch(FakeSource(straggler()), WIDE)
    person.press("5")
    rows = [line for line in person.lines if line.target is not None]
    assert len(rows) == 3
    for line in rows:
        assert any(begin <= 120 < end and action is None for begin, end, action in line.spots)
        assert not any(begin <= 10 < end for begin, end, _ in line.spots)


def test_what_lasts_and_what_is_over_are_told_apart() -> None:
    frame = missing()
    earlier = LoggedEvent(NOW - 300, "straggler", "warning", 2, 4_000, "rank 2 became slow")
    over = LoggedEvent(NOW - 260, "straggler_end", "info", 2, 4_900, "rank 2 is no longer slow")
    frame = replace(frame, events=(frame.events[0], earlier, over, *frame.events[1:]))
    person = Sketch(FakeSource(frame), WIDE)
    text = person.press("5")
    assert "while True: self.lock.acquire()" in text and "try: find out what holds rank 1" in text
    for _ in range(4):
        text = person.press("down")
        if "over after 40 s" in text:
            break
    assert "over after 40 s" in text and "self.lock.acquire" not in text and "rank 2 now" in text


def test_below_the_lanes_is_what_each_rank_did_itself_in_the_step() -> None:
    person = Sketch(WantedSource(straggler()), WIDE)
    text = person.press("2")
    assert re.search(r"▲ +1 +21\.5 +7\.1 +14\.0 +0\.7 +0\.4 +43\.7 +\+20\.2", text), "beside the other lanes"
    assert "rank 1: this step beside its median" in text and "2 buckets, recent medians" in text
    bars = [line for line in person.text().splitlines() if line.startswith("       ▪▪")]
    assert len(bars) >= 4, "few lanes have tall bars"
    rules = titles(person)
    text = person.press("down")
    assert "rank 2: this step beside its median" in text and titles(person) == rules
    spots = [spot for line in person.lines for spot in line.spots]
    assert {spot[2] for spot in spots if isinstance(spot[2], Action)} >= {Do.RANK(rank) for rank in range(4)}


def test_many_lanes_leave_room_for_the_panels() -> None:
    person = Sketch(WantedSource(straggler(64)), WIDE)
    text = person.press("2")
    assert re.search(r"and 7 more lanes: 23\.3 to 23\.4 ms", text)
    assert len(re.findall(r"^.r\d+", text, re.MULTILINE)) == 16, "all lanes are there"


def test_a_stuck_step_has_the_stack_of_the_rank_that_it_is_due_to() -> None:
    text = Sketch(WantedSource(missing()), WIDE).press("2")
    assert "while True: self.lock.acquire()" in text and "steps before it" in text
    assert "■ stalled" in text and text.count("○ waiting") == 3


def test_beside_the_heat_map_is_its_cell_in_words_and_how_the_values_are_distributed() -> None:
    person = Sketch(WantedSource(straggler()), WIDE)
    text = person.press("4")
    assert "rank 1 in step 12,480" in text and "worst of 4 cells, median 0.1" in text
    counts = [int(number) for number in re.findall(r"(?:≤|>)\d+(?: ms)? +(\d+) +[\d.]+%", text)]
    grid = person.place.heat.grid
    assert grid is not None
    unknown = int(re.findall(r"not known +(\d+)", text)[0])
    assert len(counts) == 5 and sum(counts) + unknown == grid.rows * len(grid.order)
    assert counts[-1] == len(grid.order), "rank 1 is slow in every step"
    assert re.search(r"wait ms +0\.0 +20\.3", text), "its other metrics beside the median"
    rules = titles(person)
    text = person.press("left", "up")
    assert "rank 0 in steps 12,478 to 12,479" in text and titles(person) == rules
    assert "not known" not in "\n".join(text.splitlines()[-4:]), "the distribution is the legend"


def test_the_cells_of_few_hosts_fill_a_wide_page_and_have_their_values_in_them() -> None:
    person = Sketch(WantedSource(on_hosts(straggler(12), 4)), WIDE)
    text = person.press("4", "v")
    row = next(line for line in text.splitlines() if "20.3" in line)
    assert row.index("20.3") > 30
    grid = person.place.heat.grid
    assert grid is not None and grid.cell > 20 and grid.tall > 10
    x, y = grid.left + 2 * grid.cell + grid.cell // 2, 1 + grid.top + grid.tall + grid.tall // 2
    assert person.view.click(person, x, y, twice=False)
    assert person.place.heat.rank() == 6 and "rank 6 now" in person.text()
    assert not person.view.click(person, 150, y, twice=False), "the panels are no cells"


def test_below_the_hosts_are_the_ranks_of_the_chosen_one_its_usage_and_what_they_lost() -> None:
    frame = slow_rank(3, 4)
    waits = [60.0] * 12
    waits[6] = 0.0
    told = ledger(
        waited_for=(waited(6, "data", 660.0, steps=578, each_s=0.1),),
        elapsed_s=200.0, waiting=waits, forward=[100.0] * 12, data=[0.0] * 6 + [60.0] + [0.0] * 5,
    )  # fmt: skip
    gpus = tuple(gpu_facts(rank, "power cap" if rank == 6 else "") for rank in range(12))
    person = Sketch(FakeSource(replace(frame, ledger=told, gpus=gpus)), WIDE)
    text = person.press("8")
    assert "ranks of gpu-001.cluster.local" in text and "rank 6, its worst, beside other hosts" in text
    assert re.search(r"data +21\.5 +1\.3 +\+20\.2", text)
    assert "72% of 96 cores" in text and "power cap" in text
    assert "others waited 660.0 rank-seconds for rank 6" in text
    assert re.search(r"data loading +8% +0%", text), "of its four ranks, and of the others"
    ranks = {spot[2] for line in person.lines for spot in line.spots if isinstance(spot[2], Action)}
    assert {Do.RANK(rank) for rank in range(4, 8)} <= ranks
    rules = titles(person)
    text = person.press("down")
    assert "ranks of gpu-000.cluster.local" in text and "others waited" not in text
    assert titles(person) == rules


@pytest.mark.parametrize("view", ["2", "4", "5", "8"])
def test_a_low_or_narrow_screen_has_no_panels(view: str) -> None:
    for size in ((160, 30), (117, 50)):
        person = Sketch(WantedSource(slow_rank(3, 4)), size)
        assert not any(sign in person.press(view) for sign in "┬┼├┤┌")


@pytest.mark.parametrize(
    "world",
    [
        *("stall", "dead", "finished", "waiting", "replay"),
        pytest.param("4,096 ranks", marks=pytest.mark.slow),
    ],
)
def test_panels_use_a_wide_page_to_its_foot(world: str) -> None:
    for view in ("2", "4", "5", "8"):
        person = Sketch(WantedSource(WORLDS[world]()), (200, 60))
        lines = person.press(view).splitlines()
        assert len(lines) == 60 and max(line.width for line in person.lines) <= 200
        if view == "8" or world == "waiting":
            continue
        below = lines[40:56]
        n_used = sum(len(re.sub(r"[│\s]", "", line)) > 8 for line in below)
        assert n_used >= len(below) - 2, (view, "\n".join(below))


def test_a_lane_of_a_rank_that_the_run_has_not_and_a_value_of_no_rank_are_drawn() -> None:
    class Contradictory(WantedSource):
        def latest(self) -> Frame:
            frame = super().latest()
            shown, heat = frame.timeline, frame.heat
            if shown is not None:
                lanes = tuple(replace(lane, rank=lane.rank + 1_000) for lane in shown.lanes)
                shown = replace(shown, lanes=lanes)
            if heat is not None:
                heat = replace(heat, rank=np.full_like(heat.rank, np.nan))
            return replace(frame, timeline=shown, heat=heat)

    person = Sketch(Contradictory(straggler()), WIDE)
    assert "its usual step is not known" in person.press("2")
    assert "over these steps" in person.press("4")


@pytest.mark.parametrize(
    ("world", "view", "said", "unsaid"),
    [
        ("waiting", "bill", "No step is complete yet.", ""),
        ("waiting", "stall", "No step is complete yet.", "parts of a step"),
        ("start of 64", "stall", "6 ranks have the same stack", "of 0 ranks"),
        ("64 ranks", "compare", "waits 20.3 for 1", ""),
        ("waiting", "compare", "rank 3", "in no bucket"),
        ("64 ranks", "rank", "rank 1 on node0 takes 20.3 ±0.1 ms longer", "ranks by host"),
        ("3 hosts", "heat", "worst of 12 cells", ""),
        ("without DDP", "overview", "costs 43%", "without the slow rank"),
        ("without DDP", "overview", "no DDP model (FSDP2): no bucket is timed", "nothing to draw yet"),
        ("without DDP", "buckets", "ms now", ""),
        ("without DDP", "rank", "at 1 collective a step of the default group", ""),
        ("without DDP", "timeline", "no DDP model (FSDP2): phases only", "one step in"),
        ("without DDP", "run", "process group mesh_dp_shard: 2 ranks over gloo", "buckets yet"),
    ],
)
def test_pages_say_what_is_so(world: str, view: str, said: str, unsaid: str) -> None:
    text = "\n".join(map(str, lines_of(world, view, "160x50")))
    assert said in text
    assert not unsaid or unsaid not in text


@pytest.mark.parametrize("view", ["run", "stall"])
def test_the_box_ends_with_one_rule(view: str) -> None:
    *_, last, rule = [str(line) for line in lines_of("healthy", view, "160x50")][:-2]
    assert rule.startswith("└─") and last == f"│{' ' * 158}│"
