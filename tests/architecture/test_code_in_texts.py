"""Tests start programs whose code stands in a text, which mypy does not read: the names in it exist."""

from __future__ import annotations

import ast
import importlib
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


def programs(path: Path) -> Iterator[ast.Module]:
    """The texts in a module that are code which imports ddptop."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import" in node.value:
            try:
                program = ast.parse(textwrap.dedent(node.value))
            except (SyntaxError, ValueError):
                continue
            yield program


def imported_objects(program: ast.Module) -> tuple[dict[str, Any], list[str]]:
    """What it imports from ddptop, by its name there, and what there is not."""
    objects: dict[str, Any] = {}
    missing = []
    for node in ast.walk(program):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "ddptop":
            continue
        assert node.module is not None
        for name in node.names:
            try:
                module = importlib.import_module(node.module)
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")
                objects[name.asname or name.name] = getattr(module, name.name)
            except ImportError:
                missing.append(f"{node.module}.{name.name}")
    return objects, missing


def missing_names(program: ast.Module) -> list[str]:
    """Names of ddptop that it uses and that there are not."""
    objects, missing = imported_objects(program)
    for node in ast.walk(program):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = objects.get(node.value.id)
            if isinstance(owner, type | ModuleType) and not hasattr(owner, node.attr):
                missing.append(f"{node.value.id}.{node.attr}")
    return missing


def test_code_in_texts_uses_names_that_exist() -> None:
    others = [path for path in sorted(TESTS.rglob("*.py")) if path != Path(__file__)]
    found = [(path.name, missing_names(program)) for path in others for program in programs(path)]
    assert len(found) > 20
    assert [(name, missing) for name, missing in found if missing] == []


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("from ddptop.sources.showing import Showing\nShowing._rest = None", ["Showing._rest"]),
        ("from ddptop.sources import showing as s\ns.Nothing", ["s.Nothing"]),
        ("from ddptop.sources.nowhere import name", ["ddptop.sources.nowhere.name"]),
        ("from ddptop.sources.showing import Showing\nShowing._wait_for_next", []),
    ],
)
def test_a_name_that_does_not_exist_is_found(code: str, missing: list[str]) -> None:
    assert missing_names(ast.parse(code)) == missing
