"""What ddptop starts beside a training has nothing of the training's in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddptop.host import processes
from ddptop.host.processes import need_threads
from tests.processes import run


@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH came with Python 3.11")
def test_modules_of_the_current_folder_are_not_taken_for_pythons_own(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('of the user')")
    done = run([sys.executable, "-m", "ddptop.collector", "--help"], processes.child_environment(), tmp_path)
    assert done.returncode == 0, done.stderr


def test_it_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    inject = str(Path(__file__).parents[2] / "ddptop" / "training" / "inject")
    monkeypatch.setenv("PYTHONPATH", f"{inject}:/of/the/user")
    monkeypatch.setenv("DDPTOP_RUN_DIR", "/run")
    monkeypatch.setenv("DDPTOP_AGENT", "0:0")
    monkeypatch.setenv("DDPTOP_STALL", "5")
    found = processes.child_environment()
    assert {name for name in found if name.startswith("DDPTOP_")} == {"DDPTOP_STALL"}
    assert found["PYTHONPATH"].split(":")[0] == "/of/the/user"
    assert inject not in found["PYTHONPATH"]


ENDS = """
import os, time
from ddptop.host.processes import InputEnd
InputEnd(lambda: os._exit(7))
print("up", flush=True)
time.sleep(60)
"""


def test_a_process_that_was_started_ends_with_its_input() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(120) == 7
    process.stdout.close()


FILLED = """
import os
from ddptop.cli.errors import note
from ddptop.training.guard import print_line
from ddptop.host.processes import fill_standard_streams
note("of the command")
print_line("of a rank")
fill_standard_streams()
print(os.readlink("/proc/self/fd/2"), os.get_inheritable(2), os.pipe()[0] > 2)
"""


def test_without_stderr_no_word_goes_to_stdout_and_no_descriptor_takes_its_number() -> None:
    line = f"exec {sys.executable} -c '{FILLED}' 2>&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert done.stdout == "/dev/null False True\n"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_threads_that_were_tried_are_gone_for_the_kernel_too() -> None:
    before = set(Path("/proc/self/task").iterdir())
    for _ in range(20):
        need_threads(16)
        assert set(Path("/proc/self/task").iterdir()) <= before
