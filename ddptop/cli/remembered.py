"""What the screen remembers from one time to the next: a small file of the program's own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddptop.transport.private import RunDirectoryError, open_private, open_regular, write_private
from ddptop.transport.roots import state_directory, state_path

if TYPE_CHECKING:
    from ddptop.cli.settings import Settings
    from ddptop.tui.app import DdptopApp

FILE = "screen.json"

LARGEST = 65_536
"""Bytes: more than that is not what was written here."""


def load(environ: Mapping[str, str]) -> dict[str, object]:
    """Settings by name; none where the file is not there or is not ours."""
    try:
        with os.fdopen(open_regular(state_path(environ) / FILE), encoding="utf-8") as stream:
            kept = json.loads(stream.read(LARGEST))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def keep(app: DdptopApp, settings: Settings) -> None:
    """Write what was changed on the screen; the rest stays as it was. Raises OSError where it cannot be."""
    place = app.place
    now = {"sort": ("-" if place.inverted else "") + place.sort, "log": place.charts.log_loss}
    changed: dict[str, object] = {
        name: value for name, value in now.items() if value != getattr(settings, name)
    }
    if app.chosen_theme is not None:
        changed["theme"] = app.chosen_theme
    if not changed:
        return
    kept = load(os.environ) | changed
    try:
        # Two screens may end at once: the file is whole at any moment.
        with open_private(state_directory()) as folder:
            write_private(folder, FILE, (json.dumps(kept, indent=1) + "\n").encode())
    except RunDirectoryError as error:
        raise OSError(str(error)) from error
