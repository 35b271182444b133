"""Losses that are NaN or infinite: since which step, and on which rank first.

In short steps a rank reads only one of several losses. The first step with a bad loss is then known as an
interval: after the last loss that was read and finite, up to the first that was read and was not. All ranks
train on the gradients of the one that had it first, so that one rank is named only where every other rank's
loss was still finite in that step.
"""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING, NamedTuple

from ddptop.analysis.health.hosts import REPORTS_S
from ddptop.analysis.rank_table import UNKNOWN
from ddptop.analysis.ranks import PassedLoss
from ddptop.frames.conditions import say
from ddptop.frames.frame import Alert
from ddptop.frames.numbers import counted
from ddptop.frames.phrases import begin_phrase, ranks_phrase
from ddptop.protocol.limits import NS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.state import RunState
    from ddptop.protocol.messages import Scalar

PASSED_LOSS_NS = 600 * NS
"""How long the alert of a NaN or infinite loss remains after the loss is finite again."""


class _Begin(NamedTuple):
    """Where the loss of a rank became bad."""

    step: int
    """The first step whose loss was read and was not finite."""
    rank: int
    since_ns: int
    last_finite_step: int
    """The last step before it whose loss was read; UNKNOWN: there is none."""


class _FirstBegin(NamedTuple):
    """Where the loss became bad, of all ranks together."""

    rank: int | None
    """None: it may have been any of several ranks."""
    step: int
    since_ns: int
    last_finite_step: int
    who: str

    def evidence(self, n_ranks: int, n_by_weights: int = 0) -> dict[str, Scalar]:
        """What the alert knows beside its rank and step. `n_by_weights`: of how many of the ranks no bad loss
        was read."""
        evidence: dict[str, Scalar] = {"ranks": n_ranks}
        if n_by_weights:
            evidence["by_weights"] = n_by_weights
        if self.last_finite_step != UNKNOWN:
            evidence["last_finite_step"] = self.last_finite_step
        return evidence


def alert(state: RunState, now_ns: int) -> Alert | None:
    """The alert of losses that are not finite, or were not some minutes ago."""
    return _alert_of_bad_loss(state, now_ns) or _alert_of_passed_loss(state, now_ns)


def _alert_of_bad_loss(state: RunState, now_ns: int) -> Alert | None:
    bad_ranks = state.table.ranks_with_bad_loss()
    begins = [
        _Begin(member.bad_loss_step or 0, rank, member.bad_loss_ns, int(state.table.finite_loss_step[rank]))
        for rank, member in ((rank, state.ranks[rank]) for rank in bad_ranks)
    ]
    if not begins:
        return None
    first = _find_first(begins, state.world)
    is_new = state.ended_ns is None and now_ns - min(begin.since_ns for begin in begins) < REPORTS_S * NS
    if is_new and _may_follow(state, bad_ranks, first.step):
        return None
    since = begin_phrase(first.step, first.last_finite_step)
    n_by_weights = sum(state.ranks[rank].bad_by_weights for rank in bad_ranks)
    case = "weights" if n_by_weights == len(begins) else ""
    message = say("nan", case, who=first.who, since=since)
    since_s = state.unix_s(first.since_ns)
    evidence = first.evidence(len(begins), n_by_weights)
    return Alert.declared("nan", first.rank, first.step, since_s, message, evidence)


def _may_follow(state: RunState, bad_ranks: Sequence[int], step: int) -> bool:
    """Whether a rank whose losses are read has not reported the one of this step or a later one: it may be
    bad, too, and may have been so before."""
    complete = -1 if state.complete_step is None else state.complete_step
    finite_steps = state.table.finite_loss_step
    is_behind = (finite_steps != UNKNOWN) & (finite_steps < step)
    is_behind[bad_ranks] = False
    return complete < step - 1 or bool(is_behind.any())


def _alert_of_passed_loss(state: RunState, now_ns: int) -> Alert | None:
    """A loss that was NaN or infinite and is finite again: the weights may still be affected."""
    before = [(rank, member.bad_loss_before) for rank, member in enumerate(state.ranks)]
    passed = {
        rank: passed_loss
        for rank, passed_loss in before
        if passed_loss is not None and now_ns - passed_loss.finite_ns < PASSED_LOSS_NS
    }
    if not passed:
        return None
    first = _find_first(
        [_Begin(loss.step, rank, loss.since_ns, loss.last_finite_step) for rank, loss in passed.items()],
        state.world,
    )
    again = max(loss.finite_step for loss in passed.values())
    begin = begin_phrase(first.step, first.last_finite_step)
    if begin != f"step {first.step:,}":
        steps = f"from {begin} to step {again - 1:,}"
    elif again - 1 > first.step:
        steps = f"from {begin} to {again - 1:,}"
    else:
        steps = f"at {begin}"
    message = say("nan", "passed", who=first.who, when=steps)
    evidence = first.evidence(len(passed)) | {"finite_step": again}
    return Alert("nan", "warning", first.rank, first.step, state.unix_s(first.since_ns), message, evidence)


