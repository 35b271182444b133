"""The live source, against a collector that a test plays by hand."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import encode_frame
from ddptop.frames.history import COLUMNS, History
from ddptop.host.processes import current_process
from ddptop.host.runs import RunFile, view_endpoint, write_run_file
from ddptop.protocol.messages import Received, State
from ddptop.sources import live as live_module
from ddptop.sources import request_pace
from ddptop.sources.live import LiveSource, LocalLink, aged_frame, final_frame
from ddptop.sources.request_pace import RequestPace
from ddptop.transport.credit import CreditServer
from ddptop.transport.sockets import new_context
from tests.made_up_run import hello, run_message, write_recording


def make_frame(state="live", first=0, points=10):
    """A frame of two ranks, with history points numbered from `first`."""
    reducer = Reducer()
    for message in (run_message(state), hello(0, 2), hello(1, 2)):
        reducer.feed(Received(1, getattr(message, "rank", -1), getattr(message, "session", 0), 0, message))
    numbers = np.arange(first, first + points, dtype=np.float64)
    return replace(reducer.frame(2), history=History(first, **dict.fromkeys(COLUMNS, numbers)))


class Play:
    """The collector's part."""

    def __init__(self, directory):
        pid, start, boot, namespace = current_process()
        self.run = RunFile("name", "run", pid, start, boot, namespace, 1.0, "", 2, None, directory)
        write_run_file(directory, self.run)
        self.context = new_context()
        self.server = CreditServer(self.context, view_endpoint(directory))
        self.source = LiveSource(self.run)

    def wait_for(self, condition):
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.005)

    def credit(self, condition=lambda credit: True):
        """The viewer's credit, once it is so."""

        def asked():
            self.server.drain_credits(time.monotonic_ns())
            return any(condition(viewer.credit) for viewer in self.server.waiting_viewers())

        self.wait_for(asked)
        return self.server.waiting_viewers()[0]

    def send(self, frame, *, epoch=1, skipped=0, data=None):
        state = State(epoch, skipped, encode_frame(frame) if data is None else data)
        self.server.send_frame(self.credit().name, state, 1)

    def close(self):
        self.source.close()
        self.source.close()
        self.server.close()
        self.context.destroy(linger=0)


@pytest.fixture
def play(tmp_path):
    tmp_path.chmod(0o700)
    made = Play(tmp_path)
    yield made
    made.close()


def test_frames_come_with_all_history_and_the_cursor_moves_on(play):
    source = play.source
    assert (source.latest(), source.status()) == (None, "waiting for the collector of name")
    source.start()
    assert (play.credit().credit.cursor, play.credit().credit.focus) == (0, -1)
    play.send(make_frame(points=10))
    play.wait_for(lambda: source.latest() is not None)
    assert source.status() is None
    source.focus(1)
    play.credit(lambda credit: (credit.epoch, credit.cursor) == (1, 10))
    play.send(make_frame(first=10, points=5), skipped=3)
    play.wait_for(lambda: len(source.latest().history.step) == 15)
    np.testing.assert_array_equal(source.latest().history.step, np.arange(15))
    assert source.skipped == 3
    play.credit(lambda credit: credit.focus == 1)


def test_another_collectors_history_replaces_the_old_one(play):
    play.source.start()
    play.send(make_frame(points=10))
    play.credit(lambda credit: credit.cursor == 10)
    play.send(make_frame(first=4, points=3), epoch=2)
    play.wait_for(lambda: play.source.latest().history.start == 4)
    assert len(play.source.latest().history.step) == 3
    play.credit(lambda credit: (credit.epoch, credit.cursor) == (2, 7))


def test_a_history_too_long_for_one_frame_is_shown_when_it_is_whole(play):
    play.source.start()
    play.send(make_frame(points=100_000))
    cursor = play.credit(lambda credit: credit.cursor > 0).credit.cursor
    assert play.source.latest() is None
    play.send(make_frame(first=cursor, points=10))
    play.wait_for(lambda: play.source.latest() is not None)
    shown = play.source.latest().history
    assert shown.start + len(shown.step) == shown.step[-1] + 1 == cursor + 10


