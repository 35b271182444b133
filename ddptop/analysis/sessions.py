"""The processes of the ranks, one session each: which is the present one, and which of its steps are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.ranks import ABSENT, RankState, Session
from ddptop.analysis.steps.pairing import Pairing

if TYPE_CHECKING:
    from ddptop.analysis.state import RunState
    from ddptop.protocol.messages import Hello


def begin_session(state: RunState, hello: Hello, t_ns: int) -> None:
    """A process reports for a rank for the first time."""
    if hello.session in state.sessions or not 0 <= hello.rank < hello.world_size:
        return
    if state.clock is None:
        state.set_clock(hello.unix_ns, t_ns)
    if hello.incarnation < state.incarnation and state.ranks:
        return
    _regroup(state, hello)
    if state.ranks[hello.rank] is ABSENT:
        state.ranks[hello.rank] = RankState()
    rank_state = state.ranks[hello.rank]
    restarted = rank_state.hello is not None or hello.incarnation > 0
    _remember(state, hello)
    rank_state.begin(hello, hello.session, t_ns)
    state.presence_changed()
    state.sampling_changed()
    text = (
        "joined"
        if not restarted
        else f"elastic restart {hello.incarnation}"
        if hello.incarnation
        else "restarted"
    )
    kind = "restart" if restarted else "joined"
    state.log.add_rank(state.unix_s(t_ns), kind, text, hello.rank, len(state.ranks))


def return_to_session(state: RunState, number: int, t_ns: int) -> None:
    """The session before a rank's present one has outlived it: the rank is its process's again."""
    session = state.sessions.get(number)
    if session is None or session.rank >= len(state.ranks):
        return
    rank_state = state.ranks[session.rank]
    if rank_state.session == number or session.hello.incarnation < state.incarnation:
        return
    _regroup(state, session.hello)
    rank_state.begin(session.hello, number, t_ns)
    state.sessions_of[session.rank].sort(key=number.__eq__)
    state.presence_changed()
    state.sampling_changed()


def count_lost(state: RunState, rank_state: RankState, session: Session, stop: int, t_ns: int) -> int:
    """Rows of the session from its next one to before `stop` will not come; returns how many."""
    lost = max(0, _multiples(session.next_step, stop, state.kept_every))
    rank_state.lost_records += lost
    if lost and state.lost_since_ns is None:
        state.lost_since_ns = t_ns
    return lost


def count_unsent(state: RunState, rank_state: RankState, steps: int, t_ns: int) -> int:
    """The process of this rank is gone and had finished so many steps; returns how many rows it kept."""
    session = state.sessions.get(rank_state.session)
    if session is None or steps <= session.next_step:
        return 0
    lost = count_lost(state, rank_state, session, steps, t_ns)
    session.next_step = steps
    return lost


def _remember(state: RunState, hello: Hello) -> None:
    """Rows of a rank's last process may still come after the HELLO of its next one; older ones do not."""
    state.sessions[hello.session] = Session(hello.rank, hello)
    known = state.sessions_of.setdefault(hello.rank, [])
    known.append(hello.session)
    if len(known) > 2:
        state.sessions.pop(known.pop(0), None)


def _regroup(state: RunState, hello: Hello) -> None:
    """A new incarnation or process: what was pending can never be complete, steps count from 0 again."""
    ranks = state.ranks
    newer = hello.incarnation > state.incarnation
    replaced = hello.rank < len(ranks) and ranks[hello.rank].hello is not None
    resized = hello.world_size != len(ranks) and (newer or hello.world_size > len(ranks))
    if not (newer or replaced or resized):
        return
    state.figures.settle()
    if resized:
        del ranks[hello.world_size :]
        ranks += [ABSENT] * (hello.world_size - len(ranks))
    if newer:
        state.incarnation = state.log.incarnation = hello.incarnation
        state.groups.restart()
        for rank_state in ranks:
            if rank_state is not ABSENT:
                rank_state.forget_process()
    state.pairing = Pairing(len(ranks))
    state.figures.restart(len(ranks))
    state.replicas.restart(len(ranks))
    state.loss_spread.restart(len(ranks))
    state.complete_step = None


def _multiples(first: int, stop: int, every: int) -> int:
    """How many steps from `first` to before `stop` are divisible by `every`."""
    return (stop - 1) // every - (first - 1) // every