def _find_first(begins: Sequence[_Begin], world: int) -> _FirstBegin:
    """Where the loss became bad first, of ranks with a bad loss."""
    first = min(begins)
    # Where no loss was read before, as in a recording of an earlier version that is read from its middle,
    # the step is taken for the first.
    may_be_first = [
        begin
        for begin in begins
        if (begin.step - 1 if begin.last_finite_step == UNKNOWN else begin.last_finite_step) < first.step
    ]
    last_finite_step = min(begin.last_finite_step for begin in may_be_first)
    since_ns = min(begin.since_ns for begin in may_be_first if begin.step == first.step)
    if len(may_be_first) == 1:
        return _FirstBegin(
            first.rank, first.step, since_ns, last_finite_step, _first_rank_phrase(first.rank, begins)
        )
    who = _all_ranks_phrase([begin.rank for begin in begins], world)
    return _FirstBegin(None, first.step, since_ns, last_finite_step, who)


def _first_rank_phrase(first: int, begins: Sequence[_Begin]) -> str:
    """`rank 2`, `rank 2 and then of rank 0`, `rank 2 and 3 others`."""
    others = [begin.rank for begin in begins if begin.rank != first]
    if not others:
        return f"rank {first}"
    if len(others) == 1:
        return f"rank {first} and then of rank {others[0]}"
    return f"rank {first} and {counted(len(others), 'other')}"


def _all_ranks_phrase(ranks: Sequence[int], world: int) -> str:
    """`both ranks`, `all 8 ranks`, `ranks 0 and 3`, `9 of 64 ranks`."""
    if len(ranks) < world:
        return ranks_phrase(ranks, world)
    return "both ranks" if world == 2 else f"all {world:,} ranks"


def check_loss(state: RunState, loss: float, rank: int, step: int, t_ns: int) -> None:
    """Note the begin or the end of steps with losses that are no finite numbers."""
    rank_state = state.ranks[rank]
    finite_step = rank_state.finite_loss_step
    last_finite_step = UNKNOWN if finite_step is None else finite_step
    bad_step, by_weights = rank_state.bad_loss_step, rank_state.bad_by_weights
    if isfinite(loss):
        if bad_step is not None and by_weights and step <= bad_step:
            # What a rank says of its weights may arrive before its last steps.
            rank_state.finite_loss_step = max(last_finite_step, min(step, bad_step - 1))
            return
        if bad_step is not None and not by_weights:  # else another model is trained now
            begin = bad_step, rank_state.bad_loss_ns
            rank_state.bad_loss_before = PassedLoss(*begin, step, t_ns, last_finite_step)
        rank_state.bad_loss_step, rank_state.bad_by_weights = None, False
        rank_state.finite_loss_step = step
    elif bad_step is None or by_weights:  # a loss that was read is what is said, also of a later model
        rank_state.bad_loss_step, rank_state.bad_loss_ns, rank_state.bad_by_weights = step, t_ns, False
        what = "NaN" if isnan(loss) else "infinite"
        text = say("nan", "event", what=what, since=begin_phrase(step, last_finite_step))
        state.log.add_rank(state.unix_s(t_ns), "nan", text, rank, state.world, step=step)


def note_bad_weights(state: RunState, rank: int, step: int, t_ns: int) -> None:
    """Note that a rank's weights were NaN after `step`, the last one of its training, unless it is known by
    a loss."""
    rank_state = state.ranks[rank]
    if rank_state.bad_loss_step is not None:
        return
    finite_step = rank_state.finite_loss_step
    if finite_step is not None:  # that of the last step itself may have been finite
        rank_state.finite_loss_step = finite_step = min(finite_step, step - 1)
    rank_state.bad_loss_step, rank_state.bad_loss_ns, rank_state.bad_by_weights = step, t_ns, True
    text = say(
        "nan", "weights_event", since=begin_phrase(step, UNKNOWN if finite_step is None else finite_step)
    )
    state.log.add_rank(state.unix_s(t_ns), "nan", text, rank, state.world, step=step)