def test_a_frame_of_another_version_is_told(play):
    play.source.start()
    play.send(None, data=b"\x91\x63")
    play.wait_for(lambda: "another version" in (play.source.status() or ""))
    assert play.source.latest() is None


def test_silence_makes_it_stale_and_a_dead_collector_lost(play):
    play.source.start()
    play.send(make_frame())
    play.wait_for(lambda: play.source.latest() is not None)
    first = play.source.latest()
    play.wait_for(lambda: play.source.latest().run.state == "stale")
    stale = play.source.latest()
    assert stale.unix_s > first.unix_s
    assert f"the collector (PID {play.run.pid}) does not answer" in play.source.status()
    write_run_file(play.run.directory, replace(play.run, process_start=1))
    play.wait_for(lambda: play.source.latest().run.state == "lost")
    assert "is gone" in play.source.status()
    write_run_file(play.run.directory, play.run)
    play.send(make_frame(first=10))
    play.wait_for(lambda: play.source.latest().run.state == "live")
    assert play.source.status() is None


def test_the_last_frame_of_a_run_stays(play, monkeypatch):
    monkeypatch.setattr(live_module, "SILENT_S", 0.0)
    play.source.start()
    play.send(make_frame("failed"))
    play.wait_for(lambda: play.source.latest() is not None)
    (play.run.directory / "run.json").unlink()
    asked = []
    monkeypatch.setattr(LocalLink, "is_running", lambda _: bool(asked.append(1)))
    play.wait_for(lambda: asked)
    assert play.source.latest().run.state == "failed"
    assert play.source.status() == "the run has failed"


def test_a_source_closes_while_its_thread_is_stuck(play, monkeypatch):
    stuck, released = threading.Event(), threading.Event()

    def wait_for_ever(link, ms):
        threads.append(threading.current_thread())
        stuck.set()
        released.wait()

    threads: list[threading.Thread] = []
    monkeypatch.setattr(LocalLink, "wait_for_frame", wait_for_ever)
    try:
        play.source.start()
        assert stuck.wait(20)
        play.source.close()
        assert not released.is_set() and threads[0].is_alive()
    finally:
        released.set()
        threads[0].join(20)


def test_without_a_collector_it_says_so(play):
    (play.run.directory / "run.json").unlink()
    play.source.start()
    play.wait_for(lambda: play.source.status() == "the collector of name is gone")
    assert play.source.latest() is None


def test_a_run_that_ended_before_its_first_frame_came_is_shown_as_it_ended(play, tmp_path):
    path = tmp_path / "run.ddptop"
    write_recording(path)
    play.run = replace(play.run, recording=str(path))
    play.source = LiveSource(play.run)
    (play.run.directory / "run.json").unlink()
    play.source.start()
    try:
        play.wait_for(lambda: play.source.latest() is not None)
        assert play.source.latest().run.state == "finished"
        assert play.source.latest().source == "live"
        assert play.source.status() == "the run has finished"
    finally:
        play.source.close()


def test_the_last_picture_has_the_history_that_begins_first(tmp_path):
    """The tail of the recording has more points than bins of steps: of fewer steps."""
    path = tmp_path / "run.ddptop"
    write_recording(path, count=100)
    whole = make_frame(points=20).history
    whole = replace(whole, time_s=np.linspace(0.0, 3600.0, 20), early=12)
    end = final_frame(replace(make_frame(), history=whole), str(path))
    assert end.run.state == "finished"
    assert end.history is whole
    assert len(final_frame(make_frame(points=1), str(path)).history.step) == 100


def test_what_replay_can_do_does_nothing_here(play):
    play.source.play()
    play.source.set_speed(2.0)
    play.source.seek(step=3)


def test_an_aged_frame_calls_nobody_live():
    frame = make_frame()
    ranks = replace(frame.ranks, state=("live", "finished"), age_ms=np.array([10.0, np.nan]))
    older = aged_frame(replace(frame, ranks=ranks), 2.0, "lost")
    assert older.run.state == "lost"
    assert older.ranks.state == ("lost", "finished")
    assert older.ranks.age_ms[0] == 2010.0
    assert older.run.elapsed_s == frame.run.elapsed_s + 2.0
    assert older.unix_s == frame.unix_s + 2.0


ALL = (-1, "")


