"""Texts that came from outside, made safe to show on a terminal."""

from __future__ import annotations


def printable(value: str) -> str:
    """Without control, escape and bidirectional characters; a line break or tab becomes a space.

    >>> printable("a" + chr(27) + "[2Jb")
    'a[2Jb'
    """
    # Nearly every text: no copy, and no loop over its characters.
    if value.isprintable():
        return value
    spaced = (" " if char.isspace() else char for char in value)
    return "".join(char for char in spaced if char.isprintable())
