"""Recordings made by earlier versions replay to the same figures: that is a promise.

`data/*.ddptop` are of two real ranks over gloo: `straggler` and `stall` by version 0.1.0 at commit 0017279
(`examples/trouble.py straggler --ms 12` and `hang --seconds 12`); `rows` at b25dd7f, with own times, steps in
rows; `columns` at af1188a, with waits for a CPU, steps in columns; `sizes` at 3370bfb, with garbage
collections and sizes of batches. `data/*.json` holds their snapshots at some steps, those of `rows` as
b25dd7f gives them. A later version may add fields and choose other words; the figures that are there keep
their values.
`UPDATE_OLD_FIGURES=1` rewrites them: only where the figures were wrong, and the commit says why.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ddptop.frames.snapshot import snapshot
from tests.recording.replays import complete_frame, replay_to_steps

DATA = Path(__file__).parent / "data"

STEPS = {
    "straggler": (5, 20, 40, 60, 80, 100, 119, 150, 200, 259),
    "stall": (5, 20, 40, 59, 60, 61, 80, 100, 110, 119),
    "rows": (5, 40, 120, 259),
    "columns": (5, 40, 120, 259),
    "sizes": (5, 40, 120, 259),
}
"""Before, at and after the verdict; the stall is in step 60."""


WORDS = ("sentence", "detail", "message", "what")
"""Keys of the snapshot whose values are written for people."""


@pytest.mark.parametrize("name", STEPS)
def test_a_recording_of_an_earlier_version_replays_to_the_same_figures(name: str) -> None:
    path = DATA / f"{name}.json"
    found = _snapshots(name)
    if os.environ.get("UPDATE_OLD_FIGURES") == "1":
        path.write_text(json.dumps(found, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
    known = dict(_values(json.loads(path.read_text(encoding="utf-8"))))
    now = dict(_values(found))
    assert {key: now.get(key, "gone") for key in known} == known


def test_the_straggler_and_the_stall_are_what_the_scripts_did() -> None:
    for name in ("straggler", "rows", "columns", "sizes"):
        late = _snapshots(name)["259"]["straggler"]
        assert (late["rank"], late["cause"], late["pattern"]) == (1, "data", "persistent")
        assert 11.0 < late["lateness_ms"] < 14.0, "it slept 12 ms in its loader"
    events = _snapshots("stall")["119"]["alerts"]
    assert not [alert for alert in events if alert["kind"] == "stall"], "it is over"


@cache
def _snapshots(name: str) -> dict[str, Any]:
    """By step."""
    taken = {}
    for step, player, past in replay_to_steps(DATA / f"{name}.ddptop", STEPS[name]):
        shown = snapshot(complete_frame(player, past))
        shown["run"]["recording"] = None  # where this clone lies
        taken[str(step)] = json.loads(json.dumps(shown))
    return taken


def _values(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with the path to it."""
    if isinstance(tree, dict):
        for name, below in tree.items():
            if name in WORDS:
                continue
            yield from _values(below, f"{key}.{name}")
    elif isinstance(tree, list):
        yield f"{key}[]", len(tree)
        for at, below in enumerate(tree):
            yield from _values(below, f"{key}[{at}]")
    else:
        yield key, tree
