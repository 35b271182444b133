"""Faults and odd start-ups of real `ddptop-run` commands, beside torchrun where a script is trained."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from ddptop.protocol.messages import Event, Received
from ddptop.recording.reader import Recording, RecordingError
from tests.faults.row import CannotTryError, Result, Row
from tests.faults.trial import FAKE_RANK, WORLD, small_disk, steps_of
from tests.processes import (
    AS_NOBODY,
    DDPTOP_RUN,
    NOBODY,
    READING,
    TORCHRUN,
    environment,
    run,
    run_plain,
    started,
    until,
)

SCRIPT = "import os, sys; print(sys.argv[1:], os.environ['RANK'], flush=True)"
"""What an odd start-up changes in ddptop-run changes before any training."""

TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
print(sum(p.sum().item() for p in model.parameters()).hex())
dist.destroy_process_group()
"""

ONE = ["--standalone", "--nproc-per-node", "1"]
Words = Callable[[list[str]], list[str]]
"""How a command line is started."""


@contextmanager
def home_of(script: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with a `script.py`, and the environment of a user who has nothing of ddptop yet."""
    with tempfile.TemporaryDirectory(prefix="ddptop-faults-") as folder:
        home = Path(folder)
        env = environment(home) | {"HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        (home / "script.py").write_text(script)
        yield home, env


def shell(line: str) -> Words:
    """Through bash: `$@` in the line is the command."""
    return lambda words: ["bash", "-c", line.replace("$@", shlex.join(words))]


def as_they_are(words: list[str]) -> list[str]:
    """Without anything around it."""
    return words


def beside_torchrun(words: list[str], env: dict[str, str], home: Path, around: Words) -> Result:
    """The same output and exit code as torchrun's, and no traceback that torchrun has not."""
    plain = run_plain(around([*TORCHRUN, *words]), env, home)
    ours = run(around([*DDPTOP_RUN, *words]), env, home)
    same = (plain.returncode, plain.stdout) == (ours.returncode, ours.stdout)
    no_more = ("Traceback" in ours.stderr) <= ("Traceback" in plain.stderr)
    seen = f"exit code {ours.returncode}, torchrun's {plain.returncode}"
    return Result(seen if same and no_more else f"{seen}: {ours.stdout!r} {ours.stderr!r}", same and no_more)


def odd_start(around: Words, *arguments: str, script: str = SCRIPT) -> Callable[[int], Result]:
    """Started in an odd way, or with odd arguments of the script's own."""

    def attempt(_: int) -> Result:
        with home_of(script) as (home, env):
            return beside_torchrun([*ONE, "script.py", *arguments], env, home, around)

    return attempt


def fifo_in_the_run_folder(_: int) -> Result:
    """A FIFO where another run has its run.json: whoever opens it waits for ever."""
    with home_of(SCRIPT) as (home, env):
        old = Path(env["XDG_RUNTIME_DIR"], "ddptop", "old")
        old.mkdir(parents=True, mode=0o700)
        old.parent.chmod(0o700)
        os.mkfifo(old / "run.json", 0o600)
        return beside_torchrun([*ONE, "script.py"], env, home, as_they_are)


@contextmanager
def as_nobody(script: str) -> Iterator[tuple[Path, dict[str, str], list[str]]]:
    """A user id without passwd entry and without home; the words that start a command as it.

    Raises CannotTryError where this user may not become another.
    """
    before = [*AS_NOBODY, *READING]
    with home_of(script) as (home, env):
        if os.geteuid() or not shutil.which("setpriv") or run([*before, "true"], env, home).returncode:
            raise CannotTryError("only root, with all capabilities, can be another user")
        home.chmod(0o755)
        runtime = home / "r"
        os.chown(runtime, NOBODY, NOBODY)
        env = {name: value for name, value in env.items() if name not in ("HOME", "XDG_STATE_HOME")}
        try:
            yield home, env, before
        finally:
            shutil.rmtree(f"/tmp/ddptop-{NOBODY}", ignore_errors=True)


def nobody_at_home(_: int) -> Result:
    """As in many containers."""
    with as_nobody(SCRIPT) as (home, env, before):
        return beside_torchrun([*ONE, "script.py"], env, home, lambda words: [*before, *words])


def few_threads(seed: int) -> Result:
    """`ulimit -u` at two random values: where torchrun trains, ddptop-run does, and nothing is aborted."""
    seen, good = [], True
    with as_nobody(TRAIN) as (home, env, before):
        for limit in (Random(seed).randrange(12, 23), Random(seed).randrange(23, 34)):
            words = [*ONE, "script.py"]
            limited = shell(f"ulimit -c 0; ulimit -u {limit}; exec {shlex.join(before)} $@")
            plain = run(limited([*TORCHRUN, *words]), env, home)
            ours = run(limited([*DDPTOP_RUN, *words]), env, home)
            trained = (ours.returncode, ours.stdout) == (0, plain.stdout)
            good &= trained if plain.returncode == 0 else "SIGABRT" not in ours.stderr
            seen.append(f"{limit}: {ours.returncode} (torchrun {plain.returncode})")
    return Result("exit codes at " + ", ".join(seen), good)


def full_run_folder(_: int) -> Result:
    """No room for the run's folder: one line, and the command runs."""
    with home_of(SCRIPT) as (home, env), small_disk(home / "full", 4096):
        (home / "full").chmod(0o700)
        filler = home / "full" / "filler"
        env |= {"XDG_RUNTIME_DIR": str(home / "full")}
        with filler.open("wb", buffering=0) as file:
            file.write(bytes(4096))
        done = run([*DDPTOP_RUN, "--ddptop-exec", "echo", "trained"], env, home)
        lines = [line for line in done.stderr.splitlines() if line.startswith("ddptop: ")]
        right = (done.returncode, done.stdout) == (0, "trained\n") and "Traceback" not in done.stderr
        return Result(f"exit code {done.returncode}, {len(lines)} lines", right and bool(lines))


STEPS = 800


def records_in(path: Path) -> list[Received]:
    """All of a recording; nothing where it cannot be opened yet."""
    try:
        with Recording.open(path) as recording:
            return list(recording.records())
    except (OSError, RecordingError):
        return []


def killed_launcher(seed: int) -> Result:
    """The launcher of made-up ranks is killed at a random moment: as torchrun, it leaves them behind."""
    chance = Random(seed)
    with home_of("") as (home, env):
        recording = home / "run.ddptop"
        ranks = "".join(
            f'{sys.executable} {FAKE_RANK} "$DDPTOP_RUN_DIR" "$DDPTOP_RUN_ID" '
            f"{rank} {WORLD} {STEPS} 400 3 1000000 8 bye & "
            for rank in range(WORLD)
        )
        words = ["--ddptop-record", recording, "--ddptop-exec", "bash", "-c", f"{ranks} wait"]
        moment = chance.randrange(STEPS // 2)
        with started([*DDPTOP_RUN, *words], env, home) as process:
            until(
                lambda: any(step >= moment for _, step in steps_of(records_in(recording))), f"step {moment}"
            )
            os.kill(process.pid, signal.SIGKILL)
            until(lambda: ended(recording), "the end of the recording")
            killed = process.wait() == -signal.SIGKILL
        records = records_in(recording)
        rows = set(steps_of(records))
        told = any(isinstance(r.message, Event) and r.message.kind == "launcher_killed" for r in records)
        seen = f"{len(rows)} of {WORLD * STEPS} steps recorded"
        return Result(seen, killed and told and len(rows) == WORLD * STEPS)


def ended(recording: Path) -> bool:
    """Whether nobody writes to it any more."""
    try:
        with Recording.open(recording) as opened:
            return not opened.growing
    except (OSError, RecordingError):
        return False


AS_TORCHRUN = "output and exit code as torchrun's"
ROWS = (
    Row("launcher killed", "ranks recorded to their last step", killed_launcher, short=True),
    Row("disk of the run folder full", "one line, the command runs", full_run_folder, short=True),
    Row("script options --dd 3 --ddp=4 --ddptop-r", AS_TORCHRUN,
        odd_start(as_they_are, "--dd", "3", "--ddp=4", "--ddptop-r")),
    Row("a FIFO called run.json in the run folder", AS_TORCHRUN, fifo_in_the_run_folder),
    Row("no stderr (2>&-)", AS_TORCHRUN, odd_start(shell("$@ 2>&-"))),
    Row("no HOME and no passwd entry", AS_TORCHRUN, nobody_at_home),
    Row("ulimit -n 64, training", AS_TORCHRUN, odd_start(shell("ulimit -n 64; $@"), script=TRAIN)),
    Row("ulimit -u at two random values, training", "trains where torchrun does, no SIGABRT", few_threads),
)  # fmt: skip
