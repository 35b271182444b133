"""What a script sees of the import hook: the same tracebacks as without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = {
    "__init__.py": "from watched.inner import name",
    "inner.py": "def work():\n    {what}\n\nname = work()",
}
SCRIPT = """{hook}
import watched
"""
HOOK = "from ddptop.training.import_hook import when_imported; when_imported('watched.inner', print)"
INTERRUPTED = """
from ddptop.training.import_hook import when_imported
def act(module):
    raise KeyboardInterrupt
act.__code__ = act.__code__.replace(co_filename=when_imported.__code__.co_filename)  # as if it were ours
when_imported("watched.inner", act)
"""


def said(folder: Path, hook: str, what: str) -> tuple[int, str]:
    """Exit code and stderr of a script that imports a package, whose inner module does this."""
    (folder / "watched").mkdir(exist_ok=True)
    for name, text in PACKAGE.items():
        (folder / "watched" / name).write_text(text.format(what=what))
    (folder / "script.py").write_text(SCRIPT.format(hook=hook))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 re-raises with its own copy of the traceback"
)
@pytest.mark.parametrize("what", ["raise KeyboardInterrupt", "import no_such_module", "1 / 0"])
def test_an_import_that_ends_early_has_the_traceback_of_plain_python(tmp_path: Path, what: str) -> None:
    plain, watched = said(tmp_path, "pass", what), said(tmp_path, HOOK, what)
    assert "Traceback" in plain[1]
    assert watched == plain


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 re-raises with its own copy of the traceback"
)
def test_ctrl_c_while_the_hook_acts_shows_the_users_import_alone(tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text(INTERRUPTED)
    _, text = said(tmp_path, "import hook", "pass")
    assert text.endswith("KeyboardInterrupt\n")
    assert "from watched.inner import name" in text
    assert "import_hook.py" not in text
