"""The collector's small parts, one at a time."""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ddptop.agent.launcher import LINGER_NS, Arguments, LauncherPipe, parse_arguments, ranks_started
from ddptop.agent.local_ranks import LocalRanks
from ddptop.collector import supervisor as supervisor_module
from ddptop.collector.intake import Intake
from ddptop.collector.record import PROGRESS_EVERY_NS, KeptBeats
from ddptop.collector.supervisor import CollectorSupervisor, RunSummary
from ddptop.host import rank_processes as watch_module
from ddptop.host.exits import RankExit, RankProcess
from ddptop.host.kernel_view import UsageSampler
from ddptop.host.processes import process_status
from ddptop.host.rank_processes import GRACE_NS, SILENCE_NS, ProcessWatch
from ddptop.host.runs import write_command
from ddptop.host.step_counters import new_step_counter
from ddptop.protocol.messages import Event, Received
from tests.made_up_run import hello
from tests.run_processes import wait_for

NS = 1_000_000_000

NEEDED = ["--run-dir", "/run", "--run-id", "id", "--name", "name", "--record", "off"]


def test_the_script_comes_from_a_private_file_without_secrets(tmp_path):
    tmp_path.chmod(0o700)
    words = ["--run-dir", str(tmp_path), *NEEDED[2:]]
    for arguments, argv in ((True, ("a b.py", "--token", "***")), (False, ("a b.py",))):
        write_command(tmp_path, ["a b.py", "--token", "s3cr3t"], arguments=arguments)
        assert (parse_arguments(words).script, parse_arguments(words).argv) == ("a b.py", argv)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert parse_arguments(words).argv == ()


def test_arguments_have_defaults_and_checks(capsys):
    assert parse_arguments(NEEDED) == Arguments(run_dir=Path("/run"), run_id="id", name="name", record=None)
    full = parse_arguments([*NEEDED, "--record", "/r", "--record-limit", "5", "--stall", "2"])
    assert (full.record, full.record_limit, full.stall_s) == (Path("/r"), 5, 2.0)
    for bad in (["--record-limit", "0"], ["--stall", "x"]):
        with pytest.raises(SystemExit) as caught:
            parse_arguments([*NEEDED, *bad])
        assert caught.value.code == 2
    capsys.readouterr()


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    made = LauncherPipe("run", lambda: False, lambda: False, reading)
    yield made, writing
    os.close(reading)


def test_an_exit_code_ends_the_run_even_when_it_comes_in_pieces(pipe):
    launcher, writing = pipe
    launcher.read_lines()
    os.write(writing, b'{"exit_c')
    launcher.read_lines()
    assert not launcher.ended
    os.write(writing, b'ode": 3}\n')
    launcher.read_lines()
    assert (launcher.ended, launcher.exit_code) == (True, 3)
    os.close(writing)


def test_ends_of_processes_come_before_the_end_of_the_run(pipe):
    launcher, writing = pipe
    os.write(writing, b'{"exits": [{"pid": 7, "exit_code": -9}, {"pid": 0, "exit_code": 1}, 3]}\n')
    os.write(
        writing, b'{"exits": [{"pid": 8, "exit_code": 3}, {"pid": 9}]}\n{"exits": 1}\n{"exit_code": 1}\n'
    )
    launcher.read_lines()
    assert launcher.take_exits() == [(7, -9), (8, 3)]
    assert launcher.take_exits() == []
    assert launcher.exit_code == 1
    os.close(writing)


def test_other_words_are_passed_over_and_the_end_is_the_end(pipe):
    launcher, writing = pipe
    os.write(writing, b'\xff\n[]\n{"exit_code": "x"}\n{"exit_code": true}\nnothing\n')
    launcher.read_lines()
    assert not launcher.ended
    os.close(writing)
    launcher.read_lines()
    assert (launcher.ended, launcher.killed, launcher.exit_code) == (False, True, None)


def test_without_its_launcher_a_run_ends_a_moment_after_its_last_rank():
    reading, writing = os.pipe()
    ranks = [4711]
    launcher = LauncherPipe("run", lambda: bool(ranks), lambda: True, reading)
    launcher.check_end(0)
    assert not launcher.ended
    os.close(writing)
    launcher.read_lines()
    os.close(reading)
    launcher.check_end(10 * LINGER_NS)
    ranks.clear()
    launcher.check_end(20 * LINGER_NS)
    assert not launcher.ended  # another rank may be about to report
    ranks.append(4712)
    launcher.check_end(21 * LINGER_NS)
    ranks.clear()
    launcher.check_end(22 * LINGER_NS)
    assert not launcher.ended
    launcher.check_end(23 * LINGER_NS)
    assert launcher.ended
    assert launcher.ended_well


