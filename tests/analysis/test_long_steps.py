"""While a step lasts far longer than usual and it is no stall, the frame says what each rank does in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.to_frame import activity
from ddptop.frames.activity import ActivitySpan
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.frame import Frame
from ddptop.frames.remedies import next_action
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import BATCH_SIZE, Activity, Bye, Card, Event, Phase, Progress, Received, Scalar
from ddptop.render.plain import draw_frame, watch_line
from tests.made_up_run import START_NS, START_UNIX_NS, STEP_US, a_run, feed_together, run_message

STEPS, WORLD = 100, 4
TRAINED_NS = START_NS + STEPS * STEP_US * 1000


class Standing:
    """Four ranks that have trained 100 steps of 20 ms, and send heartbeats from the next one."""

    def __init__(self) -> None:
        self.reducer = Reducer()
        feed_together(self.reducer, a_run(STEPS, world=WORLD, ending=False))

    def beat(self, after_s: float, *beats: Progress) -> Frame:
        now_ns = TRAINED_NS + int(after_s * NS)
        for rank, beat in enumerate(beats):
            self.reducer.feed(Received(now_ns, rank, 1000 + rank, 0, replace(beat, t_ns=now_ns)))
        return self.reducer.frame(now_ns)

    def card(self, rank: int, entries: dict[str, Scalar]) -> None:
        self.reducer.feed(Received(TRAINED_NS, rank, 1000 + rank, 1_000, Card(entries)))

    def declare(self, rank: int, name: str) -> None:
        event = Event("phase_begins", TRAINED_NS, rank, STEPS, {"name": name})
        self.reducer.feed(Received(TRAINED_NS, rank, 1000 + rank, 1_000, event))


def beat(
    activity: Activity = Activity.TRAINING, phase: Phase = Phase.OTHER, since_s: float = 0.1
) -> Progress:
    since_ns = TRAINED_NS + int(since_s * NS)
    return Progress(0, STEPS, int(phase), -1, 9, 1, 25.0, 0.1, 0, int(activity), since_ns, 3, 120, 400)


EVALUATES, IN_BARRIER = beat(Activity.EVALUATE, Phase.EVALUATE), beat(Activity.BARRIER)


def test_past_evaluations_and_saves_are_kept_for_the_charts(standing: Standing) -> None:
    saves = beat(Activity.SAVE, Phase.OTHER, 6.0)
    for after_s, of_first in ((1.0, EVALUATES), (5.0, EVALUATES), (8.0, saves), (9.0, EVALUATES)):
        standing.beat(after_s, of_first, EVALUATES if after_s < 5 else IN_BARRIER, IN_BARRIER, IN_BARRIER)
    frame = FrameDecoder().decode(encode_frame(standing.beat(20.0, *[IN_BARRIER] * WORLD)))
    began_s = (START_UNIX_NS + TRAINED_NS - START_NS) / NS
    spans = [
        (span.kind, round(span.since_s - began_s, 3), round(span.until_s - began_s, 3))
        for span in frame.past_activities
    ]
    assert spans == [("evaluate", 0.1, 9.0), ("save", 6.0, 8.0)]


def test_the_pause_after_an_evaluation_is_not_marked(standing: Standing) -> None:
    """Heartbeats tell of it until the rank trains again; then the rank says when it had ended."""
    began_s = (START_UNIX_NS + TRAINED_NS - START_NS) / NS
    for after_s in (1.0, 5.0, 9.0):
        standing.beat(after_s, EVALUATES, EVALUATES, IN_BARRIER, IN_BARRIER)
    ends_s = []
    for rank, ended_s in enumerate((4.0, 6.0)):
        ended_ns = TRAINED_NS + int(ended_s * NS)
        # The step that heartbeats told is over by then.
        event = Event("evaluated", ended_ns, rank, STEPS + 1, {"ns": 3 * NS, "data_ns": 0})
        standing.reducer.feed(Received(TRAINED_NS + 10 * NS, rank, 1000 + rank, 1_001, event))
        [span] = standing.beat(10.0 + rank, *[IN_BARRIER] * WORLD).past_activities
        ends_s.append(round(span.until_s - began_s, 3))
    assert ends_s == [9.0, 6.0], "up to the end of the last one, once both have said it"


def test_how_long_an_evaluation_usually_takes(standing: Standing) -> None:
    frame = standing.beat(18.0, EVALUATES, IN_BARRIER, IN_BARRIER, IN_BARRIER)
    assert "usually" not in verdict(frame).detail, "there was none before"
    since_s = frame.activities[0].since_s
    before = [
        ActivitySpan(kind, since_s - ago_s, since_s - ago_s + lasts_s)
        for kind, ago_s, lasts_s in (("evaluate", 300, 14), ("save", 200, 60), ("evaluate", 100, 18))
    ]
    again = replace(frame, past_activities=(*before, *frame.past_activities))
    assert verdict(again).detail.startswith("evaluating usually takes 16 s · last complete step 99")


@pytest.fixture
def standing() -> Standing:
    return Standing()


def test_who_evaluates_and_who_waits_where(standing: Standing) -> None:
    standing.beat(1.0, EVALUATES, IN_BARRIER, IN_BARRIER, IN_BARRIER)
    frame = standing.beat(18.1, EVALUATES, IN_BARRIER, IN_BARRIER, IN_BARRIER)
    shown = verdict(frame)
    assert shown.kind == "evaluating"
    assert shown.sentence == "rank 0 has been evaluating for 18 s · ranks 1 to 3 are waiting in barrier"
    assert shown.detail == "last complete step 99 · median step 20.0 ms"
    evaluates, waits = frame.activities
    assert evaluates.since_s == pytest.approx(START_UNIX_NS / NS + STEPS * STEP_US / 1e6 + 0.1)
    assert (waits.kind, waits.name, waits.ranks) == ("wait", "barrier", (1, 2, 3))


@pytest.mark.parametrize(
    ("after_s", "stalls"), [(24.0, False), pytest.param(164.0, False, marks=pytest.mark.slow), (167.0, True)]
)
def test_a_save_is_a_stall_only_after_ten_times_the_stall_time(
    standing: Standing, after_s: float, stalls: bool
) -> None:
    saves = beat(Activity.SAVE)
    frame = standing.beat(1.0, saves, IN_BARRIER, IN_BARRIER, IN_BARRIER)
    for second in (*range(2, int(after_s)), after_s):
        frame = standing.beat(float(second), saves, IN_BARRIER, IN_BARRIER, IN_BARRIER)
    assert (frame.stall is not None, bool([a for a in frame.alerts if a.kind == "stall"])) == (stalls, stalls)
    if not stalls:
        assert verdict(frame).kind == "saving"
    # Once it is over, the time without a step begins anew.
    frame = standing.beat(after_s + 20, *[IN_BARRIER] * WORLD)
    assert frame.stall is not None


def test_every_outlet_has_it_in_place_of_live_with_an_old_rate(standing: Standing) -> None:
    frame = standing.beat(18.1, EVALUATES, IN_BARRIER, IN_BARRIER, IN_BARRIER)
    frame = FrameDecoder().decode(encode_frame(frame))
    head = draw_frame(frame, 100).splitlines()[0]
    assert "EVALUATING 18 s" in head and "LIVE" not in head and "/s" not in head
    assert "rank 0 has been evaluating for 18 s" in watch_line(frame)
    assert snapshot(frame)["activities"] == [
        {"kind": "evaluate", "name": "", "since_s": 1700000002.1, "ranks": [0]},
        {"kind": "wait", "name": "barrier", "since_s": 1700000002.1, "ranks": [1, 2, 3]},
    ]


def test_how_far_it_is_in_its_data_loader(standing: Standing) -> None:
    assert standing.reducer.frame(TRAINED_NS).progress is None, "not known before a rank says it"
    frame = standing.beat(0.1, beat())
    progress = {"epoch": 3, "batch": 120, "batches": 400, "epoch_left_s": 5.6, "samples_per_s": None}
    assert snapshot(frame)["progress"] == progress
    assert "epoch 3 · batch 120/400 · 5.6 s left in it" in draw_frame(frame, 100)
    standing.reducer.feed(Received(TRAINED_NS, -1, 0, 0, run_message("finished", 0)))
    assert standing.beat(0.1, beat()).progress is None, "its last heartbeat came before its last batch"


def test_ranks_that_have_ended_have_no_time_left_though_their_launcher_goes_on(standing: Standing) -> None:
    assert standing.beat(0.1, beat()).progress is not None
    for rank in range(WORLD):
        standing.reducer.feed(Received(TRAINED_NS, rank, 1000 + rank, 1_000, Bye(TRAINED_NS, "finished")))
    assert standing.reducer.frame(TRAINED_NS + NS).progress is None


def test_samples_a_second_are_of_all_ranks(standing: Standing) -> None:
    for rank, size in enumerate((32, 32, 32)):
        standing.card(rank, {BATCH_SIZE: size})
    assert snapshot(standing.beat(0.1, beat()))["progress"]["samples_per_s"] is None, "one rank says nothing"
    standing.card(3, {BATCH_SIZE: 24})
    frame = FrameDecoder().decode(encode_frame(standing.beat(0.1, beat())))
    assert snapshot(frame)["progress"]["samples_per_s"] == 120 / 20e-3
    assert "5.6 s left in it · 6,000 samples/s" in draw_frame(frame, 100)


@pytest.mark.parametrize(("steps", "batches"), [(41, 21), (40, 40), (41, 81), (40, 30)])
def test_batches_are_counted_and_not_steps_or_backwards(standing: Standing, steps: int, batches: int) -> None:
    """Optimizers may take turns, a loss may have several backwards, gradients may be accumulated."""
    for rank in range(WORLD):
        standing.card(rank, {BATCH_SIZE: 32})
    standing.beat(0.1, beat())
    frame = standing.beat(0.9, replace(beat(), step=STEPS + steps, batch=120 + batches))
    per_step = {81: 2, 40: 1, 21: 0.5, 30: 0.75}[batches]
    progress = snapshot(frame)["progress"]
    assert progress["samples_per_s"] == pytest.approx(WORLD * 32 * per_step / 20e-3)
    assert progress["epoch_left_s"] == pytest.approx((280 - batches) / per_step * 20e-3, abs=0.1)


@pytest.mark.parametrize(
    ("first", "kind", "sentence"),
    [
        (
            beat(Activity.SAVE),
            "saving",
            "rank 0 has been saving for 4.9 s · ranks 1 to 3 are waiting in barrier",
        ),
        (
            beat(Activity.AFTER_OPTIMIZER),
            "long_step",
            "rank 0 has been after its optimizer step for 4.9 s · ranks 1 to 3 are waiting in barrier",
        ),
        (
            beat(phase=Phase.DATA),
            "long_step",
            "rank 0 has been waiting for its next batch for 4.9 s · ranks 1 to 3 are waiting in barrier",
        ),
    ],
)
def test_other_long_steps(standing: Standing, first: Progress, kind: str, sentence: str) -> None:
    shown = verdict(standing.beat(5.0, first, IN_BARRIER, IN_BARRIER, IN_BARRIER))
    assert (shown.kind, shown.sentence) == (kind, sentence)


def test_a_declared_phase_has_its_own_name(standing: Standing) -> None:
    for rank in range(WORLD):
        standing.declare(rank, "generate samples")
    shown = verdict(standing.beat(5.0, *[beat(since_s=1.0)] * WORLD))
    assert shown.sentence == 'all 4 ranks have been in "generate samples" for 4.0 s'


def test_steps_that_go_on_are_no_long_one(standing: Standing) -> None:
    frame = standing.beat(0.9, EVALUATES, IN_BARRIER, IN_BARRIER, IN_BARRIER)
    assert frame.activities == (), "below a second"
    moved = replace(IN_BARRIER, step=STEPS + 50)
    frame = standing.beat(5.0, EVALUATES, IN_BARRIER, moved, IN_BARRIER)
    assert frame.activities == (), "one of them has moved on"


def test_ranks_are_not_looked_at_one_by_one_while_steps_go_on(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 4,096 ranks that took 4.5 ms of each frame."""
    looked = []
    monkeypatch.setattr(activity, "_silent_ns", lambda *arguments: looked.append(arguments))
    assert standing.beat(0.4, *[IN_BARRIER] * WORLD).activities == () and not looked


