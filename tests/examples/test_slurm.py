"""The batch script, run by bash with a `srun` that starts the tasks of two nodes on this machine."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.examples.runs import EXAMPLES
from tests.processes import environment, run

pytestmark = pytest.mark.slow  # two launchers and their ranks

SRUN = """#!{python}
import os, subprocess, sys
tasks = [
    subprocess.Popen(sys.argv[1:], env=os.environ | {{
        "SLURM_PROCID": str(node), "SLURM_LOCALID": "0", "SLURM_NODEID": str(node),
    }})
    for node in range(2)
]
sys.exit(max(task.wait() for task in tasks))
"""

PYTHON = """#!/bin/sh
exec {python} "$@"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_batch_script_trains_on_two_nodes(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("python", PYTHON)):
        (tools / name).write_text(text.format(python=sys.executable))
        (tools / name).chmod(0o700)
    env = environment(tmp_path)
    env |= {
        "PATH": f"{tools}:{env['PATH']}",
        "PYTHONPATH": str(EXAMPLES.parent),
        "SCRATCH": str(tmp_path),
        "SLURM_SUBMIT_DIR": str(EXAMPLES.parent),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "127.0.0.[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_NTASKS": "2",
        "SLURM_TASKS_PER_NODE": "1(x2)",
        "SLURM_CPUS_PER_TASK": "1",
    }
    done = run(["bash", EXAMPLES / "slurm.sbatch", "--epochs", "1"], env, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "epoch 0: loss" in done.stdout
    assert done.stdout.count("1001 samples evaluated") == 1, "one group, one rank 0"
    assert (tmp_path / "workflow-4711" / "checkpoint-00001-000000079.pt").exists(), "79 steps: two ranks"
