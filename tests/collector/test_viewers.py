"""Frames of a run that goes on, of few ranks and of many."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.collector import viewers
from ddptop.collector.viewers import LiveFrames
from ddptop.frames.codec import encode_frame
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Event
from tests.collector.test_relayed_in_columns import WORLD, received

BETWEEN, EVENT = 11, 8
"""Rounds: a quarter of a second after fresh figures; where an event comes."""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """By number of a round, a quarter of a second each: the frame of a viewer, and what the reducer gives."""
    found = {}
    frames = None

    def note(at, now_ns, intake, record, reducer):
        nonlocal frames
        frames = frames or LiveFrames(reducer, record, "live")
        monkeypatch.setattr(viewers, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
        if at == EVENT:
            intake.report_message(Event("internal_error", now_ns, -1, -1, {"message": "x"}), now_ns)
        frame = frames(cursor=0, focus=None, want="")
        exact = reducer.frame(now_ns, recording=record.existing_path)
        found[at] = frame, exact, frames(cursor=0, focus=1, want="")

    def make():
        received(tmp_path / "run.ddptop", after_each=note)
        return found

    return make


def test_a_frame_of_few_ranks_has_the_newest_figures(made):
    found = made()
    assert [at for at, (frame, exact, _) in found.items() if encode_frame(frame) != encode_frame(exact)] == []


def test_before_the_window_is_full_a_frame_has_the_newest_figures(made, monkeypatch):
    """With a newer step than theirs it would say that it is over fewer steps than there are."""
    monkeypatch.setattr(viewers, "MANY_RANKS", WORLD)
    found = made()
    assert [at for at, (frame, exact, _) in found.items() if encode_frame(frame) != encode_frame(exact)] == []


def test_with_many_ranks_a_frame_in_between_has_the_last_figures_and_what_was_reported_since(
    made, monkeypatch
):
    monkeypatch.setattr(viewers, "MANY_RANKS", WORLD)
    monkeypatch.setattr(viewers, "FIGURES_NS", NS // 2)
    monkeypatch.setattr(viewers, "WINDOW", 1)
    found = made()
    fresh = [at for at, (frame, exact, _) in found.items() if encode_frame(frame) == encode_frame(exact)]
    # After half a second, and at once after an event or with the steps of one rank.
    assert [at for at in fresh if at > 3] == [5, 7, 8, 10, 12]
    (frame, exact, focused), before = found[BETWEEN], found[BETWEEN - 1][0]
    assert focused.focus is not None
    assert focused.group == exact.group
    assert frame.group == replace(before.group, step=exact.group.step) != exact.group
    assert frame.group.step > before.group.step
    np.testing.assert_array_equal(frame.ranks.step_ms, before.ranks.step_ms)
    assert frame.records == exact.records > before.records
    for name in ("records", "step", "age_ms", "phase", "sequence"):
        np.testing.assert_array_equal(getattr(frame.ranks, name), getattr(exact.ranks, name))
    assert (frame.unix_s, frame.run) == (exact.unix_s, exact.run)
    assert frame.history.step[-1] == before.group.step


def test_ranks_that_have_become_silent_have_a_new_frame(tmp_path, monkeypatch):
    monkeypatch.setattr(viewers, "MANY_RANKS", WORLD)
    monkeypatch.setattr(viewers, "FIGURES_NS", 60 * NS)
    monkeypatch.setattr(viewers, "WINDOW", 1)
    seen = {}

    def look(at, now_ns, intake, record, reducer):
        frames = LiveFrames(reducer, record, "live")
        for later_ns in (0, NS // 2, 2 * NS):
            monkeypatch.setattr(viewers, "time", SimpleNamespace(monotonic_ns=lambda: now_ns + later_ns))  # noqa: B023
            seen[at, later_ns] = frames(cursor=0, focus=None, want="").ranks

    received(tmp_path / "run.ddptop", after_each=look)
    first, soon, silent = (seen[BETWEEN, later_ns] for later_ns in (0, NS // 2, 2 * NS))
    assert set(first.state) == set(soon.state) == {"live"}
    assert soon.age_ms.min() > first.age_ms.min()
    assert set(silent.state) == {"stale"}


@pytest.fixture
def figures_made(tmp_path, monkeypatch):
    """A function of the rounds, a quarter of a second each, in which a viewer gets a frame, and of those in
    which another one gets the steps of a rank. It returns three lists of rounds: in which a frame of the
    first waited for its figures, in which figures were made after a frame, and after which steps wait to be
    evaluated."""
    monkeypatch.setattr(viewers, "MANY_RANKS", WORLD)
    monkeypatch.setattr(viewers, "FIGURES_NS", NS)
    monkeypatch.setattr(viewers, "AHEAD_NS", NS // 4)
    monkeypatch.setattr(viewers, "WINDOW", 1)

    def make(with_frame, meanwhile=lambda at: None, of_a_rank=()):
        waited, after, steps_wait, frames = [], [], [], []

        def serve(at, now_ns, intake, record, reducer):
            def build(made, *each, **named):
                made.append(at)
                meanwhile(at)
                return Reducer.frame(reducer, *each, **named)

            monkeypatch.setattr(viewers, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
            frames.append(frames[-1] if frames else LiveFrames(reducer, record, "live"))
            monkeypatch.setattr(reducer, "frame", partial(build, waited))
            if at in with_frame:
                with suppress(ValueError):
                    frames[0](cursor=0, focus=None, want="")
            monkeypatch.setattr(reducer, "frame", partial(build, []))
            if at in of_a_rank:
                frames[0](cursor=0, focus=1, want="")
            if at in with_frame or at in of_a_rank:
                monkeypatch.setattr(reducer, "frame", partial(build, after))
                frames[0].prepare_next()
            monkeypatch.delattr(reducer, "frame")
            if reducer.evaluation.n_waiting:
                steps_wait.append(at)

        received(tmp_path / "run.ddptop", after_each=serve)
        return waited, after, steps_wait

    return make


def test_with_many_ranks_figures_are_made_after_a_frame_and_none_waits_for_them(figures_made):
    waited, after, steps_wait = figures_made(range(1, 13))
    # At first, and where records were lost.
    assert (waited, after, steps_wait) == ([1, 7], [4, 10], [])


def test_figures_are_not_made_for_a_viewer_that_gets_each_frame_too_late_for_them(figures_made):
    waited, after, _ = figures_made([1, 9], of_a_rank=range(1, 13))
    assert (waited, after) == ([1, 9], [])


def test_figures_made_while_another_viewer_is_served_are_for_the_next_frame(figures_made):
    waited, after, _ = figures_made(range(1, 13, 2), of_a_rank=range(1, 13))
    assert (waited, after) == ([1, 7], [4, 10])


def test_without_a_viewer_no_figures_are_made_and_steps_are_evaluated_together(figures_made):
    waited, after, steps_wait = figures_made([1, 2])
    assert (waited, after) == ([1], [])
    assert set(steps_wait) > {5, 6, 7}


def test_with_few_ranks_steps_are_evaluated_for_a_frame(figures_made, monkeypatch):
    monkeypatch.setattr(viewers, "MANY_RANKS", WORLD + 1)
    waited, after, steps_wait = figures_made([4, 8])
    assert (waited, after) == ([4, 8], [])
    assert set(steps_wait) > {5, 6, 7}


def test_an_error_after_a_frame_costs_the_next_one(figures_made):
    def fail_in(at):
        if at == 4:
            raise ValueError("made up")

    waited, after, _ = figures_made(range(1, 13), fail_in)
    assert waited == [1, 6, 7], "the fifth failed"
    assert after[0] == 4


def test_viewers_get_all_of_the_history_once_also_from_figures_made_before(tmp_path, monkeypatch):
    monkeypatch.setattr(viewers, "MANY_RANKS", WORLD)
    monkeypatch.setattr(viewers, "FIGURES_NS", NS)
    monkeypatch.setattr(viewers, "AHEAD_NS", NS // 4)
    monkeypatch.setattr(viewers, "WINDOW", 1)
    points, frames, shown, newest = ([], []), [], [], []

    def serve(at, now_ns, intake, record, reducer):
        monkeypatch.setattr(viewers, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
        frames.append(frames[-1] if frames else LiveFrames(reducer, record, "live"))
        for every, mine in zip((1, 3), points, strict=True):
            if at % every == 0:
                frame = frames[0](cursor=len(mine), focus=None, want="")
                mine.extend(frame.history.step.tolist())
                shown.append((at, frame.group.window_steps))
                frames[0].prepare_next()
        newest[:] = reducer.state.history.since(0).step.tolist()

    received(tmp_path / "run.ddptop", after_each=serve)
    assert len(newest) > 10
    for mine, behind in zip(points, (1, 3), strict=True):
        assert mine == newest[: len(mine)]
        assert len(newest) - len(mine) <= 12 * behind
    assert len({figure for _, figure in shown}) > 2
