"""On a GPU: what `ddptop.setup()` makes of it under NCCL, and its words where that cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import TORCHRUN, environment, run

torch = pytest.importorskip("torch")

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="no CUDA device")]

SCRIPT = """
import sys, datetime, torch, torch.distributed as dist, ddptop
BACKEND = sys.argv[1] if len(sys.argv) > 1 else None
with ddptop.setup(backend=BACKEND, timeout=datetime.timedelta(seconds=77)) as group:
    bound = dist.group.WORLD.bound_device_id
    ones = torch.ones(1, device=group.device)
    dist.all_reduce(ones)
    backend = dist.group.WORLD._get_backend(group.device)
    on_gpu = group.device.type == "cuda"
    words = [group.rank, group.backend, group.device, bound]
    words += [torch.cuda.current_device() if on_gpu else "none", int(ones.item())]
    words += [backend.options._timeout.total_seconds() if on_gpu else ""]
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # at once: the ranks share it
"""


def launched(tmp_path: Path, ranks: int, *words: str) -> tuple[int, list[str], str]:
    """Exit code, lines and errors of the script on so many ranks."""
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--standalone", "--nproc-per-node", str(ranks), "train.py", *words]
    done = run([*TORCHRUN, *options], environment(tmp_path, gpus=True) | {"DDPTOP": "0"}, tmp_path)
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


def test_each_rank_is_bound_to_its_gpu_and_keeps_the_users_timeout(tmp_path: Path) -> None:
    code, lines, errors = launched(tmp_path, GPUS)
    assert code == 0, errors
    assert lines == [f"{rank} nccl cuda:{rank} cuda:{rank} {rank} {GPUS} 77.0" for rank in range(GPUS)]


def test_more_ranks_than_gpus_are_told_so_under_nccl_and_take_gloo_by_themselves(tmp_path: Path) -> None:
    code, _, errors = launched(tmp_path, GPUS + 1, "nccl")
    assert code == 1
    assert "are on one GPU, and NCCL needs one for each rank" in errors
    code, lines, errors = launched(tmp_path, GPUS + 1)
    assert code == 0, errors
    assert [line.split()[1:3] for line in lines] == [["gloo", "cpu"]] * (GPUS + 1)
