"""A source of frozen frames, and the frames: what a screen may meet, with figures that are known."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np

from ddptop.frames.activity import ActivitySpan, EpochProgress, LongActivity
from ddptop.frames.figures import Ranks
from ddptop.frames.frame import (
    Alert,
    BucketFigures,
    Frame,
    GroupFigures,
    LoggedEvent,
    Playback,
    RunInfo,
    Straggler,
)
from ddptop.frames.history import BIN_COLUMNS, History, RankMinutes, RankSteps
from ddptop.frames.overhead import Overhead
from ddptop.frames.process_groups import ProcessGroupFigures
from ddptop.sources.live import aged_frame
from tests.frames.ledgers import ledger, waited

NOW = 1_760_013_067.0
"""2025-10-09 12:31:07 UTC."""

ELAPSED_S = 581.0
"""Since the run began; its first step ended after some four minutes of start-up."""

NAN = float("nan")


class FakeSource:
    """Hands out the frame that a test gave it, and notes what it was asked for."""

    def __init__(self, frame: Frame | None, status: str | None = None) -> None:
        self.frame, self.said, self.asked = frame, status, []  # type: ignore[var-annotated]
        self.failed: str | None = None

    def start(self) -> None:
        """Nothing to start."""

    def latest(self) -> Frame | None:
        """The frame."""
        return self.frame

    def status(self) -> str | None:
        """The line."""
        return self.said

    def failure(self) -> str | None:
        """The internal error."""
        return self.failed

    def focus(self, rank: int | None) -> None:
        """Gives the single steps of the rank at once."""
        self.asked.append(("focus", rank))
        if self.frame is not None:
            unknown = rank is None or self.frame.group.step is None
            self.frame = replace(self.frame, focus=None if unknown else single_steps(rank))

    def request(self, text: str) -> None:
        """Notes it."""
        self.asked.append(("want", text))

    def play(self, playing: bool | None = None) -> None:
        """Notes it."""
        self.asked.append(("play", playing))

    def set_speed(self, factor: float) -> None:
        """Notes it."""
        self.asked.append(("speed", factor))

    def seek(
        self, *, step: int | None = None, share: float | None = None, by_steps: int | None = None
    ) -> None:
        """Notes it."""
        self.asked.append(("seek", step, share, by_steps))

    def close(self) -> None:
        """Nothing to end."""


def epoch(world: int, steps_per_s: float | None, steps: int = 12_480) -> EpochProgress:
    """Epochs of 400 steps; `steps_per_s`: None where no steps are made."""
    left = 400 - steps % 400
    rates = (None, None) if steps_per_s is None else (left / steps_per_s, 32 * world * steps_per_s)
    return EpochProgress(steps // 400, steps % 400, 400, *rates)


def live(world: int = 4, **changes: Any) -> Frame:
    """Even ranks on two hosts, moving."""
    frame = Frame(
        source="live",
        unix_s=NOW,
        run=run_info(world),
        group=group(),
        ranks=even_ranks(world),
        buckets=buckets(),
        straggler=None,
        alerts=(),
        events=(LoggedEvent(NOW - 580, "join", "info", None, None, f"{world:,} ranks joined"),),
        overhead=Overhead(1.0, 0.62, 132.0, 4, 0, collector_pct=2.4),
        progress=epoch(world, 37.6),
        history=history(end_s=ELAPSED_S),
        focus=None,
        records=12_480 * world,
        lost_records=0,
    )
    return replace(frame, **changes)


def straggler(world: int = 4) -> Frame:
    """Rank 1 loads its data 20 ms too slowly."""
    frame = live(world)
    message = "rank 1 became slow: data loading (step 11,902)"
    return replace(
        frame,
        group=replace(
            frame.group,
            steps_per_s=21.4,
            step_ms_p50=46.8,
            step_ms_p95=47.2,
            no_straggler_ms=26.6,
            no_exposed_comm_ms=43.9,
            both_ms=23.7,
            wait_ms=20.1,
            exposed_comm_ms=23.2,
            overlap_pct=8.0,
            no_straggler_low_ms=26.3,
            no_straggler_high_ms=27.0,
        ),
        ranks=late_ranks(world),
        buckets=tuple(late_bucket(bucket) for bucket in frame.buckets),
        progress=epoch(world, 21.4),
        straggler=Straggler(
            1,
            "persistent",
            20.3,
            0.1,
            20.2,
            43.2,
            96.0,
            "data",
            {"data": 20.3},
            place="data",
            basis="every_step",
        ),
        alerts=(Alert("straggler", "warning", 1, 11_902, NOW - 27, message),),
        events=(*frame.events, LoggedEvent(NOW - 27, "straggler", "warning", 1, 11_902, message)),
        history=history(slow_from=11_902, end_s=ELAPSED_S),
    )


def without_own_times(frame: Frame) -> Frame:
    """As from a recording of 0.1.0: nothing is known of every step but its phases."""
    blank = {name: np.full(len(frame.ranks.state), NAN) for name in OWN_COLUMNS}
    history = replace(frame.history, own_backward_ms=np.full(len(frame.history.step), NAN))
    group = replace(frame.group, no_straggler_low_ms=None, no_straggler_high_ms=None)
    return replace(frame, group=group, ranks=replace(frame.ranks, **blank), history=history)


def old() -> Frame:
    """The straggler of a recording of 0.1.0: known from the arrivals of its buckets."""
    frame = without_own_times(straggler())
    late = frame.straggler
    assert late is not None
    return replace(frame, straggler=replace(late, place=None, basis="arrivals"))


def stale() -> Frame:
    """Rank 3 is silent for 4.2 s, the others wait."""
    frame = live()
    ranks = frame.ranks
    return replace(
        frame,
        ranks=replace(
            ranks,
            state=("live", "live", "live", "stale"),
            age_ms=column(120, 210, 180, 4_200),
            step=column(12_480, 12_480, 12_480, 12_479),
        ),
    )


def out_of_reach() -> Frame:
    """Nothing was heard of the run itself for 4.2 s."""
    return aged_frame(straggler(), 4.2, "stale")


def several() -> Frame:
    """Ranks 1 and 3 are slow together, and two models reduce in groups of their own."""
    frame = straggler()
    late, ranks = frame.straggler, late_ranks(4, (1, 3))
    assert late is not None
    second = tuple(replace(b, model=1, group="expert 0", last_arriver=3) for b in frame.buckets)
    both = replace(late, ranks=(1, 3))
    return replace(frame, ranks=ranks, straggler=both, buckets=frame.buckets + second)


def clock_free() -> Frame:
    """Two hosts whose clocks cannot tell the skew, and own times are unknown: no rank is flagged."""
    frame = without_own_times(live())
    figures = replace(frame.group, clock_free=True, bound_ms=4.0, no_straggler_ms=None, both_ms=None)
    ranks = replace(frame.ranks, bound_ms=np.full(4, 4.0))
    return replace(frame, group=figures, ranks=ranks, run=replace(frame.run, nodes=2))


def evaluating() -> Frame:
    """Rank 0 evaluates, as it did twice before, and the others wait for it."""
    frame, past, lasts_s = live(), history(end_s=ELAPSED_S - 14), 17.6
    for ago_s in (210, 390):  # no step ends while it evaluates
        before = past.time_s < ELAPSED_S - ago_s + lasts_s
        past = replace(past, time_s=past.time_s - lasts_s * before)
    return replace(
        frame,
        activities=(
            LongActivity("evaluate", "", (0,), NOW - 14),
            LongActivity("wait", "barrier", (1, 2, 3), NOW - 14),
        ),
        history=past,
        past_activities=tuple(
            ActivitySpan("evaluate", NOW - ago_s, NOW - ago_s + lasts_s) for ago_s in (390, 210)
        ),
        progress=epoch(4, None),
    )


def finished() -> Frame:
    """All ranks have come to the end of the script."""
    frame = live()
    ended = replace(frame.ranks, state=("finished",) * 4)
    return replace(
        frame,
        run=replace(frame.run, state="finished", exit_code=0),
        ranks=ended,
        progress=None,
        history=history(end_s=ELAPSED_S - 3),
        events=(
            *frame.events,
            LoggedEvent(NOW - 3, "finished", "info", None, None, "run finished, exit code 0"),
        ),
    )


def loading_data(world: int = 4, more_ms: float = 15.0) -> Frame:
    """Every rank loads data for so much longer in each step."""
    frame = live(world)
    step_ms, data_ms = float(frame.group.step_ms_p50 or 0.0) + more_ms, frame.ranks.data_ms + more_ms
    steps_s = 1e-3 * step_ms * 12_480
    of_data = ledger(elapsed_s=steps_s, data=(data_ms / step_ms * steps_s).tolist())
    group, ranks, past = frame.group, frame.ranks, frame.history
    longer = ("step_ms", "data_ms", *BIN_COLUMNS)
    return replace(
        frame,
        group=replace(
            group,
            steps_per_s=1e3 / (1e3 / (group.steps_per_s or 1.0) + more_ms),
            **{
                name: getattr(group, name) + more_ms
                for name in ("step_ms_p50", "step_ms_p95", "no_straggler_ms", "both_ms")
            },
        ),
        ranks=replace(
            ranks,
            **{
                name: getattr(ranks, name) + more_ms
                for name in ("data_ms", "own_data_ms", "own_ms", "step_ms")
            },
        ),
        history=replace(past, **{name: getattr(past, name) + more_ms for name in longer}),
        ledger=of_data,
    )


def saving() -> Frame:
    """Rank 0 has saved for 6 s in every 200th of 1,400 steps, and ranks 1 and 2 have waited for it."""
    world, steps, elapsed_s, saves_s = 3, 1_400, 84.0, 6.0
    frame = live(world)
    past = history(steps)
    saves = past.step % 200 == 199
    long_ms = 1e3 * saves_s * saves
    step_ms = past.step_ms + long_ms
    ends_s = np.cumsum(step_ms) / 1e3
    past = replace(
        past,
        time_s=ends_s + (elapsed_s - ends_s[-1]),
        wait_ms=past.wait_ms + long_ms * 2 / 3,
        other_ms=past.other_ms + long_ms / 3,
        **dict.fromkeys(("step_ms", *BIN_COLUMNS), step_ms),
    )
    each_s = {
        "start": 4.1, "first_batch": 0.3, "data": 1.7, "forward": 9.9, "own_backward": 15.3,
        "optimizer": 4.1, "transfer": 4.1, "between": 2.0,
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [of_rank_s] * world for name, of_rank_s in each_s.items()}
    seconds["saving"] = [7 * saves_s, 0.0, 0.0]
    seconds["waiting"] = [0.3, 7 * saves_s, 7 * saves_s]
    of_saves = waited(0, "saving", 14 * saves_s, steps=7, each_s=saves_s)
    rare = waited(2, "forward", 0.3, steps=300, each_s=0.001)
    loss = float(past.loss_mean[-1])
    group_figures = replace(
        frame.group, step=steps, loss_mean=loss, loss_min=loss - 0.0006, loss_max=loss + 0.0006
    )
    return replace(
        frame,
        run=replace(frame.run, started_at=NOW - elapsed_s, elapsed_s=elapsed_s),
        group=group_figures,
        ranks=replace(
            frame.ranks,
            step=np.full(world, float(steps)),
            records=np.full(world, float(steps)),
            loss=frame.ranks.loss + loss - frame.group.loss_mean,
        ),
        history=past,
        events=(LoggedEvent(NOW - elapsed_s + 1, "join", "info", None, None, "3 ranks joined"),),
        records=world * steps,
        progress=epoch(world, 37.6, steps),
        past_activities=tuple(
            ActivitySpan("save", NOW - elapsed_s + end_s - saves_s, NOW - elapsed_s + end_s)
            for end_s in past.time_s[saves].tolist()
        ),
        ledger=ledger(elapsed_s=elapsed_s, waited_for=(of_saves, rare), **seconds),
    )


def lost() -> Frame:
    """Rank 2's process is gone; so is the run."""
    frame = live()
    message = "rank 2 lost: its process is gone"
    return replace(
        frame,
        run=replace(frame.run, state="lost"),
        progress=epoch(4, None),
        ranks=replace(
            frame.ranks,
            state=("live", "live", "lost", "live"),
            age_ms=column(120, 210, 12_300, 180),
            step=column(12_480, 12_480, 12_479, 12_480),
        ),
        alerts=(Alert("lost_rank", "critical", 2, 12_479, NOW - 12, message),),
        events=(*frame.events, LoggedEvent(NOW - 12, "lost_rank", "critical", 2, 12_479, message)),
        lost_records=3,
    )


