"""Fills in what earlier versions did not send in STEPS: whatever reads decoded STEPS knows one version.

Ranks of 0.1.0 send no `OwnTime`; later versions added fields to its end. What is missing becomes -1, which is
unknown. Recordings hold the messages as ranks sent them, so that this serves links and recordings alike.
"""

from __future__ import annotations

from ddptop.protocol import limits
from ddptop.protocol.messages import MEASURED_TOGETHER
from ddptop.protocol.step_words import OWN, WIDTH, WORD

FIRST_WIDTH = 25
# `OwnTime` ended with `cpu_wait` then.
"""Columns of the first version that sent STEPS in columns."""


def fill_own_times(own: tuple[int, ...], n_rows: int) -> tuple[int, ...]:
    """The own times of so many rows, one row after the other, with all the fields of `OwnTime`.

    Returned as they are if this version sends them, or no version."""
    n_fields, remainder = divmod(len(own), n_rows)
    # What fits no version is left alone: the checks behind this refuse it, and say why.
    if remainder or n_fields >= OWN or 0 < n_fields < MEASURED_TOGETHER:
        return own
    unknown = (-1,) * (OWN - n_fields)
    return tuple(
        number for row in range(n_rows) for number in (*own[row * n_fields : (row + 1) * n_fields], *unknown)
    )


def widen_words(words: bytes, n_rows: int, width: int) -> tuple[bytes, int]:
    """The words of so many rows with all the columns of this version, and how many columns they have.

    Returned as they are if this version sends them, or no version."""
    is_earlier = FIRST_WIDTH <= width < WIDTH and 0 < n_rows <= limits.MAX_ROWS
    if not is_earlier or len(words) % WORD or len(words) < WORD * width * n_rows:
        return words, width
    # Four bytes of 0xff are -1, so that unknown columns are inserted plane by plane, without decoding any
    # number.
    plane_bytes, unknown = len(words) // WORD, b"\xff" * ((WIDTH - width) * n_rows)
    # The first bytes of all words come first, then the second ones: each part gets its bytes of the columns.
    planes = [words[begin : begin + plane_bytes] for begin in range(0, len(words), plane_bytes)]
    split_at = width * n_rows  # the cells follow the columns
    return b"".join([plane[:split_at] + unknown + plane[split_at:] for plane in planes]), WIDTH
