"""The plain-text picture and the line a second, on a frame whose figures are known."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.figures import Ranks
from ddptop.frames.frame import Alert, Frame, Playback
from ddptop.frames.stall import Call, Trace
from ddptop.frames.verdict import verdict
from ddptop.protocol.messages import Layout, Received, Steps
from ddptop.render.phases import Breakdown
from ddptop.render.plain import MAX_RANK_ROWS, draw_frame, rank_table, watch_line
from ddptop.sources.simulation.story import Story
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.picture import picture as screen_of
from tests.made_up_run import START_NS, hello
from tests.test_live_and_replay import assert_columns_add_up
from tests.tui.troubles import ASLEEP, SENTENCE, died, hostile, mismatch, missing


def empty_ranks() -> Ranks:
    texts = {"host", "device", "state", "phase"}
    return Ranks(**{field.name: () if field.name in texts else np.empty(0) for field in fields(Ranks)})


def many_ranks(frame: Frame, total: int) -> Ranks:
    values = {}
    for field in fields(Ranks):
        value = getattr(frame.ranks, field.name)
        values[field.name] = value[:1] * total if isinstance(value, tuple) else np.full(total, value[0])
    return Ranks(**values)


def test_a_picture_says_who_is_late_and_what_it_costs(frame: Frame) -> None:
    text = draw_frame(frame, 110)
    head, *rest = text.splitlines()
    assert head.startswith("ddptop train-k7qf   ● LIVE   step 12,480   21.4/s   loss 0.4125")
    assert "rank 1" in rest[0]
    rows = [line.split() for line in rest if re.match(r"\s+[01]  ", line)]
    assert rows[1][:6] == ["1", "node0", "live", "12,481", "0.4119", "46.8"]
    assert "20.3" in rows[0]
    assert "2 ranks on node0 · gloo" in text
    assert re.search(r"^   0 ▪+█+▓+▒+≈+▄+", text, re.MULTILINE)
    assert "8.0 MB" in text
    assert "rank 1 in 96%" in text
    assert "▲ since" in text
    assert "0.6% of the step, 31 us, counted on the worst rank (budget 1.0%)" in text
    assert "bucket detail every 8 steps; 24,962 records, 0 missing" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [80, 100, 160])
def test_tables_fit_the_width(frame: Frame, width: int) -> None:
    table = rank_table(frame, width)[:3]
    assert max(map(len, table)) <= width
    for title in ("rank", "state", "step", "ms/step", "data", "fwd", "bwd", "lost", "transfer"):
        assert title in table[0].split()


@pytest.mark.parametrize("width", [1, 20])
def test_an_odd_width_loses_columns_only(frame: Frame, width: int) -> None:
    assert "rank" in draw_frame(frame, width)


def test_ascii_is_ascii_and_says_the_same(frame: Frame) -> None:
    odd = replace(frame, run=replace(frame.run, name="traîn", script="模型.py"))
    text = draw_frame(odd, 100, ascii=True)
    assert text.isascii()
    assert "* LIVE" in text
    assert "??.py" in text


def test_colour_only_where_asked(frame: Frame) -> None:
    assert "\x1b[32m● LIVE\x1b[0m" in draw_frame(frame, 100, color=True)


def test_foreign_text_cannot_move_the_cursor(frame: Frame) -> None:
    odd = replace(frame, run=replace(frame.run, name="a\x1b[2Jb", argv=("\n", "\x07")))
    assert "\x1b" not in draw_frame(odd, 100)
    assert "\x07" not in draw_frame(odd, 100)


def test_before_any_rank_has_reported(frame: Frame) -> None:
    unknown = {field.name: None for field in fields(frame.group)}
    waiting = replace(
        frame,
        run=replace(frame.run, state="waiting", backend=None, torch=None, world_size=0, recording=None),
        group=replace(frame.group, **unknown),
        ranks=empty_ranks(),
        buckets=(),
        straggler=None,
        alerts=(),
        overhead=replace(frame.overhead, measured_pct=None, us_per_step=None, detail_every=None),
        records=0,
    )
    text = draw_frame(waiting, 80)
    assert "○ WAITING" in text
    assert "no rank has reported yet" in text
    assert "nan" not in text.lower()
    assert "None" not in text
    assert "waiting" in watch_line(waiting)
    assert "waiting for ranks: none has reported yet" in watch_line(waiting)


def test_figures_of_every_step_are_shown_where_they_are_known(frame: Frame) -> None:
    assert "excess" not in draw_frame(frame, 160)
    own = {"own_ms": np.array([24.4, 44.7]), "excess_ms": np.array([-20.3, 20.3])}
    table = rank_table(replace(frame, ranks=replace(frame.ranks, **own)), 160)
    assert "excess" in table[0].split()
    assert "20.3" in table[2].split()
    assert "excess: by how much its own time is longer" in table[3]
    free = replace(frame, ranks=replace(frame.ranks, **own), group=replace(frame.group, clock_free=True))
    assert "~" not in "".join(rank_table(free, 160)), "own times compare no clocks"


def test_of_thousands_of_ranks_the_bad_ones_are_shown(frame: Frame) -> None:
    ranks = many_ranks(frame, 4096)
    ranks.lateness_ms[77] = 500.0
    ranks = replace(ranks, state=(*ranks.state[:4095], "lost"))
    table = rank_table(replace(frame, ranks=ranks), 120)
    shown = [line.split()[0] for line in table[1 : 1 + MAX_RANK_ROWS]]
    assert "77" in shown
    assert shown[-1] == "4095"
    assert table[1 + MAX_RANK_ROWS] == "and 4,032 more ranks, 0 of them not live (--json has all)"


def test_a_replay_says_where_it_stands(frame: Frame) -> None:
    playback = Playback(42.0, 90.0, 500, 0, 1200, False, 1.0, False, "last 12 bytes cut off", ())
    text = draw_frame(replace(frame, source="replay", playback=playback), 100)
    assert "REPLAY" in text
    assert "at 42 s of 1 min 30 s, steps 0 to 1,200" in text
    assert "damage: last 12 bytes cut off" in text


def test_a_failed_run_tells_its_exit_code(frame: Frame) -> None:
    failed = replace(frame, run=replace(frame.run, state="failed", exit_code=17))
    text = draw_frame(failed, 100)
    assert "✗ FAILED" in text
    assert "exit code 17" in text


def test_lines_a_second_keep_their_columns(frame: Frame) -> None:
    line = watch_line(frame)
    even = watch_line(replace(frame, straggler=None, group=replace(frame.group, step=7, steps_per_s=None)))
    assert re.match(r"\d\d:\d\d:\d\d  live      step    12,480    21.4/s  loss    0.4125", line)
    assert line.endswith("slowest rank 1 +20.3 ms data")
    assert even.endswith("slowest none")
    assert line.index("slowest") == even.index("slowest")


def test_a_line_a_second_has_the_verdict_where_that_is_not_about_a_slow_rank(frame: Frame) -> None:
    """Before the first step it says what is waited for."""
    group = replace(frame.group, step=None, step_ms_p50=None)
    starting = replace(frame, straggler=None, group=group)
    assert watch_line(starting).endswith(verdict(starting).sentence)
    assert verdict(starting).sentence.startswith("all 2 ranks are here; they have not all finished")


def test_bounds_stand_beside_what_compares_two_ranks(frame: Frame) -> None:
    ranks = replace(frame.ranks, bound_ms=np.array([0.1, 0.1]))
    bucket = replace(frame.buckets[0], bound_ms=0.02, transfer_bound_ms=0.15)
    text = draw_frame(replace(frame, ranks=ranks, buckets=(bucket,)), 120)
    assert re.search(r"20\.3 +±0\.1", text)
    assert re.search(r"1\.90 +±0\.15", text)
    assert re.search(r"20\.30 +±0\.02", text)
    assert "±" not in "".join(rank_table(frame_without_bounds(frame), 120))


def frame_without_bounds(frame: Frame) -> Frame:
    return replace(frame, ranks=replace(frame.ranks, bound_ms=np.full(2, np.nan)))


def test_clocks_that_cannot_tell_name_nobody(frame: Frame) -> None:
    group = replace(frame.group, clock_free=True)
    text = draw_frame(replace(frame, group=group, straggler=None), 120)
    rows = [line.split() for line in text.splitlines() if re.match(r"\s+[01]  ", line)]
    assert "~20.3" in rows[0]
    assert "-20.3" not in rows[0], "no lateness"
    assert "comes last" in text
    assert "rank 1 in 96%" not in text
    assert "~ the shortest collective" in text
    assert watch_line(replace(frame, group=group, straggler=None)).endswith("slowest –")


def test_a_loss_that_is_known_to_be_nan_is_no_dash(frame: Frame) -> None:
    alert = Alert("nan", "critical", 1, 57, frame.unix_s, "loss is NaN", {"ranks": 1})
    losses = np.where(np.arange(len(frame.ranks.loss)) == 1, np.nan, 0.5)
    group, ranks = replace(frame.group, loss_mean=None), replace(frame.ranks, loss=losses)
    known = replace(frame, group=group, ranks=ranks, alerts=(alert,))
    assert "   loss nan   " in draw_frame(known, 120)
    assert "loss       nan  " in watch_line(known)
    row = next(line for line in draw_frame(known, 120).splitlines() if re.match(r"\s+1  ", line))
    assert "nan" in row.split()
    infinite = replace(known, ranks=replace(ranks, loss=np.where(np.isnan(losses), np.inf, losses)))
    assert "   loss inf   " in draw_frame(infinite, 120)
    unknown = replace(known, alerts=())
    assert "nan" not in draw_frame(unknown, 120), "no loss was read"


def test_an_alert_has_an_age(frame: Frame) -> None:
    alerts = (Alert("nan", "critical", 1, 57, frame.unix_s - 250, "loss of rank 1 is NaN since step 57"),)
    assert re.search(
        r"■ since \d\d:\d\d:\d\d, 4 min: loss of rank 1", draw_frame(replace(frame, alerts=alerts), 100)
    )


def test_a_stall_has_the_missing_rank_s_stack() -> None:
    text = draw_frame(missing(), 100)
    assert f"STALLED 17 s · {SENTENCE}" in text
    assert text.count(SENTENCE) == 1, "said once is enough"
    assert "■ 12:31:05 no progress" in text
    assert re.search(r"train\.py:88 +tokenize +while True: self\.lock\.acquire\(\)", text)
    assert re.search(r"^ +3 +alive .*all_reduce of \[\[1000\]\] Float +train\.py:57 train_step", text, re.M)
    assert "loss.backward()" not in text, "those who wait need no stack of their own"
    line = watch_line(missing())
    assert line.endswith(f"STALLED 17 s · {SENTENCE}")
    assert "37.6/s" not in text + line, "it does not move"


def test_both_sides_of_a_mismatch_have_their_stacks() -> None:
    text = draw_frame(mismatch(), 100)
    assert "dist.broadcast(scale, src=0)" in text
    assert "loss.backward()" in text


def test_a_death_has_its_traceback() -> None:
    text = draw_frame(died(), 100)
    assert "rank 2 failed: ValueError: shard 7 is empty (exit code 1)" in text
    assert 'raise ValueError("shard 7 is empty")' in text
    assert "ranks 0, 1 and 3 were ended by SIGTERM" in text
    assert watch_line(died()).endswith(verdict(died()).sentence)


def test_a_deep_stack_is_cut_to_what_a_mail_bears() -> None:
    frame = missing()
    assert frame.stall is not None
    deep = tuple(Call("/home/ada/lm/train.py", line, "recurse", "recurse()") for line in range(1, 900))
    told = replace(frame.stall.positions[0], traces=(Trace("MainThread", True, (*ASLEEP, *deep)),))
    text = draw_frame(replace(frame, stall=replace(frame.stall, positions=(told,))), 100)
    assert text.count("recurse()") == 12 - 1 - len(ASLEEP)
    assert "... and the calls around it" in text


def test_foreign_code_cannot_move_the_cursor() -> None:
    text = draw_frame(hostile(), 100) + watch_line(hostile())
    assert not {letter for letter in text if letter != "\n" and not letter.isprintable()}
    assert draw_frame(hostile(), 100, ascii=True).isascii()


@pytest.mark.parametrize("step", [15, 60, 110])
def test_the_columns_of_every_rank_add_up_to_its_step(step: int) -> None:
    """Of simulated ranks: while nothing is the matter, while one is late, and with a window of both."""
    assert_columns_add_up(draw_frame(simulated_frame(4, step), 160, False, False), ranks=4)


def test_table_bars_and_screen_have_the_same_numbers() -> None:
    frame = simulated_frame(4, 40)
    table = draw_frame(frame, 160, False, False)
    screen = [str(line) for line in screen_of(Scene(frame, Place()), 200, 40).lines]
    rows = [
        [line.strip("│ ").split() for line in lines] for lines in (table.splitlines(), screen)
    ]  # in a box
    once, shown = (next(row for row in of_one if row[:1] == ["1"] and "live" in row) for of_one in rows)
    parts = [f"{float(ms):.1f}" for ms in Breakdown(frame.ranks).ms[:7, 1]]
    assert any(once[at : at + 7] == parts for at in range(len(once)))
    assert Counter(parts) <= Counter(shown), "in an order of its own"


def simulated_frame(world: int, step: int) -> Frame:
    """The group after this step of the simulation's story, told row by row."""
    story, reducer = Story(world, 2.0), Reducer()
    base_ns = START_NS
    for rank in range(world):
        said = (hello(rank, world), Layout(1, story.buckets))
        for number, message in enumerate(said):
            reducer.feed(Received(base_ns, rank, 1000 + rank, number, message))
    for at in range(step + 1):
        wall_us, rows = story.make_rows(at, 0)
        end_ns = base_ns + 1000 * wall_us
        for rank, row in enumerate(rows):
            reducer.feed(Received(end_ns, rank, 1000 + rank, 2 + at, Steps(1, at, base_ns, (row,))))
        base_ns = end_ns
    return reducer.frame(base_ns)


@pytest.mark.parametrize(
    ("message", "age_s", "told"),
    [
        ("recording stopped at 5 bytes: No space left on device", 600, True),
        ("recording goes on: 7 step records are missing", 5, True),
        ("recording goes on: 7 step records are missing", 600, False),
    ],
)
def test_a_line_says_what_befalls_the_recording(frame: Frame, message: str, age_s: int, told: bool) -> None:
    alert = Alert("recording", "warning", None, None, frame.unix_s - age_s, message)
    assert watch_line(replace(frame, alerts=(alert,))).endswith(message) is told


def test_a_line_says_what_befalls_the_recording_beside_a_verdict(frame: Frame) -> None:
    message = "recording stopped at 5 bytes: No space left on device"
    alert = Alert("recording", "warning", None, None, frame.unix_s, message)
    starting = replace(frame, straggler=None, group=replace(frame.group, step=None, step_ms_p50=None))
    line = watch_line(replace(starting, alerts=(alert,)))
    assert verdict(starting).sentence in line and message in line
