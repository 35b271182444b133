"""`ddptop-run` beside torchrun: the same output, arguments, tracebacks and exit codes, and its own lines."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.cli import launch
from ddptop.cli.launch import begin_if_possible, begin_torchrun, is_torchrun_over_hosts, main
from ddptop.cli.launch_options import LaunchOptions, abbreviate_others_only, add_options, own_script
from ddptop.frames.numbers import counted
from ddptop.protocol.messages import Card, Event, Hello, Message
from ddptop.recording.reader import Recording, RecordingError
from ddptop.report.build import read_report
from tests.processes import (
    AS_NOBODY,
    DDPTOP,
    DDPTOP_RUN,
    DEADLINE_S,
    NOBODY,
    READING,
    TORCHRUN,
    collector_below,
    environment,
    live_step,
    names_ddptop,
    remove_folder,
    run,
    run_plain,
    started,
    until,
)
from tests.recording.replays import frame_at

ONE = ["--standalone", "--nproc-per-node", "1"]
TWO = ["--standalone", "--nproc-per-node", "2"]
ENDED = Path(__file__).parents[1] / "training" / "scripts" / "ended.py"

DESCRIBE = """
import sys
SITECUSTOMIZE = getattr(sys.modules.get("sitecustomize"), "__file__", None)
import json, os
import torch.nn.parallel
print(json.dumps({"argv": sys.argv[1:], "path": sys.path[1:], "main": __name__,
                  "excepthook": sys.excepthook is sys.__excepthook__,
                  "modules": sorted(m for m in sys.modules if m.startswith(("zmq", "msgpack", "textual"))),
                  "meta_path": [type(f).__name__ for f in sys.meta_path],
                  "sitecustomize": SITECUSTOMIZE,
                  "rank": os.environ["RANK"], "world": os.environ["WORLD_SIZE"]}))
"""

TRAIN = """
import os, sys, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if FAIL_AT and self.calls == FAIL_AT and dist.get_rank() == 0:
            raise ValueError("no such luck")
        return self.layer(x)
FAIL_AT = int(sys.argv[1])
STEPS = int(sys.argv[2])
PAUSE = float(sys.argv[3]) if len(sys.argv) > 3 else 0
GATE = os.environ.get("GATE")
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    if GATE and step >= 50 and not os.path.exists(GATE):
        time.sleep(0.25)  # the test has not looked yet
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(PAUSE)
    if dist.get_rank() == 0 and step % 10 == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
while GATE and not os.path.exists(GATE + ".end"):
    time.sleep(0.05)  # a rank that exits waits only 0.8 s for a collector on a busy machine
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "describe.py").write_text(DESCRIBE)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def both(
    words: list[str], home: Path, extra: dict[str, str] | None = None
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    env = environment(home) | (extra or {})
    return run_plain([*TORCHRUN, *words], env, home), run([*DDPTOP_RUN, *words], env, home)


def own_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("ddptop: ")]


def without_own(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("ddptop: ")]


def test_a_script_finds_itself_as_under_torchrun(home: Path) -> None:
    plain, watched = both([*ONE, "describe.py", "--flag", "a b", "--ddptop-name", "mine"], home)
    assert watched.returncode == plain.returncode == 0, watched.stderr
    assert json.loads(watched.stdout) == json.loads(plain.stdout)


def test_a_module_runs_as_under_torchrun(home: Path) -> None:
    plain, watched = both([*ONE, "-m", "describe", "x"], home)
    assert watched.returncode == plain.returncode == 0
    assert json.loads(watched.stdout) == json.loads(plain.stdout)


def test_a_users_own_sitecustomize_still_runs(home: Path) -> None:
    folder = home / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import os; print('mine', 'RANK' in os.environ, flush=True)\n")
    plain, watched = both([*ONE, "describe.py"], home, {"PYTHONPATH": str(folder)})
    assert plain.stdout.splitlines().count("mine True") == watched.stdout.splitlines().count("mine True") == 1
    described = [json.loads(done.stdout.splitlines()[-1]) for done in (plain, watched)]
    assert described[1] == described[0]
    assert described[1]["sitecustomize"] == str(folder / "sitecustomize.py")


