"""Frames of a run that goes on, of few ranks and of many."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ddptop.analysis import usual_messages
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
    monkeypatch.setattr("ddptop.transport.bundled_messages.FEWEST_IN_COLUMNS", 1)
    monkeypatch.setattr("ddptop.transport.bundle_receiver.FEWEST_TOGETHER", 1)
    monkeypatch.setattr(usual_messages, "SESSIONS_OF_A_MESSAGE", 0)
    found = {}
    frames = None

    def note(at, now_ns, intake, record, reducer):
        nonlocal frames
        frames = frames or LiveFrames(reducer, record, "live")
        monkeypatch.setattr(viewers, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
        if at == EVENT:
            intake.report(Event("internal_error", now_ns, -1, -1, {"message": "x"}), now_ns)
        frame = frames(cursor=0, focus=None, want="")
        exact = reducer.frame(now_ns, recording=record.existing)
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
