"""Which ranks are there: those that have said HELLO, whose processes run, and those that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.rank_columns import hello_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ddptop.analysis.rank_columns import HelloColumns
    from ddptop.analysis.ranks import RankState
    from ddptop.frames.columns import Mask


class Presence:
    """What follows from the ranks' HELLOs, BYEs and exits, kept until `note_change` tells of a change."""

    def __init__(self, ranks: Sequence[RankState]) -> None:
        """`ranks`: by rank, the caller's to change."""
        self._ranks = ranks
        self.n_changes = 0
        self._training: frozenset[int] | None = None
        self._hellos: HelloColumns | None = None
        self._hellos_known = False
        self._hosts_of_ranks: set[str] | None = None
        self._running: Mask | None = None
        self._said_bye: Mask = np.zeros(0, bool)
        self._ended: tuple[int, ...] = ()

    def note_change(self, joined: str | None = None) -> None:
        """Note that a rank has joined, exited, or run out of inputs.

        `joined`: the host of a rank that has sent its first HELLO; None: the change is another one.
        """
        if joined is None:
            self._hosts_of_ranks = None
        elif self._hosts_of_ranks is not None:
            self._hosts_of_ranks.add(joined)
        self._training = None
        self._hellos_known, self._running = False, None
        self.n_changes += 1

    @property
    def hellos(self) -> HelloColumns:
        """The HELLOs of all ranks."""
        if self._hellos is None or not self._hellos_known:
            self._hellos, self._hellos_known = hello_columns(self._ranks, self._hellos), True
        return self._hellos

    @property
    def host_names(self) -> tuple[str, ...]:
        """By rank, the name of its host; empty before its HELLO."""
        return self.hellos.host

    @property
    def is_nccl(self) -> bool:
        """Whether a rank reports that its process group is NCCL's."""
        return any(hello is not None and "nccl" in hello.backend for hello in self.hellos.hellos)

    def hosts_of_ranks(self) -> Collection[str]:
        """The hosts that HELLOs name. As cheap while many ranks join, one after the other."""
        if self._hosts_of_ranks is None:
            self._hosts_of_ranks = {
                rank_state.host for rank_state in self._ranks if rank_state.hello is not None
            }
        return self._hosts_of_ranks

    @property
    def running(self) -> Mask:
        """(ranks,) `RankState.running`. Not to be changed."""
        if self._running is None:
            self._running = np.array([rank.running for rank in self._ranks], bool)
            self._said_bye = np.array([rank.bye is not None for rank in self._ranks], bool)
            has_ended = self._said_bye | np.array([rank.gone_ns is not None for rank in self._ranks], bool)
            self._ended = tuple(np.flatnonzero(has_ended).tolist())
        return self._running

    @property
    def said_bye(self) -> Mask:
        """(ranks,) whether its process has sent BYE. Not to be changed."""
        assert self.running is not None
        return self._said_bye

    @property
    def ended(self) -> tuple[int, ...]:
        """Ranks that have sent BYE or whose process was seen to have exited."""
        assert self.running is not None
        return self._ended

    @property
    def training(self) -> frozenset[int]:
        """Ranks whose processes train: not ended, not out of inputs."""
        if self._training is None:
            training = (i for i, r in enumerate(self._ranks) if not (r.bye or r.gone_ns or r.joined))
            self._training = frozenset(training)
        return self._training

    def trained_in(self, step: int) -> frozenset[int]:
        """Ranks that can report about this step: those that train, and those that have ended after it."""
        return self.training | {i for i, r in enumerate(self._ranks) if r.step > step and not r.joined}
