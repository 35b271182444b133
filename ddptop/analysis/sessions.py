"""The sessions of a run: the processes of its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.rank_table import SessionTable
from ddptop.analysis.ranks import RankSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.protocol.messages import Hello

    Integers = NDArray[np.int64]

KEPT_OF_A_RANK = 2
"""Sessions of a rank: rows of a process may arrive after the HELLO of the next one."""


class Sessions:
    """The sessions whose messages count."""

    def __init__(self) -> None:
        self.table = SessionTable()
        """Their numbers."""
        self.by_number: dict[int, RankSession] = {}
        self._of_rank: dict[int, list[int]] = {}
        """The last sessions of each rank, the present one last."""

    def add(self, hello: Hello) -> None:
        """Add a process of a rank, and forget the oldest one of that rank where it is one too many."""
        row = self.table.add(hello.rank, hello.session)
        self.by_number[hello.session] = RankSession(self.table, row, hello)
        of_rank = self._of_rank.setdefault(hello.rank, [])
        of_rank.append(hello.session)
        if len(of_rank) > KEPT_OF_A_RANK:
            forgotten = self.by_number.pop(of_rank.pop(0), None)
            if forgotten is not None:
                self.table.clear(forgotten.row)

    def make_newest(self, session: RankSession) -> None:
        """Note that a rank's process is its present one again."""
        self._of_rank[session.rank].sort(key=session.hello.session.__eq__)

    def newest_of(self, rank: int) -> RankSession | None:
        """The process that said HELLO last for a rank; None: none has."""
        of_rank = self._of_rank.get(rank)
        return self.by_number.get(of_rank[-1]) if of_rank else None

    def rows_of(self, numbers: Sequence[int]) -> Integers:
        """(n,) the row of each of these sessions in the table; -1: it is not known."""
        sessions = map(self.by_number.get, numbers)
        return np.array([-1 if session is None else session.row for session in sessions], np.int64)
