"""An end of the run that comes from outside: a signal to its launcher, or to all of its ranks at once.

The launcher then ends its ranks: with the same signal, and after 30 s with SIGKILL. How the ranks exit after
that signal says nothing about them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.health.exits import OutsideEnd, ended_ns, follows, reason
from ddptop.frames.frame import Alert
from ddptop.frames.phrases import SENT_TO_ALL, outside_end_phrase, ranks_phrase
from ddptop.protocol.limits import NS

if TYPE_CHECKING:
    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.protocol.messages import Scalar

KILL_NS = 60 * NS
"""Launchers and schedulers kill what has not ended so long after their signal: 30 s after it, as a rule. What
a rank fails of later, in a script that goes on, is another matter."""

AT_ONCE_NS = 3 * NS
"""Where all processes get a signal at once, a rank may be seen to end so long before the launcher does: on a
machine under load."""

TOGETHER_NS = NS
"""Within this time all ranks exit that a signal to all of them ends."""

INTERRUPTED = "KeyboardInterrupt"
"""The exception that SIGINT raises in Python."""


def outside_end(state: RunState) -> OutsideEnd | None:
    """The end from outside that explains why ranks exit, or will; None: there is none.

    A rank that has failed before it for a reason of its own comes first, unless the run was stalled because
    of it: then the stall's sentence has that reason.
    """
    end = state.end.launcher_signal
    if end is None:
        return _known_from_ranks(state) if state.end.without_launcher else None
    if state.run is not None and state.run.state == "finished":
        return None
    ranks, ended = state.ranks, state.presence.ended
    if not end.stall and not all(
        _explains_exit(end, ranks[rank]) for rank in ended if ranks[rank].ended_badly
    ):
        return None
    return None if _goes_on(state, end) else end


def unexplained_ends(state: RunState) -> list[int]:
    """The ranks that failed or died, as `RunState.ended_badly`, but for what an end from outside explains."""
    end, ended = outside_end(state), state.ended_badly()
    return ended if end is None else [rank for rank in ended if not _explains_exit(end, state.ranks[rank])]


def ended_by_outside(state: RunState, rank_state: RankState) -> bool:
    """Whether an end from outside is why this rank has exited."""
    end = outside_end(state)
    return end is not None and _explains_exit(end, rank_state)


def _explains_exit(end: OutsideEnd, rank_state: RankState) -> bool:
    exited_ns = ended_ns(rank_state)
    if rank_state.out_of_memory or rank_state.left_early:
        return False
    if follows(rank_state):
        return exited_ns >= end.t_ns - AT_ONCE_NS
    return exited_ns >= end.t_ns and (rank_state.signal == "SIGKILL" or exited_ns < end.t_ns + KILL_NS)


def _goes_on(state: RunState, end: OutsideEnd) -> bool:
    """Whether ranks still train long after the signal: the script has made something else of it."""
    return bool((state.table.moved_ns[state.presence.running] > end.t_ns + KILL_NS).any())


def _known_from_ranks(state: RunState) -> OutsideEnd | None:
    """The end from outside of a run without a launcher of ours: all ranks have exited together, by a signal
    to all of them. None: they have not."""
    ended = [state.ranks[rank] for rank in state.presence.ended]
    if not ended or len(ended) < state.world or not all(rank_state.ended_badly for rank_state in ended):
        return None
    times_ns = [*map(ended_ns, ended)]
    if max(times_ns) - min(times_ns) > TOGETHER_NS:
        return None
    if all(
        reason(rank_state).startswith(INTERRUPTED) or rank_state.signal == "SIGINT" for rank_state in ended
    ):
        return OutsideEnd("SIGINT", min(times_ns))
    signals = {rank_state.signal for rank_state in ended}
    if len(signals) > 1 or not signals <= SENT_TO_ALL or any(map(reason, ended)):
        return None
    return OutsideEnd(signals.pop() or "", min(times_ns), sure=len(ended) == 1)


def outside_end_alert(state: RunState) -> Alert | None:
    """The alert of an end from outside."""
    end = outside_end(state)
    if end is None:
        return None
    evidence: dict[str, Scalar] = {"signal": end.signal, "host": end.host or None, "stall": end.stall or None}
    evidence |= {"restart": end.restart} if end.restart else {}
    evidence |= {} if end.sure else {"unsure": True}
    step = state.complete_step
    message = outside_end_phrase(
        end.signal,
        on_host=end.host if len(state.presence.hellos.of_hosts) > 1 else "",
        stall=end.stall,
        unsure_of="" if end.sure else ranks_phrase(range(state.world), state.world),
    )
    return Alert.declared("ended_from_outside", None, step, state.unix_s(end.t_ns), message, evidence)
