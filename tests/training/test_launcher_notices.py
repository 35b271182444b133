"""A rank whose launcher is about to end it: what training waits for, and what wakes its publisher."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ddptop.host.end_notices import give_notice
from ddptop.training import launcher_notices
from ddptop.training.launcher_notices import LauncherNotices, StepHold
from ddptop.training.recorder import Recorder
from tests.processes import DEADLINE_S


def close_step(recorder: Recorder) -> None:
    """As where DDP's forward begins after an optimizer has stepped."""
    recorder.optimizer_begins(1)
    recorder.optimizer_ends(1)
    recorder.forward_begins(True)


def test_until_the_launcher_ends_a_rank_a_step_is_finished_once_it_is_sent() -> None:
    """The training thread waits for it between two steps, for a moment at most; then all is as before."""
    recorder = Recorder()
    counter = recorder.counter = [0]
    close_step(recorder)
    assert counter == [1]
    sending: list[StepHold] = []

    def publish() -> None:
        for hold in sending:
            assert counter[0] == recorder.step - 1  # were it killed now, nothing finished would be lost
            assert hold.renew_hold(False)
            hold.note_sent()

    hold = StepHold(recorder, publish)
    recorder.do_between_steps(lambda: None)  # as where more steps are to be recorded
    assert hold.renew_hold(True)
    hold.note_sent()
    assert counter == [1]
    sending.append(hold)
    for steps in (2, 3):
        close_step(recorder)
        assert counter == [steps]
    sending.clear()  # a publisher that cannot run
    hold.renew_hold(True)
    close_step(recorder)
    assert (recorder.step, counter) == (4, [3])
    hold.end_hold()
    close_step(recorder)
    assert counter == [5] and not recorder.between_steps


class Interrupted(Exception):
    """What a script's signal handler raises."""


def interrupt(function: Callable[[], object], place: int) -> bool:
    """Call the function and raise at the `place`-th line, call or return of it and of what it calls, as a
    signal handler may. Returns whether there are so many."""
    n_places = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal n_places
        n_places += 1
        if n_places == place:
            raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        function()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def test_a_signal_handler_that_raises_while_a_step_waits_locks_nobody_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The launcher's signal comes just then. Afterwards the publisher sends, and the rank's end wakes it."""
    monkeypatch.setattr(launcher_notices, "HOLD_S", 0.001)
    recorder = Recorder()
    notices = LauncherNotices(recorder)
    notices.open_socket(tmp_path, 1)

    def publish() -> None:
        give_notice(tmp_path, 0.0)
        assert notices.take_notices() and notices.hold is not None
        notices.hold.note_sent()
        notices.wake_up()
        notices.clear_wake()

    for place in itertools.count(1):
        publishing = threading.Thread(target=publish, daemon=True)
        publishing.start()
        publishing.join(DEADLINE_S)
        assert not publishing.is_alive(), f"it waits for a lock: interrupted at place {place - 1}"
        hold = recorder.between_steps.popleft()
        recorder.step += 1  # not sent, so that it is waited for
        assert hold is not None
        if not interrupt(hold, place):
            break
    assert place > 10
    notices.close()
