"""What a release says about itself: one version, in `ddptop/__init__.py`, and what has changed in it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ddptop import __version__

ROOT = Path(__file__).parent.parent.parent


def print_notes(version: str) -> subprocess.CompletedProcess[str]:
    """What `.github/workflows/release.yml` puts into the release on GitHub."""
    return subprocess.run(
        [ROOT / ".ci" / "release-notes", version], capture_output=True, text=True, timeout=60
    )


def test_the_changelog_says_what_is_new_in_this_version() -> None:
    notes = print_notes(__version__)
    assert (notes.returncode, notes.stderr) == (0, "")
    assert re.findall("^### (.*)", notes.stdout, re.MULTILINE) == ["Added", "Changed", "Fixed"]
    assert len(notes.stdout.split()) <= 300
    newest = re.search("^## (.*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] == __version__


def test_a_tag_of_another_version_is_refused() -> None:
    other = print_notes("0.0.1")
    assert (other.returncode, other.stdout) == (1, "")
    assert other.stderr == "ddptop/__init__.py has another version than 0.0.1\n"
