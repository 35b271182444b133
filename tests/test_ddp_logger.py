"""Communication and overlap agree with DDP's own logger, which times every step of a run by itself.

What torch logs (torch/csrc/distributed/c10d/logger.cpp and reducer.cpp, `Timer` on CPU): backward
communication, from the first bucket that is ready to the moment when the reducer has all its buckets back;
the overlap, from the same beginning to the end of backward computation. What ddptop has: the union of the
all-reduces of a step, and the share of it that lies before the last bucket was ready. They mean the same
where communication does not pause between buckets (torch counts pauses as communication), which the script
sees to.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddptop.frames.snapshot import snapshot
from tests.processes import DDPTOP_RUN, environment, run
from tests.recording.replays import frame_at

SCRIPT = Path(__file__).parent / "scripts" / "logged.py"
STEPS = 60


def test_communication_and_overlap_agree_with_ddps_own_logger(tmp_path: Path) -> None:
    recording = tmp_path / "logged.ddptop"
    options = [
        "--ddptop-record",
        recording,
        "--ddptop-detail",
        "full",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = run([*DDPTOP_RUN, *options, SCRIPT, str(STEPS)], environment(tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr
    logged = json.loads(done.stdout)
    shown = snapshot(frame_at(recording, STEPS - 1))["group"]
    assert isinstance(shown, dict)
    print(logged, {name: shown[name] for name in ("collective_ms", "overlap_pct")})
    assert shown["collective_ms"] == pytest.approx(logged["comm_ms"], rel=0.1)
    assert 20 < logged["overlap_pct"] < 90, "nothing to compare"
    assert shown["overlap_pct"] == pytest.approx(logged["overlap_pct"], rel=0.1)
