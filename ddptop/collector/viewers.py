"""Frames for the viewers: each gets them at its own pace, and none is waited for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from ddptop.agent.internal_errors import InternalErrors
from ddptop.analysis.stall.current import rank_states, stall_diagnosis
from ddptop.analysis.to_frame.frame import with_reports
from ddptop.collector.position_requests import PositionRequests
from ddptop.frames.codec import POINTS, encode_frame
from ddptop.frames.verdict import WINDOW
from ddptop.protocol.messages import State
from ddptop.transport.credit import LARGEST_FRAME_BYTES, CreditServer, WaitingViewer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.analysis.reducer import Reducer
    from ddptop.analysis.state import RunState
    from ddptop.collector.record import Record
    from ddptop.frames.frame import Frame
    from ddptop.protocol.vocabulary import FrameSource

INTERVAL_NS = 200_000_000
"""Time between two frames. What ranks have reported is then at a viewer within 0.3 s: other hosts' agents
take up to 0.05 s. Viewers for which frames are dear ask for fewer."""

FIGURES_NS, MANY_RANKS = 2_000_000_000, 1024
"""From MANY_RANKS ranks on, a frame may show medians of up to FIGURES_NS before, beside the ranks' steps,
phases, counts and ages as they are now. Medians over 100 steps change little meanwhile, and with 4,096 ranks
they and the hosts take five times as long as the rest of a frame."""

AHEAD_NS = INTERVAL_NS * 3 // 2
"""Medians that become too old within this time are made again after a frame was sent, so that the next frame
does not wait for them."""


class FrameMaker(Protocol):
    """Makes a frame of the group now, with the history from point `cursor` on."""

    def __call__(self, *, cursor: int, focus: int | None, want: str) -> Frame:
        """`focus`: the rank whose single steps are requested; `want`: see `ddptop.frames.detail`."""


class LiveFrames:
    """Makes the frames of a run that goes on: a `FrameMaker`."""

    def __init__(
        self,
        reducer: Reducer,
        record: Record,
        source: FrameSource,
        ask: Callable[[int, int], None] = lambda session, number: None,
    ) -> None:
        """`ask` sends an ASK of a number to a session, and may fail silently."""
        self._reducer, self._record, self._source = reducer, record, source
        self._positions = PositionRequests(reducer, ask)
        self._failed: Exception | None = None
        """What `prepare_next` raised: the next frame fails with it."""
        self._last: Frame | None = None
        """The newest with figures of its own, where it has many ranks."""
        self._made_ns = 0
        self._shown = False
        """Whether another frame has got its figures since."""
        self._happened = (0, 0)
        """`RunState.happened` when it was made."""

    def __call__(self, *, cursor: int, focus: int | None, want: str) -> Frame:
        """A frame, as `FrameMaker` describes it; of many ranks it may be the last one with new reports."""
        now_ns, plain = time.monotonic_ns(), focus is None and not want
        self._positions.ask_wanted(want, now_ns)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        # Only a plain frame can be made of the last one: a rank's page and details have parts of their own.
        if plain and self._last is not None and now_ns - self._made_ns < FIGURES_NS:
            state = self._reducer.state
            if self._still_fits(self._last, state, now_ns):
                self._shown = True
                return with_reports(state, self._last, now_ns, cursor=cursor)
        return self._make_frame(now_ns, plain=plain, cursor=cursor, focus=focus, want=want)

    def prepare_next(self) -> None:
        """After a frame was sent, where there are many ranks: evaluate the steps that wait, and make figures
        that will soon be too old."""
        if self._last is None:
            return
        try:
            state = self._reducer.state
            state.settle()
            now_ns = time.monotonic_ns()
            # Where no other frame has got them, the next one probably comes when new ones are too old, too.
            old = self._shown and now_ns - self._made_ns >= FIGURES_NS - AHEAD_NS
            if old and self._still_fits(self._last, state, now_ns):
                self._make_frame(now_ns, plain=True, cursor=state.history.end)
        except Exception as error:  # noqa: BLE001 - the next frame has it
            self._last, self._failed = None, error

    def _make_frame(
        self, now_ns: int, *, plain: bool, cursor: int, focus: int | None = None, want: str = ""
    ) -> Frame:
        """A frame with figures of its own."""
        recording, source = self._record.existing_path, self._source
        frame = self._reducer.frame(
            now_ns, cursor=cursor, focus=focus, want=want, source=source, recording=recording
        )
        if plain:
            state = self._reducer.state
            self._last = frame if state.world >= MANY_RANKS else None
            self._made_ns, self._shown, self._happened = now_ns, False, state.happened
        return frame

    def _still_fits(self, last: Frame, state: RunState, now_ns: int) -> bool:
        """Whether the medians of the last frame can be shown with what has been reported since.

        They can if no event was logged, all ranks are in the same state, none is stalled, and the window of
        steps is full.
        """
        if last.group.window_steps < WINDOW or last.stall is not None or state.happened != self._happened:
            return False
        lost = int(state.table.lost_records.sum())
        if state.ended_ns is not None or lost != last.lost_records:
            return False
        states = rank_states(state, now_ns)
        return tuple(states) == last.ranks.state and stall_diagnosis(state, states, now_ns) is None


class Viewers:
    """Serves frames over the credit link."""

    def __init__(self, server: CreditServer, frame: FrameMaker, *, epoch: int) -> None:
        self._server = server
        self._frame = frame
        self._epoch = epoch
        self._behind: set[bytes] = set()
        """Viewers that lack part of the history: they get the next frame at once."""
        self._packed: dict[str, tuple[object, bytes]] = {}
        """Parts of the last frame, packed."""
        self._errors = InternalErrors()

    def serve_due(self, now_ns: int, *, final: bool = False) -> bool:
        """Send a frame to every viewer with credit for which one is due; `final`: to all with credit.

        Returns whether any was due."""
        due = [viewer for viewer in self._server.waiting_viewers() if final or self._due_ns(viewer) <= now_ns]
        for viewer in due:
            try:
                self._send_frame(viewer, now_ns)
            except Exception:  # noqa: BLE001 - an error costs one frame, not the collector
                self._errors.note_exception()
                # Its credit is used up, or it would be tried again in every round.
                self._server.deny_frame(viewer.name, now_ns)
        return bool(due)

    def ms_until_frame(self, now_ns: int, most: int) -> int:
        """Milliseconds until a frame is due, at most `most`."""
        due = min(
            (self._due_ns(viewer) for viewer in self._server.waiting_viewers()),
            default=now_ns + most * 1_000_000,
        )
        # Rounded up: waking a moment too early would be a round for nothing.
        return max(0, min(most, -((now_ns - due) // 1_000_000)))

    def _due_ns(self, viewer: WaitingViewer) -> int:
        return 0 if viewer.sent_ns is None or viewer.name in self._behind else viewer.sent_ns + INTERVAL_NS

    def _send_frame(self, viewer: WaitingViewer, now_ns: int) -> None:
        skipped = 0 if viewer.sent_ns is None else (viewer.since_ns - viewer.sent_ns) // INTERVAL_NS
        credit = viewer.credit
        # The cursor counts points of one collector; another one has counted anew.
        cursor = credit.cursor if credit.epoch == self._epoch else 0
        focus = credit.focus if credit.focus >= 0 else None
        frame = self._frame(cursor=cursor, focus=focus, want=credit.want)
        # Parts that have not changed since the last frame are not packed again.
        data = encode_frame(frame, self._packed)
        if len(data) > LARGEST_FRAME_BYTES:
            raise ValueError(f"a frame of {len(data)} bytes does not fit the link")
        self._behind.discard(viewer.name)
        sent = self._server.send_frame(viewer.name, State(self._epoch, skipped, data), now_ns)
        # A frame holds at most POINTS points, so that a new viewer has more to come.
        if sent and len(frame.history.step) > POINTS:
            self._behind.add(viewer.name)
