"""On a GPU: bucket times of the device, no synchronisation added, not a bit of the result changed.

Run wherever a GPU is, by `python -m pytest -m gpu`; without one they are skipped. One rank under NCCL, two
ranks of gloo with CUDA tensors on one GPU, two under NCCL (on one GPU too, see `scripts/one_gpu.py`), and as
many as there are GPUs. What a step costs there is measured by `python -m tests.benchmarks.bench_gpu`.
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
from ddptop.training.own_cost import is_clocked
from tests.gpu.moments import apart_ns, bucket_ends
from tests.processes import DDPTOP_RUN, TORCHRUN, environment, run
from tests.recording.replays import frame_at

torch = pytest.importorskip("torch")

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="no CUDA device")]

several = pytest.mark.skipif(GPUS < 2, reason="fewer than two CUDA devices")
more_than_two = pytest.mark.skipif(GPUS < 3, reason="fewer than three CUDA devices")

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 120
AGREE_NS = 50_000
"""How far bucket ends may lie from the profiler's kernel ends where the host is ahead of the device."""
FULL_QUEUE = 60
"""Steps after which the queue of the device is full."""
LARGE, SMALL = 16384, 256
"""Batches: with the first the host is ahead of the device, with the second the device waits for the host."""

WAYS = [
    pytest.param("nccl", 1, id="NCCL alone"),
    pytest.param("gloo", 2, id="gloo, two ranks on one GPU"),
    pytest.param("nccl", 2, id="NCCL, two ranks"),
    pytest.param("nccl", GPUS, id="NCCL on all GPUs", marks=more_than_two),
]


def launched(launcher: list[str], tmp_path: Path, ranks: int, *words: object) -> None:
    """Run a script of this folder to its end."""
    command = [*launcher, "--standalone", "--nproc-per-node", ranks, SCRIPTS / str(words[0]), *words[1:]]
    done = run([str(word) for word in command], environment(tmp_path, gpus=True), tmp_path)
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
        cards = [item.message.entries for item in opened.lasting_messages() if isinstance(item.message, Card)]
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


def events(recording: Path, kind: str) -> list[Event]:
    """The events of a kind, in order."""
    with Recording.open(recording) as opened:
        messages = [received.message for received in opened.records()]
    return [message for message in messages if isinstance(message, Event) and message.kind == kind]


def log(recording: Path) -> str:
    """What the log says."""
    return "\n".join(event.message for event in frame_at(recording, step=None).events)


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


NCCL_WAYS = [way for way in WAYS if way.values[0] == "nccl"]


def profiled(tmp_path: Path, backend: str, ranks: int, batch: int) -> tuple[list[int], Path]:
    """How many ns bucket ends lie from the profiler's kernel ends, least first; the recording."""
    out = tmp_path / "profile.json"
    recording = watched(tmp_path, ranks, "profiled.py", backend, out, batch)
    told = json.loads(out.read_text())
    assert told["buckets"] >= 2
    return apart_ns(told["kernels"], bucket_ends(recording, 0)), recording


@pytest.mark.parametrize(("backend", "ranks"), NCCL_WAYS)
def test_bucket_ends_are_the_profilers_kernel_ends(backend: str, ranks: int, tmp_path: Path) -> None:
    apart, _ = profiled(tmp_path, backend, ranks, LARGE)
    assert apart[-1] <= AGREE_NS, f"ns apart: least {apart[0]}, median {apart[len(apart) // 2]}, {apart[-1]}"


