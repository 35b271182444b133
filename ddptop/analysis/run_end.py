"""How a run ends: which ranks did, in which stall, and whether a launcher ended them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.analysis.health.exits import OutsideEnd
    from ddptop.analysis.stall.diagnosis import KeptStall
    from ddptop.frames.phrases import Failure


class RunEnd:
    """What is known of the end of this attempt of a run, and of those before it."""

    def __init__(self) -> None:
        self.first_ns: int | None = None
        """When the first rank ended badly, or the run."""
        self.finished: set[int] = set()
        """Ranks whose process has exited in good order."""
        self.kept_stall: KeptStall | None = None
        """The stall that the run was in at `first_ns`; `RunState.stall_at_end` is to be read."""
        self.find_stall: Callable[[], KeptStall | None] = lambda: None
        """`stall.at_exit.stall_at_end`. Set by the reducer."""
        self.failures: list[Failure] = []
        """How each attempt before this one has failed, as far as known."""
        self.launcher_signal: OutsideEnd | None = None
        """A signal that a launcher of the run has received, which ends it."""
        self.without_launcher = False
        """No launcher of ours would report such a signal."""
        self.has_evidence = False
        """Whether any rank has sent evidence: without it no exit can have been too early."""
        self._stall: tuple[int, KeptStall | None] = -1, None
        """After how many messages it was looked for, and the stall that was found."""

    def stall(self, n_messages: int) -> KeptStall | None:
        """The stall in which the run has ended, looked for once after each of `n_messages`."""
        if self.first_ns is None:
            return None
        if self._stall[0] != n_messages:
            self._stall = n_messages, self.find_stall()
        return self._stall[1]

    def begin_group(self) -> None:
        """A new group begins, or a new process of a rank: it is not in the stall of the one before."""
        self.first_ns = self.kept_stall = None
