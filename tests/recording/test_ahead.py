"""Runs that a second process decodes are those that the first one would have decoded."""

import gc
import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from ddptop.frames.codec import encode_frame
from ddptop.recording import ahead, runs
from ddptop.recording.reader import Recording
from ddptop.report.build import read_report
from ddptop.sources.replay import frame_of
from tests.made_up_run import a_run, write
from tests.processes import run

SMALL = "import ddptop.recording.runs as runs; runs.RUN_RECORDS = 100"


@pytest.fixture
def second(monkeypatch):
    """Read also a small recording in two processes; returns what was noted of the second ones."""
    noted = []
    monkeypatch.setattr(ahead, "LEAST_BYTES", 0)
    monkeypatch.setattr(ahead, "FIRST_RECORDS", 1)
    monkeypatch.setattr(ahead, "ANSWER_S", 60.0)  # a busy machine
    monkeypatch.setattr(runs, "RUN_RECORDS", 100)
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(ahead, "_CODE", ahead._CODE.replace("from ddptop", f"{SMALL}; from ddptop", 1))
    close = ahead.Decoder.close
    monkeypatch.setattr(ahead.Decoder, "close", lambda self: noted.append(self.finished) or close(self))
    return noted


def _messages(path):
    with Recording.open(path) as recording:
        found = [run.received(at) for run in recording.runs() for at in range(len(run))]
        return found, [*recording.lasting_messages()], recording.damage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.ddptop"
    write(path, a_run(600))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2 : len(damaged) // 2 + 9] = b"\0" * 9
    path.write_bytes(damaged)
    return path


def test_two_processes_read_the_same_messages_as_one(path, second, monkeypatch):
    together = _messages(path)
    assert second == [True]
    monkeypatch.setattr(ahead, "LEAST_BYTES", 1 << 40)
    assert together == _messages(path)
    assert together[2] is not None
    assert second == [True]


def test_the_first_process_decodes_what_is_left_when_the_second_one_dies(path, second, monkeypatch):
    take, taken = ahead.Decoder.take_run, []

    def take_one(self):
        if taken:
            self._process.kill()
            self._process.wait()
            return None  # nothing that it had sent is used, and no count of it is merged
        taken.append(take(self))
        return taken[-1]

    monkeypatch.setattr(ahead, "MOST_AHEAD_BYTES", 1)
    monkeypatch.setattr(ahead.Decoder, "take_run", take_one)
    together = _messages(path)
    assert taken[0] is not None
    monkeypatch.setattr(ahead, "LEAST_BYTES", 1 << 40)
    assert together == _messages(path)


def test_a_second_process_that_is_stopped_is_not_waited_for(path, second, monkeypatch):
    expected = _messages(path)
    monkeypatch.setattr(ahead, "ANSWER_S", 0.05)
    monkeypatch.setattr(ahead, "_CODE", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    assert _messages(path) == expected
    assert second == [True, False]


def test_without_a_second_process_all_is_read(path, second, monkeypatch):
    expected = _messages(path)
    monkeypatch.setattr(ahead.sys, "executable", "/nowhere/python")
    assert _messages(path) == expected
    assert second == [True]


def test_memory_is_written_again_once_no_array_in_it_is_held():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sizes = 200_000, 300_000, 200_000, 1_000
    with one, other:
        sender, receiver = ahead._Sender(one), ahead._Receiver(other)
        held = []
        for number, size in enumerate(sizes):
            sender.send_content(np.full(size, number))
            held.append(receiver.receive_content())
        assert [array.tolist() for array in held] == [[n] * size for n, size in enumerate(sizes)]
        assert len(receiver._areas) == 4
        parts = [held[1][5:].reshape(-1, 5), held[3]]
        held.clear()
        for number, size in enumerate(sizes, 10):
            assert sender.read_answers()
            sender.send_content(np.full(size, number))
            assert receiver.receive_content().tolist() == [number] * size
        assert len(receiver._areas) == 4
        assert (parts[0] == 1).all()
        assert (parts[1] == 3).all()


def test_where_no_file_can_be_opened_any_more_the_first_process_decodes_the_rest(path, second, monkeypatch):
    recv_fds = socket.recv_fds

    def without_descriptors(connection, size, most):
        data, descriptors, flags, address = recv_fds(connection, size, most)
        for descriptor in descriptors:
            os.close(descriptor)
        return data, [], flags, address

    with Recording.open(path) as recording:
        expected = [run.received(at) for run in recording.runs() for at in range(len(run))]
        assert second == [True]
        monkeypatch.setattr(socket, "recv_fds", without_descriptors)
        assert [run.received(at) for run in recording.runs() for at in range(len(run))] == expected
        assert second == [True, False]


@pytest.mark.parametrize("name", ["straggler", "stall"])
def test_report_and_replay_are_equal_in_two_processes(name, second, monkeypatch):
    results = []
    for least in (0, 1 << 40):
        monkeypatch.setattr(ahead, "LEAST_BYTES", least)
        with Recording.open(Path(__file__).parent / "data" / f"{name}.ddptop") as recording:
            results.append((read_report(recording), encode_frame(frame_of(recording, None))))
    assert results[0][1] == results[1][1]
    assert repr(results[0][0]) == repr(results[1][0])
    assert second == [True, True]


def test_a_second_process_that_was_started_early_decodes_all_and_is_ended_where_nothing_is_read(
    path, second, monkeypatch
):
    monkeypatch.setattr(gc, "disable", lambda: None)  # this process does not end with the recording

    def read_all(recording):
        return [run.received(at) for run in recording.runs() for at in range(len(run))]

    with Recording.open(path) as recording:
        expected = read_all(recording)
        recording.will_be_read()
        assert read_all(recording) == expected
        assert second == [True, True]
        recording.will_be_read()
        process = recording._ahead._process
    assert process.returncode is not None
    assert second == [True, True, False]


def test_memory_that_is_freed_is_kept() -> None:
    code = """if True:
    import resource, sys
    from ddptop.recording.ahead import keep_freed_memory

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(3):
            [bytearray(8 << 20) for _ in range(8)]
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_freed_memory()
    faults()
    print(faults())
    """
    done = run([sys.executable, "-c", code], os.environ, Path.cwd())
    assert int(done.stdout) < 16_384, done.stderr  # so many pages once 64 MiB have