def test_a_stall_is_a_stall(standing: Standing) -> None:
    after = beat(Activity.AFTER_OPTIMIZER)
    standing.beat(1.0, after, IN_BARRIER, IN_BARRIER, IN_BARRIER)
    frame = standing.beat(40.0, after, IN_BARRIER, IN_BARRIER, IN_BARRIER)
    assert verdict(frame).kind == "stalled"
    assert frame.activities == ()


def test_heartbeats_of_an_earlier_version_have_their_phase(standing: Standing) -> None:
    old = [
        Progress(0, STEPS, phase, -1, 9, 1, 25.0, 0.1, 0) for phase in (Phase.EVALUATE, *[Phase.BACKWARD] * 3)
    ]
    shown = verdict(standing.beat(5.0, *old))
    assert shown.sentence == "rank 0 has been evaluating for 5.0 s · ranks 1 to 3 are in backward"


IN_BACKWARD = beat(Activity.TRAINING, Phase.BACKWARD)


def stop(standing: Standing, rank: int, *, state: str = "stopped") -> None:
    event = Event("process", TRAINED_NS, rank, STEPS, {"state": state})
    standing.reducer.feed(Received(TRAINED_NS, rank, 1000 + rank, 1_000, event))


def beat_without(standing: Standing, silent: int, until_s: int) -> Frame:
    """All ranks but one send heartbeats; that one has sent its last as the step began."""
    frame = standing.beat(0.1, *[IN_BACKWARD] * WORLD)
    for half_s in range(1, 2 * until_s + 1):
        now_ns = TRAINED_NS + half_s * NS // 2
        for rank in {*range(WORLD)} - {silent}:
            beat = replace(IN_BACKWARD, t_ns=now_ns)
            standing.reducer.feed(Received(now_ns, rank, 1000 + rank, 0, beat))
        frame = standing.reducer.frame(now_ns)
    return frame


