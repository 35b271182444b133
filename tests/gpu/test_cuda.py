"""On a GPU: bucket times of the device, no synchronisation added, not a bit of the result changed.

Run wherever a GPU is (`pytest -m gpu`); without one they are skipped. One rank under NCCL, two ranks of gloo
with CUDA tensors on one GPU, and as many ranks under NCCL as there are GPUs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ddptop.analysis.snapshot import snapshot
from ddptop.protocol.messages import Card
from ddptop.recording.reader import Recording
from ddptop.sources.replay import frame_at
from tests.processes import DDPTOP_RUN, TORCHRUN, environment, run

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
STEPS = 120

WAYS = [("nccl", 1), ("gloo", 2)]
if torch.cuda.is_available() and torch.cuda.device_count() > 1:
    WAYS.append(("nccl", torch.cuda.device_count()))


def trained(tmp_path: Path, backend: str, ranks: int, *, strict: bool = False) -> tuple[list[Any], Path]:
    """Weights of rank 0 and the recording of a run under ddptop-run."""
    out, recording = tmp_path / "watched.pt", tmp_path / "run.ddptop"
    command = [
        *DDPTOP_RUN, "--standalone", "--nproc-per-node", str(ranks), "--ddptop-record", recording,
        "--ddptop-detail", "full", SCRIPT, backend, str(STEPS), out, *(["--no-sync"] if strict else []),
    ]  # fmt: skip
    done = run([str(word) for word in command], environment(tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr
    return torch.load(out), recording


@pytest.mark.parametrize(("backend", "ranks"), WAYS)
def test_weights_are_those_of_torchrun(backend: str, ranks: int, tmp_path: Path) -> None:
    out = tmp_path / "plain.pt"
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", str(ranks), SCRIPT, backend, str(STEPS), out]
    done = run([str(word) for word in command], environment(tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr
    watched, _ = trained(tmp_path, backend, ranks)
    assert all(torch.equal(a, b) for a, b in zip(torch.load(out), watched, strict=True))


@pytest.mark.parametrize(("backend", "ranks"), WAYS)
def test_buckets_phases_and_loss_are_known(backend: str, ranks: int, tmp_path: Path) -> None:
    _, recording = trained(tmp_path, backend, ranks)
    shown = snapshot(frame_at(recording, step=STEPS - 1))
    assert shown["group"]["step"] == STEPS - 1
    assert len(shown["buckets"]) > 1
    assert all(bucket["transfer_ms"] is not None for bucket in shown["buckets"])
    for rank in shown["ranks"]:
        assert rank["device"].startswith("cuda")
        assert rank["forward_ms"] > 0 and rank["backward_ms"] > 0
        assert rank["step_ms"] >= rank["forward_ms"] + rank["backward_ms"] + rank["optimizer_ms"] - 0.01
        assert math.isfinite(rank["loss"])


def test_no_synchronisation_is_added(tmp_path: Path) -> None:
    _, recording = trained(tmp_path, "nccl", 1, strict=True)
    with Recording.open(recording) as opened:
        cards = [item.message.entries for item in opened.lasting() if isinstance(item.message, Card)]
    assert cards
    assert all("first_failure" not in card for card in cards), cards[-1].get("first_failure")
    assert frame_at(recording, step=STEPS - 1).overhead.failures == 0
