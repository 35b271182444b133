"""The stall page as a text file, for a mail or an issue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.evidence import evidence

if TYPE_CHECKING:
    from ddptop.analysis.frames import Frame

WIDTH = 110
"""Of the sentences; lines of code are kept whole, and paths as on a wide screen."""


def evidence_text(frame: Frame) -> str | None:
    """All that is known of the stall and the deaths; None where nothing is stalled and nobody has died."""
    scene = Scene(frame, Place())
    lines = evidence(scene, WIDTH, every=True)
    if not lines:
        return None
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(frame.unix_s))
    head = f"ddptop {scene.clean(frame.run.name)}, {moment}: {scene.clean(' '.join(frame.run.argv))}"
    return "\n".join([head, "", *(str(line).rstrip() for line in lines)]) + "\n"