def replay(playing: bool = True) -> Frame:
    """A recording with two marks, a quarter of it played."""
    played = Playback(
        840.0, 3_360.0, 12_480, 1, 61_204, playing, 4.0, False, None, ((0.2, "straggler"), (0.4, "lost_rank"))
    )
    return replace(straggler(), source="replay", playback=played)


def replay_from_the_start() -> Frame:
    """The same, of a recording that begins with its run."""
    frame = replay()
    assert frame.playback is not None
    played = replace(frame.playback, position_s=ELAPSED_S, duration_s=4 * ELAPSED_S, last_step=49_780)
    return replace(frame, playback=played)


def waiting(world: int = 4) -> Frame:
    """Two ranks of `world` are there, no step is taken."""
    frame = live(world)
    blank = {
        field.name: None for field in dataclasses.fields(GroupFigures) if field.default is dataclasses.MISSING
    }
    empty = {field.name: column() for field in dataclasses.fields(History) if field.type == "Column"}
    ranks = unknown_ranks(world)
    return replace(
        frame,
        run=replace(frame.run, state="waiting", elapsed_s=3.2),
        group=GroupFigures(**blank),
        progress=None,
        ranks=replace(
            ranks,
            state=("live", "live", *["waiting"] * (world - 2)),
            host=("node0", "node0", *[""] * (world - 2)),
        ),
        buckets=(),
        events=(),
        overhead=Overhead(None, None, None, None, 0),
        history=History(0, **empty),
        records=0,
    )


