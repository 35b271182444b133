"""What the documents name is there."""

from __future__ import annotations

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
