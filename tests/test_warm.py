"""A process forked from the template is to a script what a started one is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.processes import environment, run

SCRIPT = """
import os, signal, sys, warnings
from pathlib import Path
if __name__ == "__main__":
    # torch puts a temporary folder for code that it generates on the path: tmp and eight characters.
    path = [entry for entry in sys.path if not Path(entry).name.startswith("tmp")]
    print(__file__, sys.argv, path, sys.executable, sys.warnoptions)
    print(os.getcwd(), os.getpgrp() == os.getpid())
    print(sorted(os.environ.items()), sorted(vars()))
    print([signal.getsignal(number) for number in range(1, 32) if number not in (9, 19)])
    print(sorted(int(name) for name in os.listdir("/proc/self/fd"))[:3], sys.stdout.write_through)
    in_proc = [Path("/proc/self", name).read_text() for name in ("cmdline", "environ")]
    print([text.rstrip("\\0").split("\\0") for text in in_proc])
    print([name for name in sys.modules if name.startswith(("tests", "ddptop"))])
    print(sys.stdin.read(), file=sys.stderr)
    how = sys.argv[1]
    if how == "exit":
        sys.exit(3)
    if how == "raise":
        raise ValueError("of the script")
    if how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        import time
        time.sleep(30)
"""


@pytest.mark.parametrize(
    ("how", "code"), [("end", 0), ("exit", 3), ("raise", 1), pytest.param("interrupt", -2, id="interrupt")]
)
def test_a_script_sees_no_difference(tmp_path: Path, how: str, code: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['SITE'] = 'customized'")
    env = environment(tmp_path) | {"PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-u", "script.py", how, "second"]
    warm, cold = (run(command, env, tmp_path, cold=cold) for cold in (False, True))
    assert warm.returncode == cold.returncode == code
    assert warm.stdout.splitlines() == cold.stdout.splitlines()
    assert _own(warm.stderr) == _own(cold.stderr)
    assert "customized" in warm.stdout


def _own(stderr: str) -> list[str]:
    """Without what Python 3.10 says at its end of the temporary folder that torch has made."""
    return [line for line in stderr.splitlines() if "ResourceWarning" not in line]
