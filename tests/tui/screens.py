"""The text of a screen as it is on a terminal, and golden files of it that a person can read in a diff."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.tui.app import DdptopApp

GOLDEN = Path(__file__).parent / "golden"


def text_of(app: DdptopApp) -> str:
    """What the compositor would put on the terminal, without colours and blanks at line ends."""
    # Private, but the one place that holds the picture as text (textual 1.0 to 8.2).
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


def check(name: str, text: str) -> None:
    """Compare with `golden/NAME.txt`; `UPDATE_GOLDEN=1` writes it instead."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; UPDATE_GOLDEN=1 rewrites it"
