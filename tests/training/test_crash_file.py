"""The crash file is the rank's own: not the user's faulthandler, not a forked child's, never left empty."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes

START = """
import faulthandler, os, sys
from pathlib import Path
from ddptop.training.exit import CrashFile
path = Path(sys.argv[1])
"""


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    script = path.with_name("script.py")
    script.write_text(START + code)
    words = [sys.executable, script, path]
    return processes.run(words, processes.environment(path.parent), path.parent)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "crash-1.txt"


def test_a_crash_is_written_and_stderr_stays_silent(path: Path) -> None:
    done = run("kept = CrashFile.open_file(path)\nos.kill(os.getpid(), 11)", path)
    assert (done.returncode, done.stderr) == (-signal.SIGSEGV, "")
    assert path.read_text().startswith("Fatal Python error: Segmentation fault")


def test_an_orderly_end_leaves_no_empty_file_and_what_is_in_one_stays(path: Path) -> None:
    assert run("CrashFile.open_file(path).close()", path).returncode == 0
    assert not path.exists()
    run("kept = CrashFile.open_file(path)\nos.write(kept._descriptor, b'words')\nkept.close()", path)
    assert path.read_text() == "words"


def test_a_crash_after_the_orderly_end_harms_no_other_file(path: Path) -> None:
    other = path.with_name("other")
    code = f"kept = CrashFile.open_file(path)\nkept.close()\nopened = open({str(other)!r}, 'w')\nos.abort()"
    assert run(code, path).returncode == -signal.SIGABRT
    assert other.read_text() == ""


def test_the_users_own_faulthandler_wins_before_and_after(path: Path) -> None:
    before = run("faulthandler.enable()\nassert CrashFile.open_file(path) is None\nos.abort()", path)
    assert "Fatal Python error: Aborted" in before.stderr
    assert not path.exists()
    later = "kept = CrashFile.open_file(path)\nassert kept.in_use\n"
    later += "faulthandler.enable()\nassert not kept.in_use\n"
    after = run(later + "os.abort()", path)
    assert "Fatal Python error: Aborted" in after.stderr
    assert path.read_text() == ""


def test_what_a_forked_child_dies_of_is_not_the_ranks(path: Path) -> None:
    code = """
kept = CrashFile.open_file(path)
os.register_at_fork(after_in_child=kept.disconnect_in_child)
child = os.fork()
if not child:
    os.abort()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -6
"""
    done = run(code, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_text() == ""


def test_a_forked_child_that_trains_itself_has_a_file_of_its_own(path: Path) -> None:
    own = path.with_name("crash-2.txt")
    code = f"""
kept = CrashFile.open_file(path)
os.register_at_fork(after_in_child=kept.disconnect_in_child)
child = os.fork()
if not child:
    kept = CrashFile.open_file(Path({str(own)!r}), kept)
    os.abort()
os.waitpid(child, 0)
"""
    assert run(code, path).returncode == 0
    assert path.read_text() == ""
    assert own.read_text().startswith("Fatal Python error: Aborted")


def test_a_file_that_is_already_there_is_left_alone(path: Path) -> None:
    path.write_text("not ours")
    assert (
        run("assert CrashFile.open_file(path) is None\nassert not faulthandler.is_enabled()", path).returncode
        == 0
    )
    assert path.read_text() == "not ours"


def test_a_process_that_lives_on_catching_fatal_signals_is_left_alone(path: Path) -> None:
    code = """
import ctypes
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
ctypes.CDLL(None).signal(11, handler)  # as a JVM does, where Python does not see it
assert CrashFile.open_file(path) is None
os.kill(os.getpid(), 11)
"""
    done = run(code, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not path.exists()