def test_output_and_exit_code_of_a_training_are_the_same(home: Path) -> None:
    plain, watched = both([*TWO, "train.py", "0", "25"], home)
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout) == (0, plain.stdout)
    assert "step 20" in plain.stdout
    assert without_own(watched.stderr) == without_own(plain.stderr)
    first, last = own_lines(watched.stderr)
    assert "watch it with `ddptop train-" in first
    assert re.search(r"25 steps, recorded in .*train-\w{4}\.ddptop$", last), last


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 re-raises with its own copy of the traceback"
)
def test_the_traceback_of_a_failing_rank_is_the_same(home: Path) -> None:
    plain, watched = both([*ONE, "train.py", "3", "10"], home)
    assert watched.returncode == plain.returncode == 1
    wanted, found = (_traceback_of_rank(done.stderr) for done in (plain, watched))
    assert "no such luck" in wanted
    assert found == wanted
    wanted, found = (_traceback_of_launcher(done.stderr) for done in (plain, watched))
    assert "ChildFailedError" in wanted
    assert found == wanted


def _traceback_of_launcher(stderr: str) -> str:
    """Without the frames of the command itself, which `python -m` shows in torchrun's own and not in ours."""
    assert not names_ddptop(re.sub(r"(?m)^ddptop: .*", "", stderr))
    return re.findall(
        r'Traceback \(most recent call last\):\n(?:  File "<frozen.*\n|.*in <module>\n    main\(\)\n'
        r"(?: +[~^]+\n)?)*"
        r"(  File .*?\n\S+Error: )\n=====",
        stderr,
        re.DOTALL,
    )[0]


def _traceback_of_rank(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.startswith("[rank0]:") and "W1" not in line]
    return "\n".join(lines)


def test_how_ranks_ended_is_told_before_the_others_are_ended(home: Path) -> None:
    script = """
import sys
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes
from ddptop.training.torch_compat.launcher import reporting_exits
def tell(ended):
    print([(context.pids()[0] == pid, code) for pid, code in ended], context._failures == {}, flush=True)
from torch.distributed.elastic.multiprocessing.api import PContext, SubprocessContext
with reporting_exits(tell):
    arguments = {0: ("-c", "exit 3"), 1: ("-c", "sleep 60")}
    context = start_processes("x", "/bin/sh", arguments, {0: {}, 1: {}}, DefaultLogsSpecs())
    result = context.wait(60, 0.05)
print({rank: failure.exitcode for rank, failure in result.failures.items()})
print(SubprocessContext.close is PContext.close)
"""
    done = run([sys.executable, "-c", script], environment(home), home)
    told = ["[(True, 3)] False", "[(False, -15)] False"]
    results = ["{0: 3, 1: -15}", "{0: 3}"]  # the second in torch 2.6, which leaves out whom it has ended
    assert done.stdout.splitlines() in [[*told, result, "True"] for result in results], done.stderr


def test_where_a_rank_aborted_the_others_may_fail_themselves_before_they_are_ended(home: Path) -> None:
    script = """
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes
from ddptop.training.torch_compat.launcher import reporting_exits
with reporting_exits(lambda ended: None):
    commands = ("kill -ABRT $$", "until [ -e aborted ]; do sleep 0.02; done; exit 5")
    arguments = {rank: ("-c", command) for rank, command in enumerate(commands)}
    context = start_processes("x", "/bin/sh", arguments, {0: {}, 1: {}}, DefaultLogsSpecs())
    close = type(context).close
    def late(self, *args, **kwargs):
        open("aborted", "w").close()
        return close(self, *args, **kwargs)
    type(context).close = late
    result = context.wait(60, 0.05)
print([handler.proc.returncode for handler in context.subprocess_handlers.values()])
"""
    done = run([sys.executable, "-c", script], environment(home), home)
    assert done.stdout.splitlines() == ["[-6, 5]"], done.stderr


def test_a_killed_rank_ends_the_run_as_torchrun_says_it_and_is_on_record(home: Path) -> None:
    recording = home / "killed.ddptop"
    words = ["--ddptop-record", str(recording), *TWO, "train.py", "0", "100000", "0.02"]

    def recorded() -> list[Message]:
        try:
            with Recording.open(recording) as opened:
                return [item.message for item in opened.records()]
        except (OSError, RecordingError):  # not there yet
            return []

    with started([*DDPTOP_RUN, *words], environment(home), home) as process:
        pid = until(
            lambda: [seen.pid for seen in recorded() if isinstance(seen, Hello) and seen.rank == 1],
            "rank 1 on record",
        )[0]
        os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert f"exitcode  : -9 (pid: {pid})" in err
    events = [message for message in recorded() if isinstance(message, Event)]
    ends = {event.rank: event for event in events if event.kind in ("lost_rank", "exit")}
    assert (ends[1].kind, ends[1].fields["signal"], set(ends)) == ("lost_rank", "SIGKILL", {0, 1})