def unknowns() -> Frame:
    """A live run of which nothing but the steps is known, with names that try to break the screen."""
    frame = live()
    ranks = unknown_ranks(4)
    hostile = ("[red]bold[/]", "主机-01", "a\x1b[31mb‮c", "very-long-host-name-0123")
    return replace(
        frame,
        run=replace(frame.run, name="run [b]\x1b]0;x\x07 名前"),
        ranks=replace(ranks, host=hostile, step=frame.ranks.step, step_ms=frame.ranks.step_ms),
        group=replace(frame.group, no_straggler_ms=None, both_ms=None, wait_ms=None, busbw_gbps=None),
        buckets=tuple(replace(b, bytes=None, busbw_gbps=None, wait_ms=None) for b in frame.buckets),
        overhead=Overhead(1.0, None, None, None, 0),
    )


def many(world: int = 4096) -> Frame:
    """Thousands of ranks: rank 1 late, rank 2050 stalled."""
    frame = straggler(world)
    states = list(frame.ranks.state)
    states[2050] = "stalled"
    return replace(frame, ranks=replace(frame.ranks, state=tuple(states)), progress=epoch(world, None))


def nobody() -> Frame:
    """A run of which no rank was heard."""
    return replace(waiting(), ranks=unknown_ranks(0), run=replace(run_info(0), state="waiting"))


