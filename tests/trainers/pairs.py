"""One script run twice: as its users do without ddptop, and under `ddptop-run`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeAlias

import torch

from ddptop.frames.snapshot import snapshot
from tests.processes import DDPTOP_RUN, TORCHRUN, environment, run, run_plain
from tests.recording.replays import frame_at

SCRIPTS = Path(__file__).parent / "scripts"
TWO_RANKS = ["--standalone", "--nproc-per-node", "2"]
WORLD = 2

Runner: TypeAlias = Callable[[Sequence[str | Path], dict[str, str], Path], CompletedProcess[str]]

_VARYING = re.compile(
    r"\d{4}-\d\d-\d\d[ _T]\d\d:\d\d:\d\d\S*"  # dates and times
    r"|(?<=[IWE])\d{4} \d\d:\d\d:\d\d\.\d+ (\d+)?"  # torch's stamp, with or without its process id
    r"|(?<=pid: )\d+"
    r"|(?<=_runtime': )'[^']*'|(?<=_per_second': )'[^']*'"  # transformers' speeds
)


@dataclass
class Ran:
    """What one run has left."""

    folder: Path
    lines: list[str]
    """Of stdout and stderr, sorted (ranks take turns by chance), without times, process ids and folder."""

    def weights(self, name: str = "weights") -> list[dict[str, torch.Tensor]]:
        """Of each rank, at the end."""
        return [torch.load(self.folder / f"{name}-{rank}.pt") for rank in range(WORLD)]


@dataclass
class Pair:
    """The same training without and with ddptop."""

    plain: Ran
    watched: Ran
    recording: Path

    def shown(self, step: int | None = None) -> dict[str, Any]:
        """The snapshot of the recording at a step, or at its end."""
        return snapshot(frame_at(self.recording, step))

    def assert_alike(self, name: str = "weights") -> None:
        """The same weights bit for bit, on both ranks, and the same lines."""
        assert_same_weights(self.plain.weights(name), self.watched.weights(name))
        assert self.watched.lines == self.plain.lines


def by_torchrun(home: Path, script: str, *arguments: str) -> Pair:
    """A script under torchrun and under ddptop-run, with the same options."""
    words = [*TWO_RANKS, str(SCRIPTS / script)]
    return pair(home, [*TORCHRUN, *words], words, arguments)


def by_itself(home: Path, command: Sequence[str], *arguments: str) -> Pair:
    """A command that starts its ranks itself, alone and behind `--ddptop-exec`."""
    return pair(home, command, ["--ddptop-exec", *command], arguments)


def pair(home: Path, plain: Sequence[str], watched: Sequence[str], arguments: Sequence[str]) -> Pair:
    """Both commands, each with a folder of its own as first argument; both must succeed."""
    recording = home / "run.ddptop"
    recorded = ["--ddptop-record", str(recording), "--ddptop-detail", "full"]
    alone = _ran(run_plain, home, home / "plain", [*plain], arguments)
    seen = _ran(run, home, home / "watched", [*DDPTOP_RUN, *recorded, *watched], arguments)
    return Pair(alone, seen, recording)


def _ran(runner: Runner, home: Path, folder: Path, command: list[str], arguments: Sequence[str]) -> Ran:
    folder.mkdir()
    # Warnings that Python hides by default would be new ones, too.
    env = environment(home) | {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "default"}
    done = runner([*command, str(folder), *arguments], env, home)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (done.stdout + "\n" + done.stderr).replace(str(folder), "FOLDER")
    lines = (_VARYING.sub("#", line).strip() for line in text.splitlines())
    return Ran(folder, sorted(line for line in lines if line and not line.startswith("ddptop: run ")))


def assert_same_weights(
    expected: Sequence[dict[str, torch.Tensor]], actual: Sequence[dict[str, torch.Tensor]]
) -> None:
    """Bit for bit, on each rank; AssertionError naming the tensors that differ."""
    for rank, (one, other) in enumerate(zip(expected, actual, strict=True)):
        assert one.keys() == other.keys()
        different = [key for key in one if not torch.equal(one[key], other[key])]
        assert not different, f"rank {rank}: {different}"


def assert_seen(shown: dict[str, Any], steps: int) -> None:
    """Both ranks, all their steps and losses, and buckets with what their all-reduce took."""
    group, ranks, buckets = shown["group"], shown["ranks"], shown["buckets"]
    assert group["step"] == steps - 1, group
    assert [rank["rank"] for rank in ranks] == list(range(WORLD)), ranks
    for rank in ranks:
        names = ("loss", "step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms")
        assert not [name for name in names if rank[name] is None], rank
        assert rank["lost_records"] == 0, rank
    assert group["loss"]["mean"] is not None and group["collective_ms"] is not None, group
    assert buckets
    for bucket in buckets:
        assert bucket["bytes"] and bucket["transfer_ms"] is not None, bucket
    assert [alert["kind"] for alert in shown["alerts"] if alert["kind"] != "straggler"] == []