PATIENT = [sys.executable, Path(__file__).with_name("patient_launcher.py")]


@pytest.mark.parametrize(
    ("cause", "places"),
    [
        ("signalled", ["waits", "handles", "computes", "waits"]),
        ("signalled", ["trains", "trains"]),
        ("signalled", ["sleeps", "holds"]),
        ("failed", ["fails", "sleeps", "computes", "handles"]),
    ],
)
@pytest.mark.slow
def test_what_a_rank_has_finished_when_its_launcher_ends_it_is_recorded(
    home: Path, cause: str, places: list[str]
) -> None:
    """Also of a rank that another signal handler ends, or whose main thread is in C code. A rank whose C code
    holds the interpreter lock ends all the same, and what it has not sent is counted."""
    path = home / "ended.ddptop"
    words = ["--standalone", "--nproc-per-node", str(len(places)), str(ENDED), cause, *places]
    done = run([*PATIENT, "--ddptop-record", path, *words], environment(home), home)
    assert done.returncode == 1, done.stderr
    reducer = Reducer()
    with Recording.open(path) as recording:
        for received in recording.records():
            reducer.feed(received)
    for rank, (place, state) in enumerate(zip(places, reducer.state.ranks, strict=True)):
        code = {"handles": 7, "fails": 3}.get(place)
        assert (state.exit_code, state.signal) == (code, None if code else "SIGTERM"), (rank, place)
        finished = int((home / f"steps-{rank}").read_text())
        assert state.records + state.lost_records >= finished, (rank, place)
        if place not in ("holds", "fails"):
            assert state.lost_records == 0, (rank, place)


@pytest.mark.parametrize(
    "words", [["no_such_script.py"], ["--nproc-per-node", "many", "train.py"], ["--no-such-option"]]
)
def test_mistakes_end_with_the_exit_code_of_torchrun(home: Path, words: list[str]) -> None:
    plain, watched = both(["--standalone", *words], home)
    assert watched.returncode == plain.returncode != 0


def test_elastic_restarts_show_as_incarnations(home: Path) -> None:
    # A rendezvous file for each attempt: on the agent's store gloo may find the ranks of the attempt before.
    start = """import os
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/{os.environ['TORCHELASTIC_RUN_ID']}-{attempt}",
                        rank=int(os.environ["RANK"]), world_size=2)"""
    train = TRAIN.replace('dist.init_process_group("gloo")', start)
    (home / "flaky.py").write_text(train + "sys.exit(attempt == '0')\n")
    words = [*TWO, "--max-restarts", "1", "flaky.py", "0", "10"]
    plain, watched = both(words, home)
    assert watched.returncode == plain.returncode == 0, watched.stderr
    assert watched.stdout == plain.stdout
    shown = run([*DDPTOP, "replay", _recording(watched.stderr), "--once"], environment(home), home)
    assert "elastic restart 1: 2 ranks" in shown.stdout, shown.stdout


def _recording(stderr: str) -> str:
    match = re.search(r"recorded in (\S+\.ddptop)", stderr)
    assert match, stderr
    return match[1]


def test_off_is_torchrun_alone(home: Path) -> None:
    done = run([*DDPTOP_RUN, "--ddptop-off", *ONE, "train.py", "0", "3"], environment(home), home)
    assert done.returncode == 0
    assert not own_lines(done.stderr)


def test_exec_gives_the_commands_own_exit_code_and_streams(home: Path) -> None:
    env = environment(home)
    script = "import sys; print(sys.stdin.read() == '', sys.argv[1:]); sys.exit(7)"
    done = run([*DDPTOP_RUN, "--ddptop-exec", sys.executable, "-c", script, "--ddptop-off"], env, home)
    assert (done.returncode, done.stdout) == (7, "True ['--ddptop-off']\n")
    missing = run([*DDPTOP_RUN, "--ddptop-exec", "no-such-command"], env, home)
    assert missing.returncode == 127
    assert "no-such-command" in missing.stderr


INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000): pass
            except KeyboardInterrupt:  # as in modules that torch imports
                sys.exit("swallowed")

