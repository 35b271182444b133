"""What a recording keeps of the analysis so far, and puts back into one that has read only the last steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.ranks import PassedLoss
from ddptop.protocol.since_start import (
    UNKNOWN,
    BadLoss,
    FlaggedSince,
    LoggedValues,
    SinceStart,
)

if TYPE_CHECKING:
    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState

LOGGED_VALUES = 2048
"""Most logged values that are kept, over all names and ranks: some 32 kB."""


def known_since_start(state: RunState) -> SinceStart:
    """What is known of the steps so far and does not follow from the last ones."""
    state.settle()
    figures, step = state.figures, state.complete_step
    since_s = figures.straggler_since_s
    return SinceStart(
        incarnation=state.incarnation,
        step=UNKNOWN if step is None else step,
        at_ns=state.newest_ns,
        shadow_steps=tuple(last_step for last_step, _ in figures.shadow_cost.blocks),
        shadow_shares=tuple(share for _, share in figures.shadow_cost.blocks),
        bad_losses=tuple(bad for rank, member in enumerate(state.ranks) for bad in _bad_losses(rank, member)),
        straggler=None if figures.straggler is None else FlaggedSince(figures.straggler, since_s),
        loss_spread_s=state.loss_spread.since_s,
        drifts=state.replicas.drifts(),
        equal_pieces=state.replicas.equal_pieces(),
        logged=_logged(state),
        pauses_ns=tuple(state.excuses.usual_pauses.items()),
    )


def recall_since_start(state: RunState, known: SinceStart) -> None:
    """Complete a state that has read the last steps: at least all that arrived after `known.at_ns`."""
    state.settle()
    for name, pause_ns in known.pauses_ns:
        state.excuses.usual_pauses[name] = max(pause_ns, state.excuses.usual_pauses.get(name, 0))
    if known.incarnation != state.incarnation:
        return
    figures, after_s = state.figures, state.unix_s(known.at_ns)
    ended = {event.kind for event in state.log.all() if event.unix_s > after_s}
    figures.shadow_cost.recall(zip(known.shadow_steps, known.shadow_shares, strict=True))
    for bad in known.bad_losses:
        if bad.rank < state.world:
            _recall_bad_loss(state.ranks[bad.rank], bad, known.step)
    flagged = known.straggler
    if flagged is not None and flagged.rank == figures.straggler and "straggler_end" not in ended:
        figures.straggler_since_s = min(figures.straggler_since_s, flagged.unix_s)
    if known.loss_spread_s is not None and "loss_spread_end" not in ended:
        state.loss_spread.recall(known.loss_spread_s)
    state.replicas.recall(known.drifts, known.equal_pieces)
    for name, ranks, values in known.logged:
        for rank, value in zip(ranks, values, strict=True):
            if rank < state.world and name not in state.ranks[rank].logged:
                state.ranks[rank].take_logged({name: value})


def _bad_losses(rank: int, member: RankState) -> list[BadLoss]:
    """The stretches of bad losses of a rank, the one that goes on first: `_recall_bad_loss` compares the
    others with what it has put back."""
    losses = []
    if member.bad_loss_step is not None:
        finite_step = UNKNOWN if member.finite_loss_step is None else member.finite_loss_step
        begin = member.bad_loss_step, member.bad_loss_ns
        losses.append(BadLoss(rank, *begin, UNKNOWN, UNKNOWN, finite_step))
    if member.bad_loss_before is not None:
        losses.append(BadLoss(rank, *member.bad_loss_before))
    return losses


def _recall_bad_loss(member: RankState, bad: BadLoss, step: int) -> None:
    """Put back when a rank's loss became bad. `step`: the newest complete one when that was known."""
    before = member.bad_loss_before
    if bad.finite_step != UNKNOWN:
        if before is None:
            member.bad_loss_before = PassedLoss(*bad[1:])
    elif before is not None and before.step <= step:
        member.bad_loss_before = before._replace(
            step=bad.step, since_ns=bad.since_ns, last_finite_step=bad.last_finite_step
        )
    elif before is None and member.bad_loss_step is not None:
        # Weights are read after the last step: of an earlier one a loss was read.
        member.bad_by_weights = member.bad_by_weights and bad.step == member.bad_loss_step
        member.bad_loss_step, member.bad_loss_ns = bad.step, bad.since_ns
        member.finite_loss_step = None if bad.last_finite_step == UNKNOWN else bad.last_finite_step


def _logged(state: RunState) -> tuple[LoggedValues, ...]:
    by_name: dict[str, list[tuple[int, float]]] = {}
    count = 0
    for rank, member in enumerate(state.ranks):
        for name, value in member.logged.items():
            if count < LOGGED_VALUES:
                by_name.setdefault(name, []).append((rank, value))
                count += 1
    return tuple(
        LoggedValues(name, tuple(rank for rank, _ in values), tuple(value for _, value in values))
        for name, values in by_name.items()
    )
