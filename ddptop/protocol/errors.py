"""What is raised for bytes that are not as the protocol says."""

from __future__ import annotations


class ProtocolError(ValueError):
    """A message that is not as `messages.py` says: wrong length, type or range. It is refused as a whole."""


class UnknownType(ProtocolError):
    """A message of a type that this version does not know: to be counted and skipped."""