interrupted = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupt())
from ddptop.cli.entry import launch
sys.exit(launch())
"""


@pytest.mark.parametrize("module", ["ddptop.cli.launch", "torch", "torch.distributed.run"])
def test_ctrl_c_while_torch_is_imported_ends_at_once_and_without_a_traceback(home: Path, module: str) -> None:
    env = environment(home)
    done = run([sys.executable, "-c", INTERRUPTED_IMPORT, module, *ONE, "train.py"], env, home)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
    assert not [path for path in home.rglob("*") if path.is_file() and path.suffix != ".py"]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_exec_hands_signals_on_to_the_command(home: Path, sign: signal.Signals) -> None:
    wait = "import signal, sys; print('up', flush=True); signal.sigwait({2, 3, 15}); sys.exit(9)"
    code = wait.replace("print", "signal.pthread_sigmask(signal.SIG_BLOCK, {2, 3, 15}); print")
    with started(
        [*DDPTOP_RUN, "--ddptop-exec", sys.executable, "-c", code], environment(home), home
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(sign)
        assert process.wait(DEADLINE_S) == 9
        assert process.stderr is not None
        assert "no training step was seen" in own_lines(process.stderr.read())[-1], "the run is ended"


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_run_is_ended_does_not_stop_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sign: signal.Signals
) -> None:
    ended = []

    class EndedLate:
        def end_run(self, exit_code: int) -> None:
            os.kill(os.getpid(), sign)
            ended.append(exit_code)

    handlers = [signal.getsignal(number) for number in launch.ENDING]
    monkeypatch.setattr(launch, "begin_if_possible", lambda *_: EndedLate())
    assert main(["--ddptop-exec", sys.executable, "-c", "raise SystemExit(3)"]) == 3
    assert (ended, capsys.readouterr().err) == ([3], "")
    assert [signal.getsignal(number) for number in launch.ENDING] == handlers


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_command_is_begun_reaches_it(
    monkeypatch: pytest.MonkeyPatch, sign: signal.Signals
) -> None:
    """This process would end otherwise, and leave the command behind."""

    class SignalledPopen(subprocess.Popen[bytes]):
        def __init__(self, command: list[str]) -> None:
            super().__init__(command)
            os.kill(os.getpid(), sign)

    monkeypatch.setattr(launch, "begin_if_possible", lambda *_: None)
    monkeypatch.setattr(launch.subprocess, "Popen", SignalledPopen)
    handlers = [signal.getsignal(number) for number in launch.FORWARDED]
    assert main(["--ddptop-exec", "sleep", f"{DEADLINE_S}"]) == 128 + sign
    assert [signal.getsignal(number) for number in launch.FORWARDED] == handlers


COUNT_SIGNALS = """
import signal
numbers = {signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("up", flush=True)
while (number := signal.sigwait(numbers)) != signal.SIGUSR1:
    print(signal.Signals(number).name, flush=True)
"""


@pytest.mark.parametrize(
    ("key", "sign"),
    [(b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT), (b"", signal.SIGINT), (b"", signal.SIGQUIT)],
)
def test_in_a_terminal_a_key_and_a_sent_signal_reach_the_command_once(
    home: Path, key: bytes, sign: signal.Signals
) -> None:
    """The key goes to all processes of the foreground, the signal to the launcher alone."""
    keyboard, terminal = os.openpty()
    command = [*DDPTOP_RUN, "--ddptop-exec", sys.executable, "-c", COUNT_SIGNALS]
    try:
        with started(command, environment(home), home, terminal=terminal) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            if key:
                os.write(keyboard, key)
            else:
                process.send_signal(sign)
            assert process.stdout.readline() == f"{sign.name}\n"
            process.send_signal(signal.SIGUSR1)  # comes after all signals of lower numbers
            assert process.stdout.read() == ""
            assert process.wait(DEADLINE_S) == 0
    finally:
        os.close(keyboard)
        os.close(terminal)


@pytest.mark.parametrize(
    "options",
    [
        ["--ddptop-budget", "0"],
        ["--ddptop-budget", "nan"],
        ["--ddptop-stall", "soon"],
        ["--ddptop-name", "a/b"],
        ["--ddptop-record", ""],
        ["--ddptop-record-limit", "much"],
        ["--ddptop-record-limit", "0"],
        ["--ddptop-detail", "some"],
        ["--ddptop-listen", "7077"],
        ["--ddptop-listen", "gpu01:0"],
        ["--ddptop-listen", "::1:7077"],
        ["--ddptop-exec"],
        ["--standalone", "--ddptop-exec", "true"],
    ],
)
def test_a_wrong_option_is_refused_in_one_line(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    script = [] if "--ddptop-exec" in options else ["train.py"]
    assert main([*options, *script]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ddptop: {options[0]}"), line


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--ddptop-buget", "2", "train.py"], "did you mean --ddptop-budget? "),
        (["--standalone", "--ddptop-record_limit=1GiB", "train.py"], "did you mean --ddptop-record-limit? "),
        (["--ddptop-of", "train.py"], "did you mean --ddptop-off? "),
        (["--ddptop-nam=x", "--ddptop-exec", "true"], "did you mean --ddptop-name? "),
        (["--ddptop-xyz", "train.py"], ""),
    ],
)
def test_a_misspelt_option_is_refused_in_one_line_with_what_was_meant(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    word = next(word for word in words if word.startswith("--ddptop-")).partition("=")[0]
    expected = f"ddptop: {word}: there is no such option; {hint}ddptop-run --help lists them\n"
    assert capsys.readouterr().err == expected


def test_a_wrong_variable_is_passed_over_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DDPTOP_BUDGET", "much")
    monkeypatch.setenv("DDPTOP_RECORD", "/dev/null")
    assert parsed("train.py").budget == 1.0
    assert (
        capsys.readouterr().err
        == "ddptop: DDPTOP_BUDGET: 'much' is no percentage from above 0 to 100; ignored\n"
    )
    assert parsed("train.py").record == parsed("--ddptop-record", "/dev/../dev/null", "x").record == "off"


def parsed(*words: str) -> LaunchOptions:
    """The options of these words, as the launcher parses them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc-per-node")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    add_options(parser)
    abbreviate_others_only(parser)
    found = parser.parse_args(words)
    assert found.nproc_per_node in (None, "2")
    return LaunchOptions.from_parsed(found)


def test_our_options_are_never_abbreviated_and_the_scripts_own_never_ours() -> None:
    options = parsed("--nproc", "2", "train.py", "--dd", "3", "--ddptop-n=4", "--ddptop-name", "5")
    assert options.name is None
    with pytest.raises(SystemExit):
        parsed("--ddptop-nam", "mine", "train.py")


STEPS = [
    "ddptop.cli.launch.run_name",
    "ddptop.cli.watched_run.need_threads",
    "ddptop.cli.watched_run.create_run_directory",
    "ddptop.host.collector_start.become_member",
    "ddptop.cli.watched_run.recording_path",
    "ddptop.cli.watched_run.collector_arguments",
    "ddptop.collector.supervisor.CollectorSupervisor._spawn_process",
    "threading.Thread.start",
    "ddptop.cli.watched_run.prepend_path",
]


@pytest.mark.parametrize("step", STEPS)
def test_whatever_fails_at_the_start_ends_in_one_line_and_leaves_nothing(
    step: str, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    env = environment(home)
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, env[name])
    before = dict(os.environ)
    children = set(psutil.Process().children())
    for error in (RuntimeError("can't start\nnew \x1b[2J"), KeyError("x"), OSError(28, "No space left")):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(step, fail)
        assert begin_if_possible(parsed("train.py"), ["train.py"], begin_torchrun) is None
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith("ddptop: cannot record: ") and line.isprintable()
        assert dict(os.environ) == before | {"DDPTOP": "0"}
        assert set(psutil.Process().children()) == children
        assert not list((home / "r").glob("ddptop/*"))


SECRETS = ["0", "5", "0", "--api-key", "s3cr3t", "token=s3cr3t"]


@pytest.mark.parametrize("argv", ["on", "off"])
def test_no_secret_of_the_arguments_leaves_the_launcher(home: Path, argv: str) -> None:
    recording = home / "run.ddptop"
    env = environment(home) | {"GATE": str(home / "go")}
    words = ["--ddptop-record", str(recording), "--ddptop-argv", argv, *ONE, "train.py", *SECRETS]
    with started([*DDPTOP_RUN, *words], env, home) as process:
        collector = psutil.Process(collector_below(process.pid)).cmdline()
        # A rank that ends at once need not be heard on a busy machine.
        until(lambda: live_step(env), "a step on the screen")
        (home / "go.end").touch()
        assert process.communicate(timeout=DEADLINE_S)[0].startswith("step 0")
    assert not {"s3cr3t", "train.py"} & set(" ".join(collector).split())
    with Recording.open(recording) as opened:
        told = [item.message for item in opened.records()]
        run = opened.run
    assert "s3cr3t" not in repr(told)
    arguments = ["0", "5", "0", "--api-key", "***", "token=***"] if argv == "on" else []
    assert (run.script, list(run.argv)) == ("train.py", ["train.py", *arguments])
    (card,) = [message.entries for message in told if isinstance(message, Card)][-1:]
    assert card["argv"] == " ".join(["train.py", *arguments])


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can be another user")
def test_a_container_that_knows_no_user_and_no_home_trains_and_is_recorded(home: Path) -> None:
    if run([*AS_NOBODY, *READING, "true"], environment(home), home).returncode:
        pytest.skip("no capabilities to give")
    (home / "script.py").write_text("import sys; print(sys.argv[1:], flush=True)")
    runtime = home / "nobody"
    for folder in (runtime, runtime / "ddptop", runtime / "ddptop" / "old"):
        folder.mkdir(mode=0o700)
        os.chown(folder, NOBODY, NOBODY)
    os.mkfifo(runtime / "ddptop" / "old" / "run.json", 0o600)
    os.chown(runtime / "ddptop" / "old" / "run.json", NOBODY, NOBODY)
    for folder in (home, *home.parents[:2]):
        folder.chmod(0o755)
    env = {name: value for name, value in environment(home).items() if name not in ("HOME", "XDG_STATE_HOME")}
    env |= {"XDG_RUNTIME_DIR": str(runtime), "DDPTOP_STALL": "soon", "PYTHONDONTWRITEBYTECODE": "1"}
    words = [*ONE, "script.py", "--dd", "3", "--ddp=4", "--ddptop-r"]
    try:
        done = run([*AS_NOBODY, *READING, *DDPTOP_RUN, *words], env, home)
    finally:
        shutil.rmtree(f"/tmp/ddptop-{NOBODY}", ignore_errors=True)
    assert (done.returncode, done.stdout) == (0, "['--dd', '3', '--ddp=4', '--ddptop-r']\n"), done.stderr
    said = [line.removeprefix("ddptop: ")[:11] for line in own_lines(done.stderr)]
    assert said == ["DDPTOP_STAL", "run script-", "run script-"], done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can be another user")
def test_a_runtime_folder_that_cannot_be_written_is_said_and_the_run_recorded(home: Path) -> None:
    if run([*AS_NOBODY, *READING, "true"], environment(home), home).returncode:
        pytest.skip("no capabilities to give")
    state, runtime = home / "state", home / "nobody"
    for folder, mode in ((state, 0o700), (runtime, 0o500)):
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, NOBODY, NOBODY)
    for folder in (home, *home.parents[:2]):
        folder.chmod(0o755)
    env = environment(home) | {"PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"XDG_RUNTIME_DIR": str(runtime), "XDG_STATE_HOME": str(state)}
    try:
        done = run([*AS_NOBODY, *READING, *DDPTOP_RUN, *ONE, "train.py", "0", "12"], env, home)
    finally:
        shutil.rmtree(f"/tmp/ddptop-{NOBODY}", ignore_errors=True)
    told = own_lines(done.stderr)
    assert (done.returncode, len(told)) == (0, 3), done.stderr
    assert f"{runtime}/ddptop cannot be written: the run's folder is in /tmp/ddptop-{NOBODY}" in told[1]
    assert "12 steps, recorded in" in told[-1]


def test_training_goes_on_where_nothing_can_be_recorded(home: Path) -> None:
    env = environment(home)
    Path(env["XDG_RUNTIME_DIR"]).chmod(0o755)
    blocked = Path(env["XDG_RUNTIME_DIR"]) / "ddptop"
    blocked.mkdir(mode=0o777)
    blocked.chmod(0o777)
    done = run([*DDPTOP_RUN, *ONE, "train.py", "0", "12"], env, home)
    assert done.returncode == 0
    assert "step 10" in done.stdout
    assert len(own_lines(done.stderr)) == 1
    assert "Traceback" not in done.stderr


def test_the_last_line_names_the_rank_that_failed(home: Path) -> None:
    """torchrun prints a page; the last line is what is read first."""
    (home / "fails.py").write_text(
        "import runpy, sys\nsys.argv = ['train.py', '0', '12']\n"
        "runpy.run_path('train.py', run_name='__main__')\n"
        "raise ValueError('bad sample in shard 7')\n"
    )
    done = run([*DDPTOP_RUN, *ONE, "fails.py"], environment(home), home)
    assert done.returncode == 1
    last = own_lines(done.stderr)[-1]
    said = (
        "FAILED · rank 0 failed: ValueError: bad sample in shard 7 (fails.py:4 <module>); 12 steps, recorded"
    )
    assert said in last


def test_a_recording_that_cannot_be_written_is_told_and_training_goes_on(home: Path) -> None:
    words = ["--ddptop-record", "/proc/nowhere/run.ddptop", *ONE, "train.py", "0", "12"]
    done = run([*DDPTOP_RUN, *words], environment(home), home)
    assert done.returncode == 0
    assert "step 10" in done.stdout
    assert "/proc/nowhere" in own_lines(done.stderr)[-1]


@pytest.mark.parametrize("sign", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_training_does_not_notice_what_happens_to_the_collector(home: Path, sign: signal.Signals) -> None:
    env = environment(home) | {"GATE": str(home / "go")}
    with started([*DDPTOP_RUN, *TWO, "train.py", "0", "200", "0.02"], env, home) as process:
        pid = collector_below(process.pid)
        until(lambda: live_step(env), "a step on the screen")
        os.kill(pid, sign)
        if sign is signal.SIGKILL:
            until(lambda: not psutil.pid_exists(pid), "the end of the collector")
            collector_below(process.pid)
            until(lambda: live_step(env), "a step in the next one")
        (home / "go").touch()
        if sign is signal.SIGKILL:
            until(lambda: live_step(env) == 199, "the last step on the screen")
        (home / "go.end").touch()
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert "step 190" in out
    if sign is signal.SIGKILL:
        assert "200 steps" in own_lines(err)[-1]
        assert "missing" not in own_lines(err)[-1]
    else:  # another collector counts what the stopped one has not written
        assert re.search(r"\d records? missing$", own_lines(err)[-1]), err


@pytest.mark.slow
def test_a_job_that_is_suspended_goes_on_and_no_rank_is_taken_for_stalled_or_lost(home: Path) -> None:
    env = environment(home) | {"GATE": str(home / "go")}
    words = ["--ddptop-stall", "5", "--ddptop-record", str(home / "run.ddptop"), *TWO]
    with started([*DDPTOP_RUN, *words, "train.py", "0", "200", "0.02"], env, home) as process:
        collector_below(process.pid)
        until(lambda: live_step(env), "a step on the screen")
        launcher = psutil.Process(process.pid)
        job = [launcher, *launcher.children(recursive=True)]
        for sign in (signal.SIGSTOP, signal.SIGCONT):
            for each in job:
                each.send_signal(sign)
            if sign is signal.SIGSTOP:
                until(lambda: all(each.status() == psutil.STATUS_STOPPED for each in job), "all stopped")
                time.sleep(7)  # what is tested: longer than a stall
        # Ctrl-Z reaches the launcher alone: collector and ranks, as torchrun's, are in sessions of their own.
        launcher.suspend()
        (home / "go").touch()
        until(lambda: live_step(env) == 199, "the last step on the screen")
        (home / "go.end").touch()
        launcher.resume()
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, "step 190" in out) == (0, True), err
    assert re.search(r"200 steps, recorded in \S+$", own_lines(err)[-1]), err
    with Recording.open(home / "run.ddptop") as recording:
        report = read_report(recording)
    frame = frame_at(home / "run.ddptop", None)
    assert (frame.run.state, frame.ranks.state) == ("finished", ("finished", "finished"))
    assert {alert.kind for alert in report.troubles} == {"interruption"}
    assert report.stalls == ()


def test_a_port_in_use_ends_as_under_torchrun(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["--master-addr", "127.0.0.1", "--master-port", port, "--nnodes", "1", "train.py", "0", "3"]
        plain, watched = both(words, home)
    assert watched.returncode == plain.returncode
    assert ("in use" in watched.stderr) == ("in use" in plain.stderr)


@pytest.mark.slow
def test_a_closed_stderr_neither_stops_nor_changes_a_training(home: Path) -> None:
    # Without descriptor 2 the file that a script opens has that number.
    (home / "train.py").write_text(f"own = open('own', 'w')\n{TRAIN}own.write('end')\n")
    line = " ".join([*DDPTOP_RUN, *ONE, "train.py", "0", "12"])
    done = run(["bash", "-c", f"{line} 2>&-"], environment(home), home)
    assert (done.returncode, _steps(done.stdout)) == (0, ["step 0", "step 10"])
    assert (home / "own").read_text() == "end"


def test_a_stderr_that_nobody_reads_neither_stops_nor_changes_a_training(home: Path) -> None:
    with started([*DDPTOP_RUN, *ONE, "train.py", "0", "12"], environment(home), home) as process:
        assert process.stderr is not None
        process.stderr.close()
        process.stderr = None
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, _steps(out)) == (0, ["step 0", "step 10"])


def _steps(out: str) -> list[str]:
    return [line.split(" loss")[0] for line in out.splitlines()]


def test_a_collector_that_cannot_be_started_again_leaves_the_exit_code_alone(home: Path) -> None:
    env = environment(home) | {"GATE": str(home / "go")}
    with started([*DDPTOP_RUN, *TWO, "train.py", "0", "150", "0.02"], env, home) as process:
        pid = collector_below(process.pid)
        until(lambda: live_step(env), "a step on the screen")
        remove_folder(Path(env["XDG_RUNTIME_DIR"]) / "ddptop")
        os.kill(pid, signal.SIGKILL)
        for name in ("go", "go.end"):
            (home / name).touch()
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert "step 140" in out
    assert "Traceback" not in err


WAIT_FOR_RECORDED_STEPS = """
    if step == 20:
        from ddptop.recording.reader import Recording
        while True:
            try:
                with Recording.open(sys.argv[4]) as recording:
                    if recording.last_step is not None:
                        break
            except Exception:
                pass
            time.sleep(0.05)
"""


def test_steps_that_a_rank_took_with_it_are_counted(home: Path) -> None:
    script = (home / "train.py").read_text().replace("dist.destroy_process_group()", "import os; os._exit(0)")
    begin = "    optimizer.zero_grad()\n"
    (home / "train.py").write_text(script.replace(begin, WAIT_FOR_RECORDED_STEPS + begin))
    recording = home / "left.ddptop"
    words = ["--ddptop-record", str(recording), *ONE, "train.py", "0", "41", "0", str(recording)]
    done = run([*DDPTOP_RUN, *words], environment(home), home)
    assert done.returncode == 0, done.stderr
    frame = frame_at(recording, None)
    # The last step is closed by the next forward, which never comes.
    assert frame.records + frame.lost_records == 40, done.stderr
    if frame.lost_records:
        assert f"{counted(frame.lost_records, 'record')} missing" in own_lines(done.stderr)[-1]


@pytest.mark.parametrize(
    ("command", "over_hosts"),
    [
        (["torchrun", "--nnodes", "2", "train.py"], True),
        (["/opt/bin/torchrun", "--nnodes=1:4", "train.py"], True),
        (["python", "-m", "torch.distributed.run", "--nnodes=2", "train.py"], True),
        (["torchrun", "--nnodes=1", "train.py"], False),
        (["torchrun", "--standalone", "train.py"], False),
        (["python", "train.py", "--nnodes", "2"], False),
    ],
)
def test_torchrun_over_hosts_is_known_by_its_command(command: list[str], over_hosts: bool) -> None:
    assert is_torchrun_over_hosts(command) == over_hosts


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["python", "-u", "train.py", "--lr", "1"], ["train.py", "--lr", "1"]),
        (["numactl", "-m", "0", "python3", "-X", "dev", "/a/train.py"], ["/a/train.py"]),
        (["torchrun", "--nproc-per-node", "2", "train.py", "-m", "x"], ["train.py", "-m", "x"]),
        (["/usr/bin/python3.12", "-m", "lab.train", "-m", "x"], ["lab.train", "-m", "x"]),
        (["python", "-m"], ["python", "-m"]),
        (["srun", "/opt/bin/python", "-Bu", "train", "--config", "a.py"], ["train", "--config", "a.py"]),
        (["python", "-X", "dev", "train.py"], ["train.py"]),
        (["srun", "python", "-m", "lab.train", "--config", "a.py"], ["lab.train", "--config", "a.py"]),
        (["python", "-m", "torch.distributed.run", "--nnodes=2", "-m", "lab.train"], ["lab.train"]),
        (["torchrun", "-m", "lab.train"], ["lab.train"]),
        (
            ["/opt/pythonista/bin/numactl", "-m", "0", "./train"],
            ["/opt/pythonista/bin/numactl", "-m", "0", "./train"],
        ),
        (["accelerate", "launch", "train.py", "--lr", "1"], ["train.py", "--lr", "1"]),
        (["bash", "run.sh"], ["bash", "run.sh"]),
    ],
)
def test_the_script_of_a_command_is_the_runs(command: list[str], script: list[str]) -> None:
    assert own_script(command) == script
