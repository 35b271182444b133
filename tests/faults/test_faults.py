"""The rows of `python -m tests.faults`, once each; all but those of the short form are slow."""

from __future__ import annotations

import pytest

from tests.faults.row import CannotTryError, Row
from tests.faults.rows import ROWS


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.done, marks=() if row.short else pytest.mark.slow) for row in ROWS]
)
def test_what_was_expected_is_seen(row: Row) -> None:
    try:
        result = row.attempt(1)
    except CannotTryError as reason:
        pytest.skip(str(reason))
    assert result.as_expected, f"{row.done}: expected {row.expected}, seen: {result.seen}"
