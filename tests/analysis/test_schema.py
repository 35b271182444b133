"""Snapshots are valid by their JSON Schema (its file: `tests/architecture/test_documents.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddptop.frames import snapshot
from ddptop.frames.schema import schema
from tests.recording.replays import frame_at
from tests.tui import fake, fake_hosts

DATA = Path(__file__).parents[1] / "recording" / "data"


def closed(node: Any) -> Any:
    """The schema without other keys than those that it names."""
    if isinstance(node, list):
        return [closed(one) for one in node]
    if not isinstance(node, dict):
        return node
    found = {key: closed(value) for key, value in node.items()}
    return found | ({"additionalProperties": False} if "required" in node else {})


def test_snapshots_have_exactly_the_keys_and_types_of_the_schema() -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    validator.check_schema(schema())
    exact = validator(closed(schema()))
    frames = [frame_at(path, None) for path in sorted(DATA.glob("*.ddptop"))]
    frames += [fake.straggler(), fake.lost(), fake_hosts.silent(3, 4)]
    for frame in frames:
        shown = json.loads(json.dumps(snapshot.snapshot(frame)))
        assert [f"{list(error.path)}: {error.message}" for error in exact.iter_errors(shown)] == []
    shown["ranks"][0]["step_ms"] = "12 ms"
    assert not exact.is_valid(shown)
