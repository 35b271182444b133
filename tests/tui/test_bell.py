"""The terminal's bell and title: once for each alert of a live run."""

from __future__ import annotations

from dataclasses import replace

from ddptop.frames.frame import Alert, Frame
from ddptop.tui.terminal import AGAIN_S, Attention
from tests.tui import fake

LATE = Alert("straggler", "warning", 1, None, 1.0, "rank 1 is late", {})


def frame(at_s: float, *alerts: Alert, source: str = "live", name: str = "run") -> Frame:
    made = fake.live()
    run = replace(made.run, name=name)
    return replace(made, run=run, alerts=alerts, unix_s=at_s, source=source)  # type: ignore[arg-type]


def test_a_new_alert_rings_once_and_the_title_has_the_worst() -> None:
    attention = Attention()
    assert attention.see(frame(0.0)) == "\x1b]2;ddptop run\x1b\\"
    assert attention.see(frame(1.0)) == ""
    assert attention.see(frame(2.0, LATE)) == "\a\x1b]2;ddptop run: straggler\x1b\\"
    assert attention.see(frame(3.0, LATE)) == ""
    stall = Alert("stall", "critical", 0, 7, 1.0, "stalled", {})
    assert attention.see(frame(4.0, stall, LATE)) == "\a\x1b]2;ddptop run: stall\x1b\\"
    assert attention.see(frame(5.0, replace(stall, rank=3), LATE)) == "", "the same stall"
    assert attention.see(frame(6.0, stall, replace(LATE, rank=2))) == "\a", "another straggler"


def test_an_alert_that_comes_and_goes_rings_again_only_after_a_while() -> None:
    attention = Attention()
    attention.see(frame(0.0))
    assert attention.see(frame(1.0, LATE)).startswith("\a")
    attention.see(frame(2.0))
    assert not attention.see(frame(30.0, LATE)).startswith("\a")
    attention.see(frame(31.0))
    assert attention.see(frame(31.0 + AGAIN_S, LATE)).startswith("\a")


def test_what_is_there_at_the_first_look_and_a_replay_ring_nothing() -> None:
    assert "\a" not in Attention().see(frame(0.0, LATE))
    replayed = Attention()
    assert replayed.see(frame(0.0, source="replay")) + replayed.see(frame(1.0, LATE, source="replay")) == ""


def test_a_name_cannot_steer_the_terminal() -> None:
    assert Attention().see(frame(0.0, name="a\x1b]0;b\x07c")).count("\x1b") == 2, "its own two"