CASES = {
    "live": live,
    "old": old,
    "straggler": straggler,
    "stale": stale,
    "several": several,
    "clock_free": clock_free,
    "lost": lost,
    "replay": replay,
    "waiting": waiting,
    "unknowns": unknowns,
    "many": many,
}


OWN_COLUMNS = (
    *("own_ms", "excess_ms", "own_data_ms", "own_forward_ms", "own_backward_ms", "own_optimizer_ms"),
    *("before_forward_ms", "before_backward_ms", "before_optimizer_ms", "after_optimizer_ms", "waited_ms"),
    "gc_ms",
    "buffers_ms",
    "buffers_wait_ms",
)
"""Columns of `Ranks` that a recording of 0.1.0 has not."""


def column(*values: float) -> Any:
    """A column."""
    return np.array(values, dtype=np.float64)


def run_info(world: int) -> RunInfo:
    """A run on hosts of two ranks."""
    return RunInfo(
        "train-k7qf", "4f2a", "live", NOW - ELAPSED_S, ELAPSED_S, world, "nccl", 1, "train.py",
        ("--lr", "0.1"), "2.13.0", None, "/data/train-k7qf.ddptop", {},
    )  # fmt: skip


def group() -> GroupFigures:
    """An even group."""
    return GroupFigures(
        12_480, 37.6, 26.6, 27.0, 0.4125, 0.4119, 0.4131, 1, 0,
        5.2, 0.2, 4.9, 3.1, 40.0, 11.42, 26.4, 23.7, 23.5,
    )  # fmt: skip


