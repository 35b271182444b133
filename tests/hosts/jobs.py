"""Jobs over several hosts, as their launchers start them, and what ddptop shows of them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.hosts.namespaces import Host, Process
from tests.processes import DDPTOP, DDPTOP_RUN, TORCHRUN, until

TRAIN = Path(__file__).parent / "train.py"
ROOT = Path(__file__).parents[2]
PORT = "29511"
DEADLINE_S = 150.0


class Job:
    """A job that has been started: a launcher, or several tasks, on each host."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.out: list[str] = []
        self.err: list[str] = []

    def wait(self) -> list[int]:
        """Wait for the end; returns the exit codes, and keeps what was printed."""
        codes = []
        for process in self.processes:
            out, err = process.communicate(timeout=DEADLINE_S)
            self.out.append(out)
            self.err.append(err)
            codes.append(process.returncode)
        return codes

    def lines(self, number: int) -> list[str]:
        """What ddptop has printed there."""
        return [line for line in self.err[number].splitlines() if line.startswith("ddptop: ")]


@contextmanager
def _job() -> Iterator[Job]:
    job = Job()
    try:
        yield job
    finally:
        for process in job.processes:
            process.kill_all()


@contextmanager
def launched(
    hosts: Sequence[Host],
    *script: str,
    ranks: int = 1,
    backend: str = "static",
    nodes: str | None = None,
    options: Sequence[str] = ("--ddptop-name", "run"),
    variables: dict[str, str] | None = None,
    plain: bool = False,
) -> Iterator[Job]:
    """`ddptop-run` on every host, or torchrun (`plain`); `backend`: static or c10d, at the first host."""
    with _job() as job:
        for host in hosts:
            job.processes.append(
                launch(
                    host,
                    hosts,
                    *script,
                    ranks=ranks,
                    backend=backend,
                    nodes=nodes,
                    options=options,
                    variables=variables,
                    plain=plain,
                )
            )
        yield job


def launch(
    host: Host,
    hosts: Sequence[Host],
    *script: str,
    ranks: int = 1,
    backend: str = "static",
    nodes: str | None = None,
    options: Sequence[str] = ("--ddptop-name", "run"),
    variables: dict[str, str] | None = None,
    plain: bool = False,
    script_path: Path = TRAIN,
) -> Process:
    """The launcher of one host."""
    first = hosts[0]
    words = ["--nnodes", nodes or str(len(hosts)), "--nproc-per-node", str(ranks)]
    if backend == "static":
        rank = str(list(hosts).index(host))
        words += ["--node-rank", rank, "--master-addr", first.name, "--master-port", PORT]
    else:
        words += ["--rdzv-backend", backend, "--rdzv-endpoint", f"{first.name}:{PORT}", "--rdzv-id", "job"]
    launcher = TORCHRUN if plain else [*DDPTOP_RUN, *options]
    return host.start([*launcher, *words, script_path, *script], in_repository(host) | (variables or {}))


def in_repository(host: Host) -> dict[str, str]:
    """The environment of a host whose Python finds this repository, installed or not."""
    return host.env | {"PYTHONPATH": str(ROOT)}


@contextmanager
def tasks(
    hosts: Sequence[Host],
    command: Sequence[str | Path],
    *,
    each: int = 1,
    variables: dict[str, str] | None = None,
    slurm: bool = False,
) -> Iterator[Job]:
    """`each` processes on every host, with the variables of Slurm's srun, or with torch's own."""
    with _job() as job:
        for node, host in enumerate(hosts):
            for local in range(each):
                rank, world = node * each + local, len(hosts) * each
                if slurm:
                    own = {
                        "SLURM_JOB_ID": "4711",
                        "SLURM_STEP_ID": "0",
                        "SLURM_NTASKS": str(world),
                        "SLURM_STEP_NUM_TASKS": str(world),
                        "SLURM_NNODES": str(len(hosts)),
                        "SLURM_TASKS_PER_NODE": f"{each}(x{len(hosts)})",
                        "SLURM_JOB_NODELIST": ",".join(each.name for each in hosts),
                        "SLURM_PROCID": str(rank),
                        "SLURM_LOCALID": str(local),
                        "SLURM_NODEID": str(node),
                    }
                else:
                    own = {
                        "RANK": str(rank),
                        "WORLD_SIZE": str(world),
                        "LOCAL_RANK": str(local),
                        "LOCAL_WORLD_SIZE": str(each),
                        "MASTER_ADDR": hosts[0].name,
                        "MASTER_PORT": PORT,
                    }
                env = in_repository(host) | own | (variables or {})
                job.processes.append(host.start(command, env))
        yield job


def snapshot(host: Host, *words: str) -> dict[str, Any] | None:
    """What `ddptop WORDS --json` prints on a host; None where it fails."""
    done = host.run([*DDPTOP, *words, "--json"], in_repository(host))
    return dict(json.loads(done.stdout)) if done.returncode == 0 else None


FIGURES = ("step_ms", "own_ms", "wait_ms", "transfer_ms", "backward_ms", "rss_bytes", "cpu_pct")
"""Of every rank, on one host and on several."""


def shows(host: Host, ranks: int, *, beyond: int = 5, name: str = "run") -> dict[str, Any]:
    """Wait until the run's screen has so many ranks beyond a step, with all figures; returns the snapshot."""

    def seen() -> dict[str, Any] | None:
        picture = snapshot(host, name)
        if picture is None or len(picture["ranks"]) != ranks:
            return None
        steps = [rank["step"] for rank in picture["ranks"]]
        known = all(rank[figure] is not None for rank in picture["ranks"] for figure in FIGURES)
        return picture if known and all(step is not None and step > beyond for step in steps) else None

    found = until(seen, f"all figures of {ranks} ranks on the screen of {host.name}")
    assert isinstance(found, dict)
    return found


def enough(hosts: Sequence[Host]) -> None:
    """Let a training of `steps=0` end."""
    for host in hosts:
        (host.folder / "enough").touch()


def recorded(host: Host, name: str = "run") -> dict[str, Any]:
    """The end of the recording on this host."""
    (path,) = (host.folder / "state" / "ddptop").glob(f"{name}.ddptop")
    picture = snapshot(host, "replay", str(path))
    assert picture is not None
    return picture


def hosts_of(picture: dict[str, Any]) -> list[str]:
    """By rank."""
    return [rank["host"] for rank in picture["ranks"]]


def nothing_left(hosts: Sequence[Host]) -> None:
    """Wait until no process and no run folder of ours is there."""

    def left() -> list[object]:
        found: list[object] = []
        for host in hosts:
            with contextlib.suppress(psutil.Error):
                found += [process.cmdline() for process in host.processes()]
            folder = host.folder / "r" / "ddptop"
            found += list(folder.iterdir()) if folder.exists() else []
        return found

    until(lambda: not left(), "nothing is left on the hosts", 40.0)


def python(*words: str | Path) -> list[str | Path]:
    """A command of this Python."""
    return [sys.executable, *words]