def test_ranks_that_have_not_reported_yet_are_known_by_their_environment():
    env = os.environ | {"DDPTOP_RUN_ID": "of-this-test", "LOCAL_RANK": "0"}
    rank = subprocess.Popen(["sleep", "60"], env=env, start_new_session=True)
    child = subprocess.Popen(["sleep", "60"], env=env)  # has no session of its own
    try:
        wait_for(lambda: [pid for pid, _ in ranks_started("of-this-test")] == [rank.pid])
        assert ranks_started("of-another") == []
    finally:
        for process in (rank, child):
            process.kill()
            process.wait()


def ends(exits):
    """The exits without what the kernel has counted of memory: some machines hide that."""
    return [exit._replace(out_of_memory=None) for exit in exits]


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
    watch.watch_process(process, time.time(), 0)
    assert watch.living_processes() == [process]
    (descriptor,) = registry
    child.kill()
    assert select.select([descriptor], [], [], 20)[0]
    watch.note_readable([descriptor], 5)
    assert registry == set()
    assert watch.take_exits(5 + GRACE_NS - 1) == []
    assert ends(watch.take_exits(5 + GRACE_NS)) == [RankExit(process, 5, -9, False, False)]
    assert (watch.take_exits(10**12), len(watch)) == ([], 0)


def test_without_pidfds_a_look_finds_it(child, monkeypatch):
    monkeypatch.setattr(watch_module, "open_pidfd", lambda pid: None)
    watch = Registry().watch()
    watch.watch_process(RankProcess(1, 0, child.pid), time.time(), 0)
    watch.check_processes(1)
    assert len(watch.living_processes()) == 1
    child.kill()
    child.wait()
    watch.check_processes(2)
    process = RankProcess(1, 0, child.pid)
    assert ends(watch.take_exits(2 + GRACE_NS)) == [RankExit(process, 2, None, False, False)]
    assert (watch.take_exits(10**12), len(watch)) == ([], 0)
    watch.note_exit_code(child.pid, -9, 3)
    assert ends(watch.take_exits(3)) == [RankExit(process, 2, -9, False, True)]
    assert watch.take_exits(10**12) == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no pidfd here")
def test_after_a_bye_nobody_waits_for_the_end_which_is_told_all_the_same(child):
    registry = Registry()
    watch = registry.watch()
    process = RankProcess(1, 0, child.pid)
    watch.watch_process(process, time.time(), 0)
    watch.note_bye(1)
    assert (watch.living_processes(), len(watch)) == ([], 0)
    child.stdin.close()  # input() raises
    (descriptor,) = registry
    assert select.select([descriptor], [], [], 20)[0]
    watch.note_readable([descriptor], 5)
    assert ends(watch.take_exits(5)) == [RankExit(process, 5, 1, True, False)]
    watch.forget_session(1)
    assert registry == set()


def test_a_launcher_that_means_another_process_with_the_same_pid_is_passed_over(child):
    watch = Registry().watch()
    watch.watch_process(RankProcess(1, 0, child.pid), time.time(), 0)
    watch.note_exit_code(child.pid, 1, 5)
    assert len(watch.living_processes()) == 1
    assert watch.take_exits(10**12) == []
    watch.close()


def test_only_a_process_that_stays_held_is_told(child):
    watch = Registry().watch()
    process = RankProcess(1, 0, child.pid)
    watch.watch_process(process, time.time(), 0)
    os.kill(child.pid, signal.SIGSTOP)
    wait_for(lambda: process_status(child.pid).state == "T")
    assert [watch.check_processes(at) for at in (1, 2, 3)] == [[], [(process, True)], []]
    assert watch.living_processes() == [process]
    os.kill(child.pid, signal.SIGCONT)
    wait_for(lambda: process_status(child.pid).state != "T")
    assert [watch.check_processes(at) for at in (4, 5)] == [[(process, False)], []]
    watch.close()


def test_a_rank_that_makes_its_counter_after_its_hello_is_counted_all_the_same(tmp_path):
    watch = Registry().watch()
    greeting = hello(0, 1, session=1)
    watch.watch_process(RankProcess(1, 0, os.getpid()), time.time(), 0)
    assert [one.steps for one in watch.unaccounted_exits(5)] == [None]
    counter = new_step_counter(tmp_path, greeting)
    os.pwrite(counter, struct.pack("=Q", 41), 0)
    with mmap.mmap(counter, 8):
        watch.find_counter(1)
    os.close(counter)
    assert [one.steps for one in watch.unaccounted_exits(5)] == [41]
    watch.close()


