"""On a GPU: bucket times of the device, no synchronisation added, not a bit of the result changed.

Run wherever a GPU is, by `python -m pytest -m gpu`; without one they are skipped. One rank under NCCL, two
ranks of gloo with CUDA tensors on one GPU, and as many ranks under NCCL as there are GPUs. What a step costs
there is measured by `python -m tests.benchmarks.bench_gpu`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ddptop.frames.snapshot import snapshot
from ddptop.protocol.messages import Card, Event, StepRow, Steps
from ddptop.recording.reader import Recording
from ddptop.sources.replay import frame_at
from tests.gpu.moments import apart_ns, bucket_ends
from tests.processes import DDPTOP_RUN, TORCHRUN, environment, run

torch = pytest.importorskip("torch")

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="no CUDA device")]

several = pytest.mark.skipif(GPUS < 2, reason="fewer than two CUDA devices")

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 120
AGREE_NS = 50_000
"""How far bucket ends may lie from the profiler's kernel ends."""

WAYS = [
    pytest.param("nccl", 1, id="NCCL alone"),
    pytest.param("gloo", 2, id="gloo, two ranks on one GPU"),
    pytest.param("nccl", max(2, GPUS), id="NCCL on all GPUs", marks=several),
]


def launched(launcher: list[str], tmp_path: Path, ranks: int, *words: object) -> None:
    """Run a script of this folder to its end."""
    command = [*launcher, "--standalone", "--nproc-per-node", ranks, SCRIPTS / str(words[0]), *words[1:]]
    done = run([str(word) for word in command], environment(tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr


def watched(tmp_path: Path, ranks: int, *words: object, stall_s: int = 60) -> Path:
    """Run it under ddptop-run with all bucket detail; returns the recording."""
    recording = tmp_path / "run.ddptop"
    options = ["--ddptop-record", recording, "--ddptop-detail", "full", "--ddptop-stall", stall_s]
    launched([*DDPTOP_RUN, *map(str, options)], tmp_path, ranks, *words)
    return recording


def trained(tmp_path: Path, backend: str, ranks: int, *ways: str) -> tuple[list[Any], Path]:
    """Weights of rank 0 and the recording of a run in which nothing of ours may have failed."""
    out = tmp_path / "watched.pt"
    recording = watched(tmp_path, ranks, "train.py", backend, STEPS, out, *ways)
    with Recording.open(recording) as opened:
        cards = [item.message.entries for item in opened.lasting() if isinstance(item.message, Card)]
    assert cards
    for name in ("first_failure", "gpu.steps_given_up", "gpu.events_refused"):
        assert all(name not in card for card in cards), [card.get(name) for card in cards]
    frame = frame_at(recording, step=STEPS - 1)
    assert (frame.group.step, frame.overhead.failures) == (STEPS - 1, 0)
    return torch.load(out), recording


def plain(tmp_path: Path, backend: str, ranks: int, *ways: str) -> list[Any]:
    """Weights of rank 0 under torchrun."""
    out = tmp_path / "plain.pt"
    launched(TORCHRUN, tmp_path, ranks, "train.py", backend, STEPS, out, *ways)
    weights: list[Any] = torch.load(out)
    return weights


def rows_of(recording: Path, rank: int) -> list[StepRow]:
    """The steps of a rank."""
    with Recording.open(recording) as opened:
        return [
            row
            for received in opened.records()
            if received.rank == rank and isinstance(received.message, Steps)
            for row in received.message.rows
        ]


def assert_equal(weights: list[Any], others: list[Any]) -> None:
    """To the last bit."""
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


@pytest.mark.parametrize(("backend", "ranks"), WAYS)
def test_weights_are_those_of_torchrun_and_buckets_phases_and_loss_are_known(
    backend: str, ranks: int, tmp_path: Path
) -> None:
    weights, recording = trained(tmp_path, backend, ranks)
    assert_equal(plain(tmp_path, backend, ranks), weights)
    shown = snapshot(frame_at(recording, step=STEPS - 1))
    assert len(shown["buckets"]) > 1
    assert all(bucket["transfer_ms"] is not None for bucket in shown["buckets"])
    for rank in shown["ranks"]:
        assert rank["device"].startswith("cuda")
        assert rank["forward_ms"] > 0
        assert rank["backward_ms"] > 0
        assert rank["step_ms"] >= rank["forward_ms"] + rank["backward_ms"] + rank["optimizer_ms"] - 0.01
        assert math.isfinite(rank["loss"])
        assert rank["gpu"]["allocated_bytes"] > 0


@pytest.mark.parametrize(("backend", "ranks"), WAYS)
def test_the_last_gradient_is_known_in_every_step(backend: str, ranks: int, tmp_path: Path) -> None:
    _, recording = trained(tmp_path, backend, ranks)
    rows = [row for rank in range(ranks) for row in rows_of(recording, rank)[2:]]
    assert len(rows) == ranks * (STEPS - 2)
    for row in rows:
        assert row.own is not None
        assert 0 <= row.own.exposed <= row.backward_us
        other = row.wall_us - row.data_us - row.forward_us - row.backward_us - row.optimizer_us
        places = row.own.before_forward + row.own.before_backward + row.own.before_optimizer
        assert places + row.own.waited_other <= other + 10, "each rounded to microseconds"
        # Every bucket's all-reduce ends before backward does, and some gradient comes before each of them.
        ready = [row.cells[at] for at in range(1, len(row.cells), 3)]
        assert ready
        assert row.backward_at_us + row.backward_us - row.own.exposed >= max(ready) - AGREE_NS // 1000


@pytest.mark.parametrize("ways", [(), ("log",), ("hook",)])
def test_no_synchronisation_is_added(ways: tuple[str, ...], tmp_path: Path) -> None:
    trained(tmp_path, "nccl", 1, "no-sync", *ways)


@pytest.mark.parametrize("ways", [("hook",), ("amp",), ("workers",), ("graphs",)])
def test_hooks_amp_forked_workers_and_graphs_end_as_under_torchrun(
    ways: tuple[str, ...], tmp_path: Path
) -> None:
    weights, _ = trained(tmp_path, "nccl", 1, *ways)
    assert_equal(plain(tmp_path, "nccl", 1, *ways), weights)


@several
def test_a_script_that_never_sets_its_device_is_timed_on_the_one_it_uses(tmp_path: Path) -> None:
    weights, recording = trained(tmp_path, "nccl", 1, "elsewhere")
    assert_equal(plain(tmp_path, "nccl", 1, "elsewhere"), weights)
    shown = snapshot(frame_at(recording, step=STEPS - 1))
    assert shown["ranks"][0]["device"] == f"cuda:{GPUS - 1}"
    assert shown["buckets"]


@pytest.mark.parametrize(("backend", "ranks"), [way for way in WAYS if way.values[0] == "nccl"])
def test_bucket_ends_are_the_profilers_kernel_ends(backend: str, ranks: int, tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    recording = watched(tmp_path, ranks, "profiled.py", backend, out)
    told = json.loads(out.read_text())
    assert told["buckets"] >= 2
    apart = apart_ns(told["kernels"], bucket_ends(recording, 0))
    assert apart[-1] <= AGREE_NS, f"ns apart: least {apart[0]}, median {apart[len(apart) // 2]}, {apart[-1]}"


@pytest.mark.parametrize(("backend", "ranks"), WAYS)
def test_a_gpu_that_does_not_get_on_is_named(backend: str, ranks: int, tmp_path: Path) -> None:
    recording = watched(tmp_path, ranks, "stuck.py", backend, 12, stall_s=3)
    with Recording.open(recording) as opened:
        words = [
            received.message
            for received in opened.records()
            if isinstance(received.message, Event) and received.message.kind == "device"
        ]
    stuck = [word for word in words if word.rank == ranks - 1]
    assert stuck
    assert {word.fields["state"] for word in stuck} == {"compute"}
    frame = frame_at(recording, step=None)
    told = [event.message for event in frame.events if event.kind == "stall"]
    assert f"stall: the GPU of rank {ranks - 1} does not get on" in " ".join(told)
