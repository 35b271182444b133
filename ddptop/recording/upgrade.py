"""Converts what earlier versions recorded to what this version records: whatever reads it knows one version.

The messages in a recording are those of ranks, which `ddptop.protocol` converts when it decodes them: fields
that were added to the end of a message have a default there, and `earlier_steps` fills in those of STEPS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NAN_FLOAT32 = b"\x00\x00\xc0\x7f"


def upgrade_history(parts: Sequence[Any], n_added_columns: int) -> Sequence[Any]:
    """All eight parts of a piece of the history: columns, best step, marks; and events, added columns,
    excess, what was known since the start and the ledger, which earlier versions did not all write: None, or
    columns of NaN.

    `n_added_columns`: how many columns 0.1.0 did not record.
    """
    columns, best_ms, marks, *later_parts = parts
    n_points = len(columns[0]) // 8
    absent_parts: list[Any] = [None, [NAN_FLOAT32 * n_points] * n_added_columns, None, None, None]
    events, *later_parts = [*later_parts, *absent_parts[len(later_parts) :]]
    if events is not None:
        events = [event if len(event) > 6 else (*event, 0) for event in events]  # the incarnation
    return [columns, best_ms, marks, events, *later_parts]
