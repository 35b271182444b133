"""Into a process that sleeps: what cannot be injected leaves it as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddptop.host.inject import InjectionError, inject_file
from tests.processes import until

SLEEPS = """
import sys, time
from pathlib import Path
number = 0
while True:
    number += 1
    Path(sys.argv[1]).write_text(str(number))
    time.sleep(0.05)
"""


@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb")
def test_a_process_goes_on_whether_or_not_gdb_can_make_calls_in_it(tmp_path: Path) -> None:
    """A gdb that cannot write all registers of this CPU must not begin: its call would fail half made."""
    script, count, mark = tmp_path / "sleeps.py", tmp_path / "count", tmp_path / "mark"
    script.write_text(SLEEPS)
    file = tmp_path / "injected.py"
    file.write_text(f"open({str(mark)!r}, 'w').close()")

    def number() -> int:
        return int(count.read_text() or 0) if count.exists() else 0

    with subprocess.Popen([sys.executable, str(script), str(count)]) as process:
        try:
            until(lambda: number() > 3, "the process runs")
            for _ in range(5):
                try:
                    inject_file(process.pid, file)
                except InjectionError:
                    pass
                else:
                    until(mark.exists, "the file was executed")
                    mark.unlink()
                before = number()
                until(lambda: process.poll() is not None or number() > before + 3, "it goes on")  # noqa: B023
                assert process.poll() is None
        finally:
            process.kill()