@pytest.mark.parametrize(("backend", "ranks"), NCCL_WAYS)
def test_where_the_device_waits_for_the_host_the_bound_of_the_ends_covers_it(
    backend: str, ranks: int, tmp_path: Path
) -> None:
    apart, recording = profiled(tmp_path, backend, ranks, SMALL)
    bounds = [float(str(event.fields["end_us"])) for event in events(recording, "timer") if event.rank == 0]
    median = apart[len(apart) // 2]
    assert median <= bounds[-1] * 1e3, f"ns apart: {apart[0]}, {median}, {apart[-1]}; bounds in us: {bounds}"


@pytest.mark.parametrize(("backend", "ranks"), WAYS)
def test_a_gpu_that_does_not_get_on_is_named(backend: str, ranks: int, tmp_path: Path) -> None:
    recording = watched(tmp_path, ranks, "stuck.py", backend, 12, stall_s=3)
    stuck = [event for event in events(recording, "device") if event.rank == ranks - 1]
    assert stuck
    assert {event.fields["state"] for event in stuck} == {"compute"}
    assert f"stall: the GPU of rank {ranks - 1} makes no progress" in log(recording)


def test_a_rank_that_does_not_join_an_all_reduce_of_nccl_is_missing_and_nccl_agrees(tmp_path: Path) -> None:
    recording = watched(tmp_path, 2, "faulty.py", "missing", 120, stall_s=3)
    assert "stall: rank 1 is missing: not in " in log(recording)
    states = {event.rank: event.fields["state"] for event in events(recording, "device")}
    assert states == {0: "collective", 1: "idle"}
    (ras,) = events(recording, "ras")
    assert "Communicator ranks have different AllReduce operation counts" in str(ras.fields)
    analyser = events(recording, "analyser")
    assert any("rank 1 has not joined all_reduce" in str(event.fields) for event in analyser)


def test_a_rank_whose_gpu_takes_longer_is_the_straggler(tmp_path: Path) -> None:
    recording = watched(tmp_path, 2, "faulty.py", "slow", 240)
    flags = [event for event in frame_at(recording, step=None).events if event.kind == "straggler"]
    assert {event.rank for event in flags} == {1}, log(recording)
    assert "rank 1, forward" in log(recording)
    assert "rank 1 is no longer slow" in log(recording)


def test_an_error_of_the_device_ends_the_run_as_under_torchrun_and_is_no_failure_of_ours(
    tmp_path: Path,
) -> None:
    script = ["--standalone", "--nproc-per-node", "2", str(SCRIPTS / "faulty.py"), "assert", "120"]
    recording, env = tmp_path / "run.ddptop", environment(tmp_path, gpus=True)
    plain = run([*TORCHRUN, *script], env, tmp_path)
    ours = run([*DDPTOP_RUN, "--ddptop-record", str(recording), *script], env, tmp_path)
    assert ours.returncode == plain.returncode != 0
    told = [line for line in ours.stderr.splitlines() if "Failed to update state" in line]
    assert told == [], "torch's flight recorder was asked about events of a device in error"
    # Its exception, or torch's watchdog, which sees the error too and aborts: whichever is first.
    assert any(words in log(recording) for words in ("device-side assert triggered", "rank 1 aborted"))
    assert frame_at(recording, step=None).overhead.failures == 0


def test_waiting_for_the_device_is_not_told_as_our_cost(tmp_path: Path) -> None:
    """Where the device's queue is full, any launch waits for the device, the record of an event too."""
    recording = watched(tmp_path, 1, "faulty.py", "ahead", 150)
    rows = list(enumerate(rows_of(recording, 0)))[FULL_QUEUE:]
    costs = sorted(row.cost_us for step, row in rows if is_clocked(step))
    walls = sorted(row.wall_us for _, row in rows)
    assert 0 < costs[len(costs) // 2] < walls[len(walls) // 2] / 10


def test_a_step_in_a_cuda_graph_is_no_stall_and_no_failure(tmp_path: Path) -> None:
    recording = watched(tmp_path, 1, "faulty.py", "graph", 120, stall_s=3)
    assert [event.fields["name"] for event in events(recording, "phase_begins")] == ["CUDA graph"]
    assert "stall:" not in log(recording)
    frame = frame_at(recording, step=None)
    assert (frame.group.step, frame.overhead.failures) == (120, 0)


def test_the_gpu_of_a_rank_is_read_through_nvml(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    recording = watched(tmp_path, 1, "stuck.py", "nccl", 4)
    shown = snapshot(frame_at(recording, step=None))["ranks"][0]["gpu"]
    assert shown["mem_total_bytes"] >= shown["mem_bytes"] > 0
    assert 0 <= shown["util_pct"] <= 100
    assert shown["temp_c"] > 0
    assert shown["power_w"] > 0
