"""The stall page as a text file, for a mail or an issue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ddptop.sources.saving import save_page
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.evidence import evidence
from ddptop.tui.views.stall import SAVED

if TYPE_CHECKING:
    from ddptop.analysis.frames import Frame

WIDTH = 110
"""Of the sentences; lines of code are kept whole, and paths as on a wide screen."""


def saved(frame: Frame) -> str:
    """Write all that is known of the stall and the deaths; returns where, or why not, in words."""
    lines = evidence(Scene(frame, Place()), WIDTH, every=True)
    if not lines:
        return "nothing to save: nothing is stalled, and no rank has died"
    scene = Scene(frame, Place())
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(frame.unix_s))
    head = f"ddptop {scene.clean(frame.run.name)}, {moment}: {scene.clean(' '.join(frame.run.argv))}"
    text = "\n".join([head, "", *(str(line).rstrip() for line in lines)]) + "\n"
    try:
        return f"{SAVED}{save_page(frame.run.name, 'stall', frame.unix_s, text)}"
    except OSError as error:
        return f"not saved: {error}"
