"""The frames of a demo, from before its run is there: until then the source says what is waited for."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ddptop.cli.errors import CliError
from ddptop.sources.live import CollectorSource, Link, LocalLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.frames.frame import Frame
    from ddptop.host.runs import RunFile


class DemoSource(CollectorSource):
    """Waits for the run of a demo in its own thread, and reads it from then on."""

    def __init__(
        self,
        name: str,
        wait_for_run: Callable[[Callable[[str], None], threading.Event], RunFile | None],
        see: Callable[[Frame], None],
        close_screen: Callable[[], None],
    ) -> None:
        """`wait_for_run` returns the run file once it is there, and None once the event is set; it is given
        what to call with each new line that says what is waited for. `see`: called with each new frame.
        `close_screen`: called where there will be no run."""
        super().__init__(name, None)
        self._wait_for_run = wait_for_run
        self._see = see
        self._close_screen = close_screen
        self._run: RunFile | None = None
        self._seen: Frame | None = None
        self.problem: CliError | None = None
        """Why there will be no run."""

    def latest(self) -> Frame | None:
        """See Source."""
        frame = super().latest()
        # Counted once for each frame, however often the screen asks.
        if frame is not None and frame is not self._seen:
            self._seen = frame
            self._see(frame)
        return frame

    def _read_frames(self) -> None:
        if self._run is None:
            try:
                self._run = self._wait_for_run(self._set_status, self._stop)
            except CliError as problem:
                self.problem = problem
                self._set_status(str(problem))
                # The thread ends here: there is nothing to read.
                self._stop.set()
                self._close_screen()
        if self._run is not None:
            self._recording = self._run.recording
            self._received_s = time.monotonic()  # its collector has been silent for no time yet
            super()._read_frames()

    def _set_status(self, line: str) -> None:
        self._status = line

    def _open_link(self) -> Link:
        assert self._run is not None
        return LocalLink(self._run)
