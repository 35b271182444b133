"""`ddptop --connect` through a real sshd, and through what stands in for srun and kubectl."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ddptop.cli.commands.relay import run_meant
from ddptop.cli.errors import CliError, Exit
from ddptop.cli.main import main
from tests.made_up_run import write_recording
from tests.processes import DDPTOP, DEADLINE_S, environment, processes_of, run, started, until
from tests.sshd import REPOSITORY, Sshd, needs_sshd, script
from tests.test_terminal import needs_tmux
from tests.tmux import Terminal, terminals

RANKS = 3


class Far:
    """A simulated run, and an sshd on its host. The near end has a home of its own, without any run."""

    def __init__(self, place: Path) -> None:
        (place / "far").mkdir()
        (place / "near").mkdir()
        (place / "sshd").mkdir()
        self.far = environment(place / "far")
        self.sshd = Sshd(place / "sshd", self.far)
        self.cwd = place
        path = f"{self.sshd.programs}:{os.environ['PATH']}"
        self.near = environment(place / "near") | {"PATH": path, "PYTHONPATH": str(REPOSITORY)}
        self.name = ""

    def look(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`ddptop` at the near end, run to its end."""
        return run([*DDPTOP, *words], self.near, self.cwd, cold=True)

    def at_far_end(self) -> list[int]:
        """Processes of `ddptop relay` at the far end, and of `ssh` at the near end."""
        found = []
        for process in [*processes_of(self.far), *processes_of(self.near)]:
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if "relay" in words or any(word.endswith("/ssh") for word in words[:2]):
                found.append(process.pid)
        return found


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    made = Far(tmp_path_factory.mktemp("connect"))
    training = [*DDPTOP, "demo", "--simulate", str(RANKS), "--headless", "--steps", "100000"]
    with started(training, made.far, made.cwd, cold=True) as process:

        def name() -> str:
            listed = run([*DDPTOP, "ls", "--json"], made.far, made.cwd, cold=True).stdout
            return next((each["name"] for each in json.loads(listed)["runs"]), "") if listed else ""

        made.name = str(until(name, "a run"))
        made.sshd.start()
        try:
            yield made
        finally:
            made.sshd.stop()
            process.send_signal(signal.SIGINT)
            process.wait(DEADLINE_S)


@needs_sshd
@pytest.mark.parametrize("host", [pytest.param("far", marks=pytest.mark.slow), "jumped"])
def test_a_run_on_another_host_and_through_a_jump_host(far: Far, host: str) -> None:
    done = far.look("--connect", f"{host}/{far.name[:-2]}", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["run"]["name"], shown["run"]["world_size"]) == (far.name, RANKS)
    assert done.stderr == ""
    until(lambda: not far.at_far_end(), "nothing left")


@needs_sshd
@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--connect", "far/nothere"], Exit.NOT_FOUND, "is called 'nothere'"),
        (["--connect", "nowhere.invalid"], Exit.FAILED, "cannot reach nowhere.invalid: ssh: "),
        (["--connect", "far", "--remote-command", "ddtop"], Exit.FAILED, "far: no ddptop there ("),
        (["--connect", "far", "--remote-command", "echo"], Exit.FAILED, "cannot reach far: ssh ended"),
    ],
)
def test_why_a_run_cannot_be_shown_is_one_line(far: Far, words: list[str], code: Exit, line: str) -> None:
    done = far.look("--once", *words)
    assert line in done.stderr, done
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--connect", "far:22"], Exit.REFUSED, "for ssh on another port: --connect ssh://far:22"),
        (["--connect", "slurm:x"], Exit.USAGE, "slurm:JOBID"),
        (["--connect", "-oProxyCommand=x"], Exit.USAGE, "expected one argument"),
        (["--connect=-oProxyCommand=x"], Exit.USAGE, "give [user@]host[/RUN]"),
        (["report", "--connect", "far"], Exit.USAGE, "report does not work over --connect"),
        (["--connect", "far", "replay"], Exit.USAGE, "replay does not work over --connect"),
        (["--connect", "--", "/nowhere/kubectl"], Exit.FAILED, "/nowhere/kubectl: No such file"),
    ],
)
def test_a_target_that_cannot_be_is_one_line(
    home_here: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: Exit, line: str
) -> None:
    assert main(words if words[0] == "report" else ["--once", *words]) == code
    shown = capsys.readouterr()
    assert line in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


@needs_sshd
def test_an_unknown_host_key_is_refused(far: Far) -> None:
    far.sshd.trust_host(False)
    try:
        done = far.look("--connect", "far", "--once")  # nobody is there to be asked
    finally:
        far.sshd.trust_host()
    assert done.stderr == "ddptop: far: Host key verification failed.\n"
    assert (done.returncode, done.stdout) == (Exit.REFUSED, "")
    assert far.sshd.known_hosts.read_text()


def test_of_several_runs_none_is_taken(live_run) -> None:
    live_run("train-k7qf", "aa11")
    live_run("train-a9a9", "bb22")
    for word in (None, "train"):
        with pytest.raises(CliError, match="name one: train-") as refused:
            run_meant(word)
        assert refused.value.code == Exit.NOT_FOUND
    assert run_meant("train-k").run_id == "aa11"
    assert run_meant("bb22").name == "train-a9a9"


