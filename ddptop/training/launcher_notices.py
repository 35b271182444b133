"""From a launcher's notice on: each step is sent at its end, until the launcher's signal ends the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ddptop.host.end_notices import EndNotices
from ddptop.training.recorder import Recorder

ENDING_S = 0.25
"""How long after a launcher's notice each step is sent at its end: the signal follows in `NOTICE_S` at most.
A script that handles the signal may train on after it."""

HOLD_S = 0.02
"""How long a training thread may wait then, between two steps, until the step before is sent."""


class StepHold:
    """While a launcher is about to end this process: the training thread waits between two steps until the
    step before is sent, HOLD_S at most, and a step counts as finished once it is.

    So that no step is finished and not sent, whenever the signal comes. All methods but `_hold_step` are the
    publisher's.

    The signal comes during a `_hold_step`, and the script's handler may raise there. So the two threads share
    a lock of C, and no `threading.Event`: an exception inside its methods may leave its lock locked for good.
    """

    def __init__(self, recorder: Recorder, wake_up: Callable[[], None]) -> None:
        """`wake_up`: has the publisher send; an exception of a signal handler may leave it anywhere."""
        self._recorder = recorder
        self._wake_up = wake_up
        self._until_s = 0.0
        self._sending = self._n_sent = recorder.step
        self._nothing_new_sent = threading.Lock()
        """Released by the publisher when it has sent something, acquired by the training thread."""
        self._nothing_new_sent.acquire()
        self._counter = recorder.counter
        recorder.counter = [0]  # nobody reads it

    def renew_hold(self, has_notice: bool) -> bool:
        """Note what is about to be sent; to be called before finished steps are taken. Returns False, and
        ends the hold, where the process has not been ended in time."""
        if has_notice:
            self._until_s = time.monotonic() + ENDING_S
        if time.monotonic() >= self._until_s:
            self.end_hold()
            return False
        if self._hold_step not in self._recorder.between_steps:  # there may be something else to do
            self._recorder.do_between_steps(self._hold_step)
        self._sending = self._recorder.step
        return True

    def note_sent(self) -> None:
        """Note that the steps that had finished at the last `renew_hold` are sent."""
        self._n_sent = self._counter[0] = self._sending
        if self._nothing_new_sent.locked():
            self._nothing_new_sent.release()

    def _hold_step(self) -> None:
        """Wait until the step that has just ended is sent; called on the training thread."""
        end_s = time.monotonic() + HOLD_S
        self._wake_up()
        while self._n_sent < self._recorder.step and (left_s := end_s - time.monotonic()) > 0:
            self._nothing_new_sent.acquire(timeout=left_s)

    def end_hold(self) -> None:
        """Training goes on as before."""
        recorder = self._recorder
        with suppress(ValueError):
            recorder.between_steps.remove(self._hold_step)
        recorder.counter = self._counter
        while self._counter[0] != recorder.step:  # the training thread may just finish a step
            self._counter[0] = recorder.step


class LauncherNotices:
    """The launchers' notices to this process, and what the publisher waits on: either wakes it.

    `wake_up` is for any thread; all other methods are the publisher's.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.hold: StepHold | None = None
        """From a notice until ENDING_S later, in which the launcher mostly ends this process."""
        self._recorder = recorder
        self._wake = threading.Event()
        self._socket: EndNotices | None = None
        self._launchers: list[str | bytes] = []
        """Launchers that have given notice and are not answered yet."""

    def open_socket(self, folder: Path, session: int) -> None:
        """From now on launchers can give notice, where the system has such sockets. Without one, steps of
        up to a quarter of a second are missing at the end."""
        with suppress(OSError, AttributeError):
            self._socket = EndNotices(folder, session)

    def wake_up(self) -> None:
        """End a `wait_for_wake`, or the next one."""
        self._wake.set()
        if self._socket is not None:
            self._socket.end_wait()

    def wait_for_wake(self, timeout_s: float) -> bool:
        """Wait until another thread or a launcher wakes this one; returns whether one has, in this time."""
        began_s = time.monotonic()
        if self._socket is None or self._wake.is_set() or not self._socket.wait_for_notice(timeout_s):
            return self._wake.wait(timeout_s)
        return self._wake.is_set() or time.monotonic() - began_s < timeout_s

    def clear_wake(self) -> None:
        """What woke the publisher so far is about to be done."""
        if self._wake.is_set():  # mostly not, and to clear it takes three times as long
            self._wake.clear()

    def take_notices(self) -> bool:
        """Whether a launcher has given notice that it ends this process in a moment. From then on training
        waits for its steps to be sent (`hold`)."""
        if self._socket is None:
            return False
        launchers = self._socket.take_notices()
        if not launchers and self.hold is None:
            return False
        self._launchers += launchers
        if launchers and self.hold is None:
            self.hold = StepHold(self._recorder, self._socket.end_wait)
        if self.hold is not None and not self.hold.renew_hold(bool(launchers)):
            self.hold = None
        return bool(launchers)

    def answer_launchers(self) -> None:
        """All that there was when these launchers gave notice is sent."""
        if self._socket is not None:
            self._socket.answer_launchers(self._launchers)
            self._launchers = []

    def close(self) -> None:
        """Close the socket and remove it; training goes on as before."""
        if self.hold is not None:
            self.hold.end_hold()
        if self._socket is not None:
            self._socket.close()

    def close_in_child(self) -> None:
        """In a forked child: close its copy of the socket."""
        if self._socket is not None:
            self._socket.close_in_child()
