"""The collector's small parts, one at a time."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddptop.collector import watch as watch_module
from ddptop.collector.arguments import Arguments, parse
from ddptop.collector.launcher_pipe import LauncherPipe
from ddptop.collector.usage import UsageSampler
from ddptop.collector.watch import GRACE_NS, SILENCE_NS, ProcessWatch, RankProcess

NEEDED = ["--run-dir", "/run", "--run-id", "id", "--name", "name", "--record", "off"]


def test_arguments_have_defaults_and_checks(capsys):
    assert parse(NEEDED) == Arguments(run_dir=Path("/run"), run_id="id", name="name", record=None)
    full = parse([*NEEDED, "--record", "/r", "--record-limit", "5", "--stall", "2", "--argv", '["a", "b"]'])
    assert (full.record, full.record_limit, full.stall_s, full.argv) == (Path("/r"), 5, 2.0, ("a", "b"))
    for bad in (["--argv", "{"], ["--argv", "[1]"], ["--record-limit", "0"], ["--stall", "x"]):
        with pytest.raises(SystemExit) as caught:
            parse([*NEEDED, *bad])
        assert caught.value.code == 2
    capsys.readouterr()


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    made = LauncherPipe(reading)
    yield made, writing
    os.close(reading)


def test_an_exit_code_ends_the_run_even_when_it_comes_in_pieces(pipe):
    launcher, writing = pipe
    launcher.read()
    os.write(writing, b'{"exit_c')
    launcher.read()
    assert not launcher.ended
    os.write(writing, b'ode": 3}\n')
    launcher.read()
    assert (launcher.ended, launcher.exit_code) == (True, 3)
    os.close(writing)


def test_other_words_are_passed_over_and_the_end_is_the_end(pipe):
    launcher, writing = pipe
    os.write(writing, b'\xff\n[]\n{"exit_code": "x"}\n{"exit_code": true}\nnothing\n')
    launcher.read()
    assert not launcher.ended
    os.close(writing)
    launcher.read()
    assert (launcher.ended, launcher.exit_code) == (True, None)


class Registry(set):
    """Stands for the poller."""

    def watch(self):
        return ProcessWatch(self.add, self.remove)


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no pidfd here")
def test_the_end_of_a_process_wakes_the_poller(child):
    registry = Registry()
    watch = registry.watch()
    process = RankProcess(1, 0, child.pid)
    watch.add(process, time.time(), 0)
    assert watch.living() == [process]
    (descriptor,) = registry
    child.kill()
    assert select.select([descriptor], [], [], 20)[0]
    watch.note_ended([descriptor], 5)
    assert registry == set()
    assert watch.take_gone(5 + GRACE_NS - 1) == []
    assert watch.take_gone(5 + GRACE_NS) == [process]
    assert (watch.take_gone(10**12), len(watch)) == ([], 0)


def test_without_pidfds_a_look_finds_it(child, monkeypatch):
    monkeypatch.setattr(watch_module, "_open_pidfd", lambda pid: None)
    watch = Registry().watch()
    watch.add(RankProcess(1, 0, child.pid), time.time(), 0)
    watch.look(1)
    assert len(watch.living()) == 1
    child.kill()
    child.wait()
    watch.look(2)
    assert watch.take_gone(2 + GRACE_NS) == [RankProcess(1, 0, child.pid)]


def test_a_bye_makes_the_end_no_alarm(child):
    registry = Registry()
    watch = registry.watch()
    watch.add(RankProcess(1, 0, child.pid), time.time(), 0)
    watch.forget(1)
    assert (registry, len(watch)) == (set(), 0)


def test_a_process_that_was_never_seen_is_gone_only_when_it_is_silent():
    watch = Registry().watch()
    watch.add(RankProcess(1, 0, 2**22 + 9), time.time(), 0)
    watch.heard(1, 100)
    assert watch.take_gone(99 + SILENCE_NS) == []
    assert len(watch.take_gone(100 + SILENCE_NS)) == 1


def test_a_pid_that_somebody_else_has_by_now_is_not_the_rank(child):
    registry = Registry()
    watch = registry.watch()
    watch.add(RankProcess(1, 0, child.pid), time.time() - 3600, 0)
    assert registry == set()
    assert watch.living() == []
    watch.close()


def test_usage_comes_with_the_second_reading(child):
    sampler = UsageSampler()
    gone = RankProcess(2, 1, 2**22 + 9)
    processes = [RankProcess(1, 0, child.pid), gone]
    assert sampler.sample(processes, 1) == []
    ((process, usage),) = sampler.sample(processes, 2)
    assert process.rank == 0
    assert usage.t_ns == 2
    assert usage.rss_bytes > 0
    assert usage.cpu_pct >= 0
