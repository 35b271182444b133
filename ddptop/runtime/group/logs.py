"""Log on rank 0 only."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.runtime.group.handle import Group


class RankZero(logging.Filter):
    """Lets records pass on rank 0 only."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0


def logger(group: Group, name: str | None = None) -> logging.Logger:
    """`logging.getLogger(name)`, silent on all ranks but 0; level and handlers are the script's to set."""
    found = logging.getLogger(name or "train")
    for known in [known for known in found.filters if isinstance(known, RankZero)]:
        found.removeFilter(known)
    found.addFilter(RankZero(group.rank))
    return found
