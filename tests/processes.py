"""Starting real commands in tests: always with a deadline, never leaving a process behind."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from ddptop.host.runs import read_run_file
from ddptop.sources.live import LiveSource
from tests import warm

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
DDPTOP_RUN = [sys.executable, "-m", "ddptop.cli.launch"]
DDPTOP = [sys.executable, "-m", "ddptop.cli.main"]
DEADLINE_S = 120.0

NVIDIA = Path("/dev/nvidiactl")
"""Where there is a GPU."""

NOBODY = 600_000 + os.getpid()
"""A user id that nobody has, and that has left nothing in /tmp."""

AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
READING = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
"""The interpreter may lie in a folder of root's."""


def environment(home: Path, *, gpus: bool = False) -> dict[str, str]:
    """The environment of a user who has nothing of ddptop yet; everything it writes goes below `home`.

    Without `gpus` none is seen: what is expected of most scripts is what they do on a CPU. Where there is
    none, the variable is left alone: with another value than torch was loaded with, a start is cold.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DDPTOP", "XDG_"))}
    for name in ("PYTHONPATH", "PYTHONUNBUFFERED"):  # what a stream could not write is kept, as a user's is
        kept.pop(name, None)
    runtime = home / "r"
    runtime.mkdir(parents=True, exist_ok=True)
    runtime.chmod(0o700)
    if not gpus and NVIDIA.exists():
        kept["CUDA_VISIBLE_DEVICES"] = ""
    return kept | {
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "OMP_NUM_THREADS": "1",
        "TERM": "xterm-256color",
    }


PLAIN_ATTEMPTS, PLAIN_DEADLINE_S = 3, 70.0
"""Together below the time limit of a test (`timeout` in pyproject.toml)."""


def run(
    command: Sequence[str | Path],
    env: dict[str, str],
    cwd: Path,
    *,
    cold: bool = False,
    deadline_s: float = DEADLINE_S,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; past the deadline its whole process group is killed and the test fails."""
    with started(command, env, cwd, cold=cold) as process:
        out, err = process.communicate(timeout=deadline_s)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_plain(
    command: Sequence[str | Path], env: dict[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    """`run` of a command without anything of ours in it, for comparison.

    Repeated where it dies of what `ddptop.training.exit` keeps ours from, torch's own abort at exit, and
    where it hangs (seen in 2 of some 25 runs of three ranks on a busy machine, with nothing of ours in them).
    """
    for attempt in range(PLAIN_ATTEMPTS):
        try:
            done = run(command, env, cwd, deadline_s=PLAIN_DEADLINE_S)
        except subprocess.TimeoutExpired:
            if attempt == PLAIN_ATTEMPTS - 1:
                raise
            continue
        if done.returncode == 0 or "terminate called without an active exception" not in done.stderr:
            break
    return done


@contextmanager
def started(
    command: Sequence[str | Path],
    env: dict[str, str],
    cwd: Path,
    *,
    cold: bool = False,
    terminal: int | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """A running command in a session of its own, killed with all its children at the end of the block.

    `cold`: by an exec, also where a fork of a process that has imported torch would do (`tests.warm`).
    `terminal`: descriptor of the terminal whose foreground it shall be.
    """
    warm.begin()
    process = (subprocess.Popen if cold or terminal is not None else warm.WarmPopen)(
        [str(word) for word in command],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL if terminal is None else terminal,
        preexec_fn=None if terminal is None else lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            # torchrun starts its ranks in sessions of their own: the process group alone would leave them.
            below = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGKILL)
            for child in below:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        process.communicate()


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that compute without end, each a core's worth of load, until the end of the block."""
    command = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(started(command, {**os.environ}, Path.cwd(), cold=True))
        yield


def until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> object:
    """Wait for a condition to be true and return its value; AssertionError naming it after the deadline."""
    end = time.monotonic() + deadline_s
    while (began := time.monotonic()) < end:
        value = condition()
        if value:
            return value
        # A look that starts a process takes half of the time at most: what it waits for needs the CPU, too.
        time.sleep(min(0.5, max(0.05, time.monotonic() - began)))
    raise AssertionError(f"after {deadline_s:g} s still not: {what}")


def remove_folder(folder: Path) -> None:
    """Remove a folder in which others make files meanwhile: moved away in one step, then removed."""
    away = folder.rename(folder.with_name(f"{folder.name}.removed"))
    until(lambda: shutil.rmtree(away, ignore_errors=True) or not away.exists(), f"{folder} removed")


def names_ddptop(text: str) -> bool:
    """Whether an output has a word or a file of ddptop. Torch's tracebacks have the folders of the clone and
    of its Python, which may be called ddptop too."""
    for folder in (sys.prefix, str(Path(__file__).parents[1])):
        text = text.replace(folder, "")
    return "ddptop" in text


def processes_of(env: dict[str, str]) -> list[psutil.Process]:
    """Processes that this environment was given to, and their children, wherever they are by now.

    Without those that were forked from the warm process: their first environment was another.
    """
    place = env["XDG_RUNTIME_DIR"]
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("XDG_RUNTIME_DIR") == place:
                found.append(process)
    return found


def live_step(env: dict[str, str]) -> int | None:
    """The newest complete step of the one run that is live in this environment, for a viewer in this process.

    Waiting with a `ddptop --json` for each look would take most of a test's CPU time.
    """
    for run_file in Path(env["XDG_RUNTIME_DIR"], "ddptop").glob("*/run.json"):
        run_ = read_run_file(run_file.parent)
        if run_ is None:
            continue
        source = LiveSource(run_)
        source.start()
        try:
            end = time.monotonic() + 2
            while (frame := source.latest()) is None and time.monotonic() < end:
                time.sleep(0.01)
            return None if frame is None else frame.group.step
        finally:
            source.close()
    return None


def has_nccl() -> bool:
    """Whether this torch is built with it, as the default build is: bf16 hooks are not refused then."""
    import torch

    return torch.version.cuda is not None and torch.distributed.is_nccl_available()


EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A TCP port that is free, for a process that binds it later. Where it can be, it is below those that the
    kernel gives to connections and to whoever binds port 0: other tests, that begin meanwhile, take none."""
    lowest = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 0
    below = range(10_000, lowest)
    drawn = random.SystemRandom().sample(below, min(100, len(below)))
    for port in [*drawn, 0]:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise AssertionError("no free port")


def collector_below(launcher: int, deadline_s: float = DEADLINE_S) -> int:
    """The process id of the collector that a launcher has started; waits for it."""

    def look() -> int | None:
        for child in psutil.Process(launcher).children():
            with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
                if "ddptop.collector" in child.cmdline():
                    return child.pid
        return None

    return int(str(until(look, "a collector", deadline_s)))
