"""A home of its own for every command, and a frame whose figures are known."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddptop.frames.figures import Ranks
from ddptop.frames.frame import Alert, BucketFigures, Frame, GroupFigures, RunInfo, Straggler
from ddptop.frames.history import COLUMNS, History
from ddptop.frames.overhead import Overhead
from ddptop.host.processes import current_process
from ddptop.host.runs import RunFile, create_run_directory, write_run_file

DEADLINE_S = 120
"""A hung command fails its test; two busy cores start Python in a second or three."""

MAIN = """
import os, sys
from pathlib import Path
from ddptop.host import folders
folders.SHARED_TMP = Path(os.environ["HOME"])  # or this machine's own runs would be seen
from ddptop.cli.main import main
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def garbage_collector() -> Iterator[None]:
    """A command that is run in this process may turn it off, and ends no process here."""
    yield
    gc.enable()


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose runs, recordings and settings are under `tmp_path`."""
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("DDPTOP", "XDG_", "NO_COLOR"))
    }
    for name in ("runtime", "state", "config"):
        (tmp_path / name).mkdir(mode=0o700)
    environ |= {
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path / "runtime"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PYTHONIOENCODING": "utf-8",
        "TERM": "xterm-256color",
    }
    return environ


@pytest.fixture
def ddptop(home: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `ddptop ARGUMENTS` as a process without a terminal."""

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", MAIN, *arguments],
            env=home | environ,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=DEADLINE_S,
        )

    return run


OWN_COLUMNS = (
    *("own_ms", "excess_ms", "own_data_ms", "own_forward_ms", "own_backward_ms", "own_optimizer_ms"),
    *("before_forward_ms", "before_backward_ms", "before_optimizer_ms", "after_optimizer_ms", "waited_ms"),
    *("gc_ms", "buffers_ms", "buffers_wait_ms"),
)
"""Figures of every step, which a recording of 0.1.0 has not."""


def _column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@pytest.fixture
def frame() -> Frame:
    """Two ranks on one host; rank 1 comes 20.3 ms late because of its data loading."""
    columns = {field.name: _column(0.0, 0.0) for field in dataclasses.fields(Ranks)}
    columns |= dict.fromkeys(OWN_COLUMNS, _column(float("nan"), float("nan")))
    columns |= {
        "local_rank": _column(0, 1),
        "pid": _column(4311, 4312),
        "age_ms": _column(120.0, 340.0),
        "step": _column(12481, 12481),
        "loss": _column(0.4131, 0.4119),
        "step_ms": _column(46.8, 46.8),
        "data_ms": _column(2.0, 22.2),
        "forward_ms": _column(8.1, 8.0),
        "backward_ms": _column(34.0, 13.8),
        "optimizer_ms": _column(2.5, 2.5),
        "other_ms": _column(0.2, 0.3),
        "wait_ms": _column(20.3, 0.0),
        "transfer_ms": _column(1.9, 1.9),
        "exposed_comm_ms": _column(22.2, 1.9),
        "exposed_wait_ms": _column(20.3, 0.0),
        "lateness_ms": _column(-20.3, 20.3),
        "last_pct": _column(4.0, 96.0),
        "rss_bytes": _column(3e8, float("nan")),
    }
    text = {
        "host": ("node0", "node0"),
        "device": ("cpu", "cpu"),
        "state": ("live", "live"),
        "phase": ("backward", "data"),
    }
    empty = _column()
    return Frame(
        source="live",
        unix_s=1_700_000_000.0,
        run=RunInfo(
            name="train-k7qf",
            id="a1b2c3",
            state="live",
            started_at=1_699_998_317.0,
            elapsed_s=1683.0,
            world_size=2,
            backend="gloo",
            nodes=1,
            script="train.py",
            argv=("--lr", "0.1"),
            torch="2.13.0",
            exit_code=None,
            recording="/home/me/.local/state/ddptop/train-k7qf.ddptop",
            card={},
        ),
        group=GroupFigures(
            step=12480,
            steps_per_s=21.4,
            step_ms_p50=46.8,
            step_ms_p95=51.2,
            loss_mean=0.4125,
            loss_min=0.4119,
            loss_max=0.4131,
            loss_min_rank=1,
            loss_max_rank=0,
            collective_ms=12.0,
            wait_ms=10.15,
            transfer_ms=1.9,
            exposed_comm_ms=3.1,
            overlap_pct=78.0,
            busbw_gbps=4.21,
            no_straggler_ms=26.6,
            no_exposed_comm_ms=43.7,
            both_ms=24.9,
        ),
        ranks=Ranks(**(columns | text)),
        buckets=(
            BucketFigures(
                index=0,
                generation=1,
                model=0,
                bytes=8_000_000,
                parameters=4,
                dtype="float32",
                hook="",
                collective_ms=12.0,
                wait_ms=10.15,
                transfer_ms=1.9,
                algbw_gbps=4.21,
                busbw_gbps=4.21,
                effective_busbw_gbps=0.67,
                skew_ms=20.3,
                last_arriver=1,
                last_arriver_pct=96.0,
            ),
        ),
        straggler=Straggler(
            rank=1,
            pattern="persistent",
            lateness_ms=20.3,
            bound_ms=0.1,
            recoverable_ms=20.2,
            cost_pct=43.0,
            last_pct=96.0,
            cause="data",
            parts_ms={"data": 20.2, "forward": -0.1},
        ),
        alerts=(Alert("straggler", "warning", 1, 11902, 1_699_999_900.0, "rank 1 is late: data"),),
        events=(),
        overhead=Overhead(budget_pct=1.0, measured_pct=0.6, us_per_step=31.0, detail_every=8, failures=0),
        history=History(0, *[empty] * len(COLUMNS)),
        focus=None,
        records=24_962,
        lost_records=0,
    )


@pytest.fixture
def home_here(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folders for commands that run in this process; returns the folder that holds them."""
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, home[name])
    monkeypatch.setattr("ddptop.host.folders.SHARED_TMP", Path(home["HOME"]))
    return Path(home["HOME"])


@pytest.fixture
def live_run(home_here: Path) -> Callable[..., RunFile]:
    """Makes runs that look alive: their collector is said to be this process."""

    def make(name: str, run_id: str, **changes: Any) -> RunFile:
        directory = create_run_directory(run_id)
        pid, start, boot, namespace = current_process()
        run = RunFile(name, run_id, pid, start, boot, namespace, time.time(), "train.py", 2, None, directory)
        run = dataclasses.replace(run, **changes)
        write_run_file(directory, run)
        return run

    return make
