"""The text of a filter or search: plain words, `/regular expressions/`, and `!` for not.

Several words are combined by *and*. Case does not count. A word that means nothing as plain text, but
reads as a regular expression, is taken as one: `node[0-3]` need not be wrapped in slashes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

_WORD = re.compile(r"(!?)(?:/((?:[^/\\]|\\.)*)/?(?=\s|$)|(\S+))")

_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")

_META = re.compile(r"[\\.^$*+?{}\[\]|()]")


@dataclass(frozen=True, slots=True)
class FilterCondition:
    """One condition."""

    text: str
    """In lower case; empty: matches everything."""
    wrapped: bool
    """Written between slashes."""
    negated: bool

    @property
    def span(self) -> range | None:
        """The numbers that it names, `8` or `8-15`; None for a text."""
        numbers = None if self.wrapped else _SPAN.fullmatch(self.text)
        return range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1) if numbers else None

    def pattern(self, texts: Iterable[str] | None = None) -> re.Pattern[str] | None:
        """The expression to look for in `texts`; None where it is no valid expression."""
        plain = re.escape(self.text)
        if self.wrapped:
            return _compile_pattern(self.text)
        if texts is not None and _META.search(self.text) and not any(self.text in text for text in texts):
            return _compile_pattern(self.text) or _compile_pattern(plain)
        return _compile_pattern(plain)


@lru_cache(maxsize=64)
def parse_conditions(typed: str) -> tuple[FilterCondition, ...]:
    """The conditions in what was typed."""
    words = []
    for match in _WORD.finditer(typed):
        wrapped = match[2] is not None
        text = match[2] if wrapped else match[3]
        if text == "!" and not match[1]:
            continue  # the rest is still to come
        words.append(FilterCondition(text if wrapped else text.lower(), wrapped, bool(match[1])))
    return tuple(word for word in words if word.text)


def find_matches(typed: str, texts: Sequence[str], number: Callable[[int], int] | None = None) -> list[int]:
    """Indices of the texts (in lower case) that meet all conditions.

    `number`: what a condition such as `8-15` counts, from a place; None: numbers are text like any other.
    """
    keep = list(range(len(texts)))
    for word in parse_conditions(typed):
        span = word.span if number is not None else None
        # Elsewhere than in a list of ranks `8` is a text, as in `node8`.
        if span is not None and number is not None:
            keep = [index for index in keep if (number(index) in span) != word.negated]
            continue
        pattern = word.pattern(texts)
        if pattern is None:
            continue
        # Hosts and states of thousands of ranks are a few texts only.
        hit = {text for text in {texts[index] for index in keep} if pattern.search(text)}
        keep = [index for index in keep if (texts[index] in hit) != word.negated]
    return keep


def error_in(typed: str) -> str | None:
    """Why an expression between slashes cannot be read; None where all can."""
    for word in parse_conditions(typed):
        if word.wrapped:
            try:
                re.compile(word.text)
            except re.error as error:
                return f"/{word.text}/: {error.msg}"
    return None


def highlight_pattern(typed: str) -> re.Pattern[str] | None:
    """An expression for everything that conditions without `!` match; None where there is nothing to mark."""
    parts = [word.pattern() for word in parse_conditions(typed) if not word.negated and word.span is None]
    sources = [f"(?:{part.pattern})" for part in parts if part is not None]
    return _compile_pattern("|".join(sources)) if sources else None


@lru_cache(maxsize=128)
def _compile_pattern(source: str) -> re.Pattern[str] | None:
    try:
        return re.compile(source, re.IGNORECASE)
    except re.error:
        return None