def even_ranks(world: int) -> Ranks:
    """All alike; data + forward + own backward + wait + transfer + optimizer + other = the step. What is not
    given here is unknown."""
    each = np.arange(world)
    wobble = (each % 5) * 0.05
    waits = 0.2 - wobble

    def flat(value: float) -> Any:
        return np.full(world, value) + wobble

    return replace(
        unknown_ranks(world),
        host=tuple(f"node{rank // 2}" for rank in range(world)),
        device=tuple(f"cuda:{rank % 2}" for rank in range(world)),
        state=("live",) * world,
        phase=("backward",) * world,
        local_rank=each % 2.0,
        pid=4_310.0 + each,
        incarnation=np.zeros(world),
        age_ms=np.full(world, 120.0),
        step=np.full(world, 12_480.0),
        bucket=np.full(world, 3.0),
        sequence=np.full(world, 49_923.0),
        loss=0.4131 - each % 4 * 0.0004,
        step_ms=np.full(world, 26.6),
        data_ms=flat(1.2),
        forward_ms=flat(7.1),
        backward_ms=np.full(world, 14.0),
        optimizer_ms=flat(2.9),
        other_ms=1.4 - 3 * wobble,
        collective_ms=flat(5.2),
        wait_ms=waits,
        transfer_ms=flat(4.9),
        exposed_comm_ms=2.9 + waits,
        exposed_wait_ms=waits,
        lateness_ms=wobble,
        bound_ms=np.full(world, 0.1),
        transfer_bound_ms=np.full(world, 0.2),
        last_pct=np.full(world, 100.0 / world),
        relative_score=np.full(world, 0.99),
        individual_score=np.full(world, 0.98),
        records=np.full(world, 12_480.0),
        lost_records=np.zeros(world),
        rss_bytes=np.full(world, 1.9e9),
        cpu_pct=np.full(world, 99.0),
        joined=np.zeros(world),
        micro_steps=np.ones(world),
        own_ms=flat(23.5),
        own_data_ms=flat(1.2),
        own_forward_ms=flat(7.1),
        own_backward_ms=flat(10.9),
        own_optimizer_ms=flat(2.9),
        excess_ms=wobble,
        before_forward_ms=np.full(world, 0.3),
        before_backward_ms=np.full(world, 0.2),
        before_optimizer_ms=np.full(world, 0.2),
        after_optimizer_ms=0.7 - 3 * wobble,
        waited_ms=np.zeros(world),
        gc_ms=np.zeros(world),
        buffers_ms=np.zeros(world),
        buffers_wait_ms=np.zeros(world),
    )


