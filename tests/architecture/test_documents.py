"""What the documents name is there."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from ddptop.frames.schema import schema
from tests.architecture.shape import PACKAGE, ROOT

FOLDERS = ("ddptop", "tests", "examples", ".github")
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
)

NAMED = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|md|toml|svg))?)`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def test_there_are_documents() -> None:
    names = {str(path.relative_to(ROOT)) for path in DOCUMENTS}
    assert {"README.md", "ddptop/README.md", "ddptop/analysis/METRICS.md", "tests/README.md"} <= names


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_links_are_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    for name in NAMED.findall(text):
        if not any((folder / name).exists() for folder in (ROOT, document.parent, ROOT / "ddptop")):
            missing.append(name)
    assert missing == []


def test_functions_that_the_map_names_are_in_its_modules() -> None:
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Where to look")[2].partition("\n## ")[0]
    places = re.findall(r"`([a-z_/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", table)
    assert len(places) >= 15
    missing = [
        f"{module}: {name}"
        for module, names in places
        for name in re.findall(r"`([^`]+)`", names)
        if name not in _defined_names(PACKAGE / module)
    ]
    assert missing == []


def _defined_names(module: Path) -> set[str]:
    """The functions of a module, and `Class.method` for each method."""
    names = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return names


def test_comments_refer_to_documents_that_are_here() -> None:
    foreign = re.compile(r"\b(DESIGN|FACTS|SCREENS|INTERFACE|STYLE)(\.md)?\b")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("ddptop", "tests", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != Path(__file__)
        for line in path.read_text(encoding="utf-8").splitlines()
        if foreign.search(line)
    ]
    assert found == []


def test_the_schema_of_the_snapshot_is_made_from_the_types() -> None:
    file = PACKAGE / "frames" / "snapshot.schema.json"
    command = "python -m ddptop.frames.schema > ddptop/frames/snapshot.schema.json"
    assert json.loads(file.read_text(encoding="utf-8")) == schema(), command