def test_a_process_that_was_never_seen_is_gone_only_when_it_is_silent():
    watch = Registry().watch()
    watch.watch_process(RankProcess(1, 0, 2**22 + 9), time.time(), 0)
    watch.note_message(1, 100)
    assert watch.take_exits(99 + SILENCE_NS) == []
    assert len(watch.take_exits(100 + SILENCE_NS)) == 1


def test_a_pid_that_somebody_else_has_by_now_is_not_the_rank(child):
    registry = Registry()
    watch = registry.watch()
    watch.watch_process(RankProcess(1, 0, child.pid), time.time() - 3600, 0)
    assert registry == set()
    assert watch.living_processes() == []
    watch.close()


def test_usage_comes_with_the_second_reading(child):
    sampler = UsageSampler()
    gone = RankProcess(2, 1, 2**22 + 9)
    processes = [RankProcess(1, 0, child.pid), gone]
    assert sampler.sample_usage(processes, 1) == []
    ((process, usage),) = sampler.sample_usage(processes, 2)
    assert process.rank == 0
    assert usage.t_ns == 2
    assert usage.rss_bytes > 0
    assert usage.cpu_pct >= 0


def test_a_collector_that_does_not_read_never_holds_up_the_launcher(tmp_path):
    supervisor = CollectorSupervisor([], tmp_path / "log")
    supervisor.process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE, text=True
    )
    try:
        for _ in range(300):  # a pipe holds 64 KiB
            supervisor.report_exits([(2**22, -15)] * 120)
    finally:
        supervisor.process.kill()
        supervisor.process.communicate()
    supervisor.report_exits([(7, 0)])


DYING = ["sh", "-c", 'echo started >> "$0"; exit 1']
SUMMING_UP = [
    "sh",
    "-c",
    """read line; echo '{"steps": 7, "records": 8, "lost": 3,
"recording": null, "recording_note": null}' | tr '\\n' ' '""",
]
NEWS = """echo '{"news": "lost", "text": "5 records missing so far"}'"""


def test_a_collector_is_started_again_as_long_as_the_run_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor_module, "RESTART_AFTER_S", 1e-4)
    monkeypatch.setattr(supervisor_module, "MOST_PAUSE_S", 0.01)
    told: list[str] = []
    supervisor = CollectorSupervisor([], tmp_path / "run" / "collector.log", told.append)
    marks = tmp_path / "marks"
    supervisor.command = [DYING[0], DYING[1], f"{NEWS}; {DYING[2]}", str(marks)]
    supervisor.start_process()
    wait_for(lambda: marks.exists() and len(marks.read_text().splitlines()) > 25)
    supervisor.command = SUMMING_UP
    assert supervisor.finish_run(0) == RunSummary(7, 8, 3, None, None)
    assert told[0] == "5 records missing so far"
    assert [text for text in told[1:] if "keeps ending" not in text] == [], "each kind of news once"
    assert len(told) == 2


@pytest.mark.parametrize(
    ("module", "script", "told"),
    [
        ("ddptop.agent", "kill -9 $$", "its agent keeps ending (killed by SIGKILL); it is started again"),
        (
            "ddptop.collector",
            "echo 'ddptop collector: no such folder' >&2; exit 1",
            "its collector keeps ending (ddptop collector: no such folder); it is started again",
        ),
    ],
)
def test_what_keeps_ending_is_named_with_the_reason(tmp_path, monkeypatch, module, script, told):
    monkeypatch.setattr(supervisor_module, "RESTART_AFTER_S", 1e-4)
    notices: list[str] = []
    supervisor = CollectorSupervisor([], tmp_path / "run" / "log", notices.append, module=module)
    supervisor.command = ["sh", "-c", script]
    supervisor.start_process()
    wait_for(lambda: notices)
    supervisor.command = SUMMING_UP
    supervisor.finish_run(0)
    assert notices == [told]


def test_one_that_died_at_the_very_end_is_asked_once_more(tmp_path):
    supervisor = CollectorSupervisor([], tmp_path / "collector.log")
    supervisor.command = ["sh", "-c", "read line"]
    supervisor.start_process()
    supervisor.command = SUMMING_UP
    summary = supervisor.finish_run(0)
    assert summary is not None and summary.lost == 3
    supervisor.command = ["sh", "-c", "exit 1"]
    assert supervisor.finish_run(0) == summary, "what has been reported is not asked again"