def late_ranks(world: int, slow: tuple[int, ...] = (1,)) -> Ranks:
    """Rank 1 is 20.3 ms late in its data, and the others wait for it in backward."""
    ranks = even_ranks(world)
    late = np.isin(np.arange(world), slow)
    waits = np.where(late, 0.0, 20.3)
    data = np.where(late, 21.5, ranks.data_ms)
    backward = ranks.own_backward_ms + waits + 2.9
    known = data + ranks.forward_ms + backward + ranks.optimizer_ms
    return replace(
        ranks,
        step_ms=np.full(world, 46.8),
        data_ms=data,
        backward_ms=backward,
        other_ms=46.8 - known,
        after_optimizer_ms=46.8 - known - 0.7,
        exposed_comm_ms=waits + 2.9,
        exposed_wait_ms=waits,
        wait_ms=waits,
        collective_ms=waits + ranks.transfer_ms,
        lateness_ms=np.where(late, 20.3, -0.1),
        last_pct=np.where(late, 96.0 / len(slow), 4.0 / max(1, world - len(slow))),
        relative_score=np.where(late, 0.54, 0.99),
        own_data_ms=data,
        own_ms=46.8 - 2.9 - waits,
        excess_ms=np.where(late, 20.3, 0.0),
    )


def unknown_ranks(world: int) -> Ranks:
    """Nothing is known."""
    nothing = {
        field.name: np.full(world, NAN)
        for field in dataclasses.fields(Ranks)
        if field.name not in ("host", "device", "state", "phase")
    }
    blank = ("",) * world
    return Ranks(host=blank, device=blank, state=("live",) * world, phase=blank, **nothing)


def buckets() -> tuple[BucketFigures, ...]:
    """Two buckets, the second compressed by a hook."""
    return (
        BucketFigures(
            *(0, 1, 0, 8_392_704, 14, "float32", "", 2.1, 0.2, 1.9, 4.4, 6.6, 5.99, 0.3, 1, 27.0),
            *("0", 0.02, 0.15),
        ),
        BucketFigures(
            *(1, 1, 0, 25_165_824, 6, "float32", "fp16", 3.2, 0.2, 3.0, 8.4, 12.6, 11.8, 0.4, 1, 26.0),
            *("0", 0.02, 0.15),
        ),
    )


def with_steps_left_out() -> Frame:
    """The run that saves, of whose steps every fourth alone was recorded: part of its bill is an estimate."""
    frame = saving()
    past, costs = frame.history, frame.ledger
    assert costs is not None
    kept = past.step % 4 == 3
    columns = {
        field.name: getattr(past, field.name)[kept]
        for field in dataclasses.fields(past)
        if isinstance(getattr(past, field.name), np.ndarray)
    }
    columns["step"] = columns["step"] + 1
    columns["busbw_gbps"] = np.full(len(columns["step"]), 11.42)
    first, *others = costs.run.waited_for
    first = replace(first, steps=12, n_dear=2, n_dear_in_all=7)
    run = replace(costs.run, waited_for=(first, *others))
    estimate_s = 0.73 * costs.total_s
    return replace(
        frame,
        history=replace(past, **columns),
        ledger=replace(costs, run=run, recent=run, scaled_s=estimate_s),
    )


def with_ledger(frame: Frame) -> Frame:
    """With the seconds of all its steps, those in which nobody waited as in an even run."""
    now, past, late = frame.ranks, frame.history, frame.straggler
    world, even, slow = len(now.state), even_ranks(len(now.state)), past.step_ms > 40

    def seconds(of_ranks: Ranks) -> dict[str, Any]:
        return {
            "data": of_ranks.own_data_ms,
            "forward": of_ranks.own_forward_ms,
            "own_backward": of_ranks.own_backward_ms,
            "optimizer": of_ranks.own_optimizer_ms,
            "between": of_ranks.other_ms,
            "transfer": of_ranks.exposed_comm_ms - of_ranks.exposed_wait_ms,
            "waiting": of_ranks.exposed_wait_ms,
        }

    n_slow, n_even = int(slow.sum()), int((~slow).sum())
    then, since = seconds(even), seconds(now)
    classes = {name: (then[name] * n_even + since[name] * n_slow) / 1e3 for name in then}
    steps_s = float(past.step_ms.sum()) / 1e3
    tail_s = frame.run.elapsed_s - float(past.time_s[-1])
    tail = "stalled" if frame.stall else "evaluation" if frame.activities else "end"
    classes[tail] = np.full(world, tail_s)
    classes["start"] = np.full(world, frame.run.elapsed_s - tail_s - steps_s)
    waits = waited(0, "forward", float(classes["waiting"].sum()), steps=n_even, each_s=0.0002)
    if late is not None and not late.group:
        waits = replace(waits, rank=late.rank, place="data", steps=n_slow, longest_s=0.0213)
    nothing = {"dear_steps": (), "n_dear": 0, "n_dear_in_all": 0, "dear_s": 0.0, "longest_step": 12_480}
    found = ledger(elapsed_s=frame.run.elapsed_s, waited_for=(replace(waits, **nothing),), **classes)
    lost_pct = 100 * found.run.rank_seconds / (world * steps_s)
    cost = replace(
        found.run, over_s=steps_s, steps=len(past.step), lost_pct=lost_pct, low_pct=0.9 * lost_pct,
        high_pct=1.1 * lost_pct,
    )  # fmt: skip
    return replace(frame, ledger=replace(found, recent=cost))