@needs_sshd
@pytest.mark.parametrize(
    "end",
    [
        signal.SIGTERM,
        signal.SIGKILL,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_when_the_viewer_ends(far: Far, end: signal.Signals) -> None:
    with started([*DDPTOP, "--connect", "far", "--watch"], far.near, far.cwd, cold=True) as viewer:
        assert viewer.stdout is not None
        assert "step" in viewer.stdout.readline()
        assert far.at_far_end()
        viewer.send_signal(end)
        viewer.communicate(timeout=DEADLINE_S)
        assert viewer.returncode == (-9 if end is signal.SIGKILL else 128 + end)
        until(lambda: not far.at_far_end(), "nothing left")


@pytest.fixture
def screen(far: Far) -> Iterator[Terminal]:
    env = far.near | {"LANG": "C.UTF-8"}
    env.pop("OLDPWD", None)
    with terminals(env, far.cwd) as factory:
        yield factory(80, 24)  # type: ignore[operator]


def step_of(terminal: Terminal) -> int:
    found = re.search(r"step ([\d,]+)", terminal.screen())
    return int(found[1].replace(",", "")) if found else -1


def moves(terminal: Terminal) -> bool:
    before = step_of(terminal)
    return bool(until(lambda: step_of(terminal) > before >= 0, "steps go on"))


@pytest.mark.slow
@needs_tmux
@needs_sshd
def test_the_screen_over_ssh_and_after_the_connection_broke(far: Far, screen: Terminal) -> None:
    screen.type(f"{' '.join(DDPTOP)} --connect far")
    screen.wait_for("LIVE")
    assert moves(screen)
    before = far.at_far_end()
    for pid in before:
        with suppress(ProcessLookupError):  # the one ends with the other
            os.kill(pid, signal.SIGKILL)

    def another() -> bool:
        now = far.at_far_end()
        return len(now) == len(before) and not set(now) & set(before)

    until(another, "another connection")
    assert moves(screen)
    far.sshd.stop()
    screen.wait_for("no connection to far")
    screen.wait_for("STALE")
    far.sshd.start()
    assert moves(screen)
    screen.press("q")
    screen.wait_for("ready>")
    until(lambda: not far.at_far_end(), "nothing left")


@pytest.mark.slow
@needs_tmux
@needs_sshd
def test_a_question_of_ssh_is_asked_on_the_terminal(far: Far, screen: Terminal) -> None:
    far.sshd.trust_host(False)
    try:
        screen.type(f"{' '.join(DDPTOP)} --connect far --once")
        screen.wait_for("(yes/no")
        screen.type("yes")
        screen.wait_for("ddptop's overhead")
    finally:
        far.sshd.trust_host()


@needs_sshd
def test_srun_and_kubectl_are_given_what_they_take(far: Far, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    give = f'PATH={far.sshd.place}/far:$PATH XDG_RUNTIME_DIR={far.far["XDG_RUNTIME_DIR"]} exec "$@"'
    script(far.sshd.programs / "srun", f'echo "$@" > {seen}\nshift 5\n{give}')
    script(far.sshd.programs / "kubectl", f'echo "$@" > {seen}\nshift 4\n{give}')
    done = far.look("--connect", "slurm:417", "--json")
    assert json.loads(done.stdout)["run"]["name"] == far.name
    assert seen.read_text() == "--overlap --ntasks=1 --nodes=1 --quiet --jobid=417 ddptop relay\n"
    done = far.look(far.name, "--json", "--connect", "--", "kubectl", "exec", "-i", "pod-0", "--")
    assert json.loads(done.stdout)["run"]["name"] == far.name
    assert seen.read_text() == f"exec -i pod-0 -- ddptop relay {far.name}\n"


@needs_sshd
def test_what_srun_says_without_a_ddptop_there(far: Far, tmp_path: Path) -> None:
    said = "slurmstepd: error: execve(): ddptop: No such file or directory\nsrun: error: task 0: exit code 2"
    srun = script(tmp_path / "srun", f"echo '{said}' >&2; exit 2")
    done = far.look("--once", "--connect", "--", str(srun))
    assert "no ddptop there (slurmstepd: error: execve(): ddptop: No such file or directory)" in done.stderr
    assert (done.returncode, done.stderr.count("\n")) == (Exit.FAILED, 1)


@needs_sshd
def test_of_a_run_that_has_ended_the_end_is_shown(far: Far) -> None:
    write_recording(Path(far.far["XDG_STATE_HOME"]) / "ddptop" / "done.ddptop", run_id="ee55")
    shown = json.loads(far.look("--connect", "far/ee55", "--json").stdout)
    assert (shown["source"], shown["run"]["state"], shown["group"]["step"]) == ("live", "finished", 99)
    assert far.look("--connect", "far/done", "--watch").returncode == Exit.DONE
    until(lambda: not far.at_far_end(), "nothing left")


@pytest.mark.slow
@needs_tmux
@needs_sshd
def test_a_connection_that_says_nothing_is_given_up(far: Far, screen: Terminal) -> None:
    screen.type(f"{' '.join(DDPTOP)} --connect far")
    screen.wait_for("LIVE")
    stopped = [pid for pid in far.at_far_end() if "ssh" in psutil.Process(pid).name()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    screen.wait_for("nothing arrives from far")
    assert moves(screen)  # over another connection
    until(lambda: not any(map(psutil.pid_exists, stopped)), "the stopped ones are gone")
    screen.press("q")
    screen.wait_for("ready>")
    until(lambda: not far.at_far_end(), "nothing left")


def test_why_no_collector_is_reached_over_tcp_is_said(
    home_here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddptop.cli.connect.TCP_S", 0.2)
    key = str(home_here / "key")
    assert main(["key", "new", key]) == 0
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        capsys.readouterr()
        assert main(["--connect", where, "--key", key, "--once"]) == Exit.FAILED
    said = capsys.readouterr().err
    assert f"no connection to {where}" in said
    assert said.endswith(": Connection refused; was the run started with --ddptop-listen?\n")
    assert main(["--connect", "no-such-host.invalid:7077", "--key", key, "--once"]) == Exit.FAILED
    assert re.search(r"in 0\.2 s: .*name.*; was the run", capsys.readouterr().err, re.IGNORECASE)
