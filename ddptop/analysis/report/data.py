"""A report as plain data, for `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from ddptop.analysis.snapshot import SCHEMA, tidy

if TYPE_CHECKING:
    from ddptop.analysis.report.content import Report

MOMENTS = ("started_at", "since_s", "until_s", "at_s", "unix_s")
"""Unix seconds: six digits would be days."""


def as_data(report: Report) -> dict[str, object]:
    """Dicts, lists and scalars that `json.dumps` takes, as Report documents. Unknown is None."""
    data = _plain("", report)
    assert isinstance(data, dict)
    return {"schema": SCHEMA, **data}


def _plain(name: str, value: object) -> object:
    if is_dataclass(value):
        return {field.name: _plain(field.name, getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(key, own) for key, own in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(name, own) for own in value]
    if name in MOMENTS and isinstance(value, float):
        return round(value, 3)
    return tidy(name, value)