def test_a_rank_that_a_signal_has_stopped_is_named_long_before_it_is_a_stall(standing: Standing) -> None:
    assert standing.beat(0.1, *[IN_BACKWARD] * WORLD).group.steps_per_s == pytest.approx(50)
    stop(standing, 1)
    frame = beat_without(standing, 1, until_s=4)
    shown = verdict(frame)
    assert (shown.kind, shown.sign) == ("stopped", "warning")
    assert shown.sentence.startswith("rank 1 has been stopped (SIGSTOP) for 3.9 s · ranks 0, 2 and 3 are in ")
    assert next_action(frame) == "kill -CONT 4001 on node0: its process is stopped."
    head = draw_frame(frame, 100).splitlines()[0]
    assert "▲ STOPPED 3 s" in head and "/s" not in head
    assert frame.group.steps_per_s == pytest.approx(1 / 4, rel=0.05), "no step has ended for so long"
    stop(standing, 1, state="running")
    moved = replace(IN_BACKWARD, step=STEPS + 1)
    assert standing.beat(4.1, *[moved] * WORLD).activities == ()


def test_a_short_stop_is_no_long_step(standing: Standing) -> None:
    standing.beat(0.1, *[IN_BACKWARD] * WORLD)
    stop(standing, 1)
    assert standing.reducer.frame(TRAINED_NS + 9 * NS // 10).activities == ()


def test_a_rank_that_sends_nothing_does_not_hide_that_the_step_lasts(standing: Standing) -> None:
    shown = verdict(beat_without(standing, 1, until_s=3))
    assert shown.kind == "long_step"
    assert shown.sentence.startswith("rank 1 has been silent for 2.9 s · ranks 0, 2 and 3 are in backward")


def test_a_rank_that_sends_nothing_while_it_saves_is_saving(standing: Standing) -> None:
    saves = beat(Activity.SAVE)
    for half_s in range(1, 8):
        now_ns = TRAINED_NS + half_s * NS // 2
        for rank in range(1 if half_s > 1 else 0, WORLD):
            message = replace(IN_BARRIER if rank else saves, t_ns=now_ns)
            standing.reducer.feed(Received(now_ns, rank, 1000 + rank, 0, message))
        frame = standing.reducer.frame(now_ns)
    assert verdict(frame).kind == "saving"


def test_ranks_that_all_send_nothing_are_in_no_long_step(standing: Standing) -> None:
    """The collector, or the way to it, may be slow: their clocks do not show that a step lasts."""
    standing.beat(0.1, *[IN_BACKWARD] * WORLD)
    assert standing.reducer.frame(TRAINED_NS + 4 * NS).activities == ()