COUNTS = """
import os, sys
memory = os.memfd_create("ddptop-steps-7")
os.write(memory, (41).to_bytes(8, sys.byteorder))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory without a file is Linux's")
def test_what_a_killed_process_had_counted_is_known(monkeypatch):
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", COUNTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    registry = Registry()
    watch = registry.watch()
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        listed = Path.iterdir
        closed = Path(f"/proc/{process.pid}/fd/999")  # a file that was closed since it was listed
        monkeypatch.setattr(Path, "iterdir", lambda path: iter([closed, *listed(path)]))
        watch.watch_process(RankProcess(7, 0, process.pid), time.time(), 0)
        watch.watch_process(RankProcess(8, 1, process.pid), time.time(), 0)
        process.kill()
        assert {gone.process.session: gone.steps for gone in watch.unaccounted_exits(1)} == {7: 41, 8: None}
        process.wait()
        watch.note_readable(set(registry), 1)
        assert {gone.process.session: gone.steps for gone in watch.take_exits(NS)} == {7: 41, 8: None}
    finally:
        watch.close()
        process.kill()
        process.communicate()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no pidfd here")
def test_pidfds_leave_descriptors_for_connections(child, monkeypatch):
    monkeypatch.setattr(watch_module.resource, "getrlimit", lambda _: (12, 12))
    registry = Registry()
    watch = registry.watch()
    for session in range(1, 10):
        watch.watch_process(RankProcess(session, session, child.pid), time.time(), 0)
    assert len(registry) == 12 // watch_module.DESCRIPTORS_SHARE
    assert len(watch.living_processes()) == 9  # the others are looked at
    watch.forget_session(1)
    watch.watch_process(RankProcess(10, 10, child.pid), time.time(), 0)
    assert len(registry) == 3
    watch.close()
    assert registry == set()


def test_a_pid_that_no_process_can_have_is_none(monkeypatch):
    watch = Registry().watch()
    watch.watch_process(RankProcess(1, 0, 2**31), time.time(), 0)
    assert watch.living_processes() == []


def test_a_message_that_sets_off_an_error_of_ours_is_counted_and_the_next_one_taken(capsys):
    arriving = [(Received(1, 0, 1, number, Event("x", 1, 0, number)), b"") for number in (1, 2, 3)]
    kept, said = [], []

    def heard(_session, _now_ns, *, trains):
        if len(kept) == 1:
            kept.append(None)
            raise OverflowError("signed integer is greater than maximum")

    receiver = SimpleNamespace(drain_messages=lambda _: arriving, refused=0, refused_why="")
    record = SimpleNamespace(
        add_message=lambda received, _: kept.append(received), set_history=lambda _: None
    )
    reducer = SimpleNamespace(feed=said.append)
    admission = SimpleNamespace(find_returning=lambda *_: None)
    ranks = LocalRanks(receiver, SimpleNamespace(note_message=heard), admission)
    intake = Intake(ranks, record, reducer, None, None)
    assert intake.take_arrived(1) == 3
    assert kept == [arriving[0][0], None, arriving[1][0], arriving[2][0]]  # that one, too
    intake.report_refused(1)
    assert said[-1].message.fields == {"refused": 0, "failed": 1, "reason": ""}
    told = len(said)
    intake.report_refused(10**12)
    assert len(said) == told  # once, until there are more
    assert "OverflowError" in capsys.readouterr().err


def test_of_each_process_one_heartbeat_a_second_is_kept_however_many_come_together():
    rng, beats, kept_ns, now_ns = np.random.default_rng(1), KeptBeats(), {}, 0
    sessions = np.array([0, 7, 2**62, 2**63 - 1, *range(100, 140)])
    for _ in range(200):
        count = int(rng.choice([0, 1, 5, 30, 300]))
        of, t_ns = (
            rng.choice(sessions[: rng.integers(1, 45)], count),
            np.sort(now_ns + rng.integers(0, 2 * PROGRESS_EVERY_NS, count)),
        )
        kept = []
        for session, arrived_ns in zip(of.tolist(), t_ns.tolist(), strict=True):
            kept.append(arrived_ns - kept_ns.get(session, -PROGRESS_EVERY_NS) >= PROGRESS_EVERY_NS)
            if kept[-1]:
                kept_ns[session] = arrived_ns
        assert beats.choose_beats(of, t_ns).tolist() == kept
        now_ns = int(t_ns.max(initial=now_ns))


def test_sessions_of_which_nothing_comes_any_more_take_no_memory():
    beats = KeptBeats()
    for second in range(100):
        of = np.arange(50) + 50 * second
        assert beats.choose_beats(of, np.full(50, second * PROGRESS_EVERY_NS)).all()
    assert len(beats.sessions) <= 101
    many = beats.choose_beats(np.zeros(100_000, np.int64), np.full(100_000, 200 * PROGRESS_EVERY_NS))
    assert np.flatnonzero(many).tolist() == [0]
