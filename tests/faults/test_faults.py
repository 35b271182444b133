"""The rows of `python -m tests.faults` but the long ones, once each; those of the short form are not slow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.row import CannotTryError, Row
from tests.faults.rows import ROWS


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.done, marks=() if row.short else pytest.mark.slow)
        for row in ROWS
        if not row.long
    ],
)
def test_what_was_expected_is_seen(row: Row) -> None:
    try:
        result = row.attempt(1)
    except CannotTryError as reason:
        pytest.skip(str(reason))
    assert result.as_expected, f"{row.done}: expected {row.expected}, seen: {result.seen}"


def test_every_promise_names_tests_that_are_there() -> None:
    root = Path(__file__).parents[2]
    document = Path(__file__).with_name("README.md").read_text()
    _, _, table = document.partition("| promise | the test that holds it |\n")
    rows = table.partition("\n\n")[0].splitlines()[1:]
    assert len(rows) >= 10
    for row in rows:
        named = re.findall(r"`(tests/[^`:]+)(?:::(\w+))?`", row)
        assert named, row
        for path, name in named:
            assert f"def {name}" in (root / path).read_text(), row
