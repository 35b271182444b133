"""A docstring can be read by itself: it begins with what it describes.

`Of one report in all.` below `DEADLINE_S` has to be decoded; `Longest time of one report.` has not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.shape import PACKAGE, ROOT

HAS_NO_SUBJECT = re.compile(r"(Of|Likewise|The same|Those|That|And|So|So many)\b")


def docstrings_without_subject(source: str) -> Iterator[str]:
    """The docstrings, also those below a constant or a field, that begin in the middle of a sentence."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and HAS_NO_SUBJECT.match(text):
                yield f"line {node.lineno}: {text.split(chr(10))[0]}"


def test_docstrings_begin_with_what_they_describe() -> None:
    found = [
        f"{path.relative_to(ROOT)} {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for text in docstrings_without_subject(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_docstring_without_subject_is_found() -> None:
    assert [*docstrings_without_subject('N = 3\n"""Of a report."""\n')] == ["line 2: Of a report."]
    assert not [*docstrings_without_subject('N = 3\n"""Often more than a report."""\n')]