def test_frames_that_cost_much_are_asked_for_more_rarely(monkeypatch):
    spent = iter(np.arange(0, 100, 0.009))
    monkeypatch.setattr(request_pace.time, "process_time", lambda: float(next(spent)))
    pace, pauses = RequestPace(), []

    def note_frames(count, *spent_s):
        nonlocal spent
        spent = iter(spent_s) if spent_s else spent
        for _ in range(count):
            pace.note_frame(is_whole=True)
            pauses.append(pace.pause_s)

    note_frames(12)
    assert pauses[0] == 0, "what it takes to start is not the cost of a frame"
    assert pauses[-1] == pytest.approx(0.009 / request_pace.CPU_SHARE)
    note_frames(1, 100.0)
    assert pauses[-1] == pytest.approx(pauses[-2]), "neither is a key that was pressed once"
    note_frames(9, *range(101, 110))
    assert pauses[-1] == request_pace.SLOWEST_S
    pace.slowest_s = 0.1
    note_frames(1, 110.0)
    assert pauses[-1] == 0.1


def test_the_next_frame_is_asked_for_when_the_last_one_was_taken(play):
    source = play.source
    source.pace.slowest_s = 3600.0
    source.start()
    play.send(make_frame())
    play.wait_for(lambda: source.status() is None)
    asked_s = time.monotonic()
    assert not source.pace.is_due(ALL, asked_s, is_taken=False)
    source.latest()
    play.credit()


def test_the_pause_counts_from_one_request_to_the_next_and_not_from_the_frame():
    pace = RequestPace()
    pace.note_request(ALL, 1000.0)
    pace.is_owed, pace.pause_s = False, 100.0
    assert not pace.is_due(ALL, 1099.0, is_taken=True)
    assert pace.is_due(ALL, 1101.0, is_taken=True)


def test_a_new_wish_does_not_wait_for_the_pause(play):
    source = play.source
    source.pace.slowest_s = 3600.0
    source.start()
    play.send(make_frame())  # nobody takes it
    play.wait_for(lambda: source.status() is None)
    source.focus(1)
    assert play.credit(lambda credit: credit.focus == 1)
    play.send(make_frame())
    play.wait_for(lambda: not source.pace.is_owed)
    source.request("timeline")
    assert play.credit(lambda credit: credit.want == "timeline")


def test_an_internal_error_is_shown_and_reading_starts_over(play, monkeypatch):
    source = play.source
    monkeypatch.setattr(live_module, "ASK_AGAIN_S", 0.05)
    source.start()
    play.send(make_frame(points=10))
    play.wait_for(lambda: source.latest() is not None)
    with monkeypatch.context() as broken:
        broken.setattr(live_module, "SILENT_S", 0.0)
        broken.setattr(LocalLink, "is_running", lambda _: 1 // 0)
        play.wait_for(lambda: source.failure() is not None)
        assert source.failure().startswith("internal error: ZeroDivisionError: ")
        assert source.latest().run.state == "stale"
    play.wait_for(lambda: send_if_asked(play) or source.failure() is None)
    assert source.latest().run.state == "live"
    assert len(source.latest().history.step) == 10


def send_if_asked(play):
    """The new connection asks for all history."""
    play.server.drain_credits(time.monotonic_ns())
    for viewer in play.server.waiting_viewers():
        if viewer.credit.cursor == 0:
            play.server.send_frame(viewer.name, State(1, 0, encode_frame(make_frame(points=10))), 1)


def test_reading_takes_a_share_of_a_core_whatever_arrives(monkeypatch):
    clock = {"now_s": 0.0, "cpu_s": 0.0}
    times = SimpleNamespace(monotonic=lambda: clock["now_s"], thread_time=lambda: clock["cpu_s"])
    monkeypatch.setattr(live_module, "time", times)
    allowance = live_module.CpuAllowance(share=0.05, at_once_s=1.0)
    clock["cpu_s"] = 0.9
    assert allowance.rest_s() == 0, "a long history may take so much at once"
    clock["cpu_s"] = 1.1
    assert allowance.rest_s() == pytest.approx(2.0)
    clock["now_s"] = 2.0
    assert allowance.rest_s() == pytest.approx(0.0)
    clock["cpu_s"] = 10.0
    assert allowance.rest_s() == live_module.LONGEST_REST_S