def late_bucket(bucket: BucketFigures) -> BucketFigures:
    """The same, for which all wait until rank 1 comes."""
    assert bucket.transfer_ms is not None
    assert bucket.busbw_gbps is not None
    collective_ms = 20.3 + bucket.transfer_ms
    effective = bucket.busbw_gbps * bucket.transfer_ms / collective_ms
    return replace(
        bucket,
        collective_ms=collective_ms,
        wait_ms=20.3,
        effective_busbw_gbps=effective,
        skew_ms=20.3,
        last_arriver_pct=96.0,
    )


def history(points: int = 12_480, slow_from: int | None = None, end_s: float | None = None) -> History:
    """Loss that falls to 0.4125 and step times that wobble around 26.6 ms, 46.8 from a step on.

    `end_s`: when the last step ends; None: the first one begins at 0."""
    step = np.arange(1.0, points + 1)
    mean = 0.4125 + 1.9 * np.exp(-step / 1_500) + 0.01 * np.sin((points - step) / 37)
    slow = 20.2 * (step >= slow_from) if slow_from is not None else np.zeros(points)
    wobble = 0.4 * np.sin(step / 11)
    step_ms = 26.6 + wobble + slow
    ends = np.cumsum(step_ms) / 1e3
    return History(
        start=0,
        step=step,
        time_s=ends if end_s is None else ends + (end_s - ends[-1]),
        loss_mean=mean,
        loss_min=mean - 0.0006,
        loss_max=mean + 0.0006,
        step_ms=step_ms,
        wait_ms=0.1 + slow,
        transfer_ms=np.full(points, 2.9),
        busbw_gbps=np.where(step % 4 == 0, 11.42, NAN),
        data_ms=np.full(points, 1.2),
        forward_ms=np.full(points, 7.1),
        own_backward_ms=np.full(points, 10.9),
        optimizer_ms=np.full(points, 2.9),
        other_ms=1.5 + wobble,
        **dict.fromkeys(BIN_COLUMNS, step_ms),
    )


def single_steps(rank: int, points: int = 100) -> RankSteps:
    """The last steps of one rank; every tenth takes 10 ms longer."""
    step = np.arange(12_381.0, 12_381.0 + points)
    slow = 10.0 * (step % 10 == 0)

    def flat(value: float) -> Any:
        return np.full(points, value)

    return RankSteps(
        rank, step, 0.41 + 0.01 * np.sin(step / 5), 26.6 + slow, 1.2 + slow, flat(7.1), flat(14.0), flat(2.9),
        flat(1.1), np.where(step % 4 == 0, 0.2, NAN), np.where(step % 4 == 0, 4.9, NAN), flat(0.1),
        flat(23.5), flat(0.1), last_minutes(rank),
    )  # fmt: skip


def last_minutes(rank: int) -> RankMinutes:
    """Eight minutes of excess in bins of 2 s: rank 1 is slow in the last of them; nothing is known of two."""
    time_s = np.arange(101.0, 581.0, 2.0)
    late = np.where((rank == 1) & (time_s > 540), 20.2, 0.1 + 0.1 * np.sin(time_s))
    late[(time_s > 240) & (time_s < 360)] = NAN
    return RankMinutes(time_s, late, late + 0.5)


