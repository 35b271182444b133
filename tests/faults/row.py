"""One row of the table: what is done, what is expected, and how to try it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class CannotTryError(Exception):
    """This machine does not allow to do it: the row is skipped, with these words."""


@dataclass(frozen=True)
class Result:
    """What was seen, in words, and whether it is as expected."""

    seen: str
    as_expected: bool


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    done: str
    expected: str
    attempt: Callable[[int], Result]
    """Takes the seed of everything that is random. Raises CannotTryError."""
    short: bool = False
    """Part of the short form: a few seconds."""
    long: bool = False
    """In the table alone: what a test would show, another row shows as well."""