def process_groups() -> tuple[ProcessGroupFigures, ...]:
    """Of a mesh of two by two: a group that shards, in which rank 1 is late, and the default one."""
    shard = ProcessGroupFigures(
        name="3", description="mesh_dp_shard", backend="gloo", size=2, ranks=(0, 1), collectives=3_246,
        seen_pct=97.5, steps=128, per_step=6.0, step_bytes=34_320.0,
        operations="4 all_gather, 2 reduce_scatter", skew_ms=20.4, bound_ms=0.1, last_arriver=1,
        last_arriver_pct=96.0, lateness_ms=20.3, rank_lateness_ms=(-20.3, 20.3), on_host=False,
    )  # fmt: skip
    default = replace(
        shard, name="0", description="default_pg", size=4, ranks=(), per_step=1.0, step_bytes=4.0,
        operations="1 all_reduce", skew_ms=20.4, rank_lateness_ms=(-0.1, 20.3, 0.0, 0.1),
    )  # fmt: skip
    return shard, default


def without_ddp() -> Frame:
    """FSDP2 over gloo: rank 1 is late in its forward, as the flight recorders say; the others wait for it in
    collectives that are not timed, so that their own time includes it."""
    frame = straggler()
    late, alone = frame.straggler, np.arange(4) == 1
    assert late is not None
    unknown = np.full(4, NAN)
    forward, backward = np.where(alone, 27.4, 7.1), np.where(alone, 13.8, 34.1)
    ranks = replace(
        even_ranks(4),
        **dict.fromkeys(
            ("collective_ms", "wait_ms", "transfer_ms", "lateness_ms", "bound_ms", "transfer_bound_ms"),
            unknown,
        ),
        **dict.fromkeys(("last_pct", "relative_score", "individual_score", "bucket", "sequence"), unknown),
        **dict.fromkeys(("exposed_comm_ms", "exposed_wait_ms", "excess_ms"), unknown),
        **dict.fromkeys(("data_ms", "own_data_ms"), np.full(4, 1.2)),
        **dict.fromkeys(("optimizer_ms", "own_optimizer_ms"), np.full(4, 2.9)),
        **dict.fromkeys(("forward_ms", "own_forward_ms"), forward),
        **dict.fromkeys(("backward_ms", "own_backward_ms"), backward),
        **dict.fromkeys(("step_ms", "own_ms"), np.full(4, 46.8)),
        other_ms=np.full(4, 1.6),
        after_optimizer_ms=np.full(4, 0.9),
    )
    group = replace(
        frame.group,
        **dict.fromkeys(("collective_ms", "wait_ms", "transfer_ms", "overlap_pct", "busbw_gbps", "bound_ms")),
        **dict.fromkeys(("no_straggler_ms", "no_straggler_low_ms", "no_straggler_high_ms"), 46.8),
        **dict.fromkeys(("no_exposed_comm_ms", "both_ms"), 46.8),
        **dict.fromkeys(("exposed_comm_ms", "exposed_wait_ms", "exposed_transfer_ms", "exposed_comm_pct")),
    )
    past = frame.history
    zero = np.zeros(len(past.step))
    history = replace(
        past,
        wait_ms=zero,
        transfer_ms=zero,
        busbw_gbps=zero + NAN,
        forward_ms=past.forward_ms + past.wait_ms / 4,
        own_backward_ms=past.own_backward_ms + past.transfer_ms + past.wait_ms * 3 / 4,
    )
    message = "rank 1 became slow: late at collectives (step 11,902)"
    return replace(
        frame,
        run=replace(frame.run, training="fsdp2", backend="gloo"),
        ranks=replace(ranks, device=("cpu",) * 4),
        group=group,
        history=history,
        buckets=(),
        process_groups=process_groups(),
        straggler=replace(
            late, cause=None, parts_ms={}, place=None, basis="arrivals", group="the default group"
        ),
        alerts=(Alert("straggler", "warning", 1, 11_902, NOW - 27, message),),
        events=(frame.events[0], LoggedEvent(NOW - 27, "straggler", "warning", 1, 11_902, message)),
    )
