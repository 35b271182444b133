"""The way to the first step: how far each rank has come, and whether ranks wait for others there.

A rank's position is its newest milestone and the number of collectives that it has launched. A rank that is
behind holds up those that wait for it: in `init_process_group`, in DDP's constructor, in a collective.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ddptop.analysis.health.exits import describe_exit
from ddptop.analysis.health.outside_end import unexplained_ends
from ddptop.analysis.stall.rank_position import answer_since, rank_position
from ddptop.analysis.stall.start_watch import NAMES, ORDER, UNSEEN, milestone_of
from ddptop.frames.calls import compiler_call, importing, place, user_call
from ddptop.frames.start import TIMES, RankStart, StartStatus
from ddptop.frames.start_words import reached_words
from ddptop.protocol.messages import Activity

if TYPE_CHECKING:
    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.frames.stall import RankPosition

INITIALIZES = "init_process_group"
CONSTRUCTS = "DistributedDataParallel()"
BACKWARD = "the first backward"
COLLECTIVES = {int(activity): activity.name.lower() for activity in Activity if activity > Activity.WAIT}


class StartWait(NamedTuple):
    """Ranks on their way to the first step that wait for others."""

    behind: tuple[int, ...]
    """Empty: all of them are in `where`, and none gets past it."""
    waiting: tuple[int, ...]
    where: str
    """`init_process_group`, `DistributedDataParallel()`, `barrier`."""
    since_ns: int
    """Since when no rank has got any further."""

    @property
    def may_take_long(self) -> bool:
        """All are there, and may be busy: NCCL's set-up, the broadcast of a large model."""
        return not self.behind and self.where != INITIALIZES


def start_wait(state: RunState) -> StartWait | None:
    """The ranks that others wait for on the way to the first step; None: no rank waits, as far as known."""
    positions = state.start.positions
    if positions is None or len(positions) != state.world or state.world < 2:
        return None
    if state.complete_step is not None:
        return None
    keys = [tuple(position) for position in positions.tolist()]
    least, waits = min(keys), [_waits_in(rank) for rank in state.ranks]
    since_ns = int(state.start.since_ns.max())
    behind = tuple(rank for rank, key in enumerate(keys) if key == least)
    if len(behind) == len(keys):
        # All in one backward are looked at as in any step.
        same = waits[0] not in ("", BACKWARD) and len({*waits}) == 1
        return StartWait((), behind, waits[0], since_ns) if same else None
    waiting = tuple(rank for rank, key in enumerate(keys) if key > least and waits[rank])
    if not waiting or not all(_may_hold_up(state.ranks[rank]) for rank in behind):
        return None
    where, _ = Counter(waits[rank] for rank in waiting).most_common(1)[0]
    return StartWait(behind, waiting, where, since_ns)


def _waits_in(rank: RankState) -> str:
    """Where a rank waits for others; empty: nowhere, as far as is known."""
    reached, beat = milestone_of(rank), rank.progress
    if reached in ("init", "store"):
        return INITIALIZES
    if reached == "ddp":
        return CONSTRUCTS
    if beat is None or not rank.running or reached == "step":
        return ""
    if beat.activity >= Activity.WAIT:
        return COLLECTIVES.get(beat.activity, "a collective")
    return BACKWARD if reached == "backward" else ""


def _may_hold_up(rank: RankState) -> bool:
    """Not a rank that may be compiling its model in its first forward, which takes minutes."""
    return milestone_of(rank) not in ("forward", "backward", "step")


def start_of(state: RunState) -> StartStatus | None:
    """How far the ranks have come, for a frame; None: all have finished a step, or it is not known."""
    positions = state.start.positions
    ended = state.run is not None and state.run.state != "live"
    if positions is None or len(positions) != state.world or ended or state.complete_step is not None:
        return None
    wait = start_wait(state)
    reached, since_ns = positions[:, 0].tolist(), state.start.since_ns.tolist()
    return StartStatus(
        milestone=NAMES[min(reached)],
        behind=() if wait is None else wait.behind,
        since_s=state.unix_s(max(since_ns)),
        ranks=tuple(
            RankStart(
                rank,
                NAMES[number],
                None
                if rank_state.hello is None
                else state.unix_s(_reached_ns(rank_state, NAMES[number], own_ns)),
                place_in_start(rank_state, own_ns),
                **_times(state, rank),
            )
            for rank, (rank_state, number, own_ns) in enumerate(
                zip(state.ranks, reached, since_ns, strict=True)
            )
        ),
    )


def _times(state: RunState, rank: int) -> dict[str, float]:
    """When a rank passed each milestone, by field of `RankStart`: as it has reported it, else when its
    heartbeats showed it."""
    reported, seen_ns = state.ranks[rank].milestones, state.start.reached_ns[rank]
    times_s = {}
    for name in TIMES:
        milestone = name.removesuffix("_s")
        reached_ns = reported[milestone].t_ns if milestone in reported else UNSEEN
        if reached_ns == UNSEEN and milestone in ORDER:
            reached_ns = int(seen_ns[ORDER[milestone]])
        if reached_ns != UNSEEN:
            times_s[name] = state.unix_s(reached_ns) - state.started_s
    return times_s


def position_in_start(state: RunState, rank: int, now_ns: int) -> RankPosition | None:
    """What a rank does at its place in the start; None: all have finished a step, or there is no such
    rank."""
    if state.start.positions is None or state.complete_step is not None or rank >= len(state.start.since_ns):
        return None
    return rank_position(state, rank, now_ns, since_ns=int(state.start.since_ns[rank]))


def reached_phrase(state: RunState) -> str:
    """How far the ranks have come of a run that has made no step, or how the first of them has failed; empty:
    none has reported, or it has made one."""
    if state.complete_step is not None or all(rank.hello is None for rank in state.ranks):
        return ""
    if failed := unexplained_ends(state):
        return f"rank {failed[0]} {describe_exit(state.ranks[failed[0]])}"
    return reached_words([milestone_of(rank) for rank in state.ranks])


def _reached_ns(rank: RankState, milestone: str, seen_ns: int) -> int:
    reached = rank.milestones.get(milestone)
    return seen_ns if reached is None else reached.t_ns


def place_in_start(rank: RankState, since_ns: int) -> str:
    """`train.py:6 preprocess_dataset`, or `the import of transformers (train.py:3)`, where the rank has
    answered since it is there; else empty."""
    answer = answer_since(rank, since_ns)
    if answer is None:
        return ""
    imported, call = importing(answer.stacks), user_call(answer.stacks)
    compiled = compiler_call(answer.stacks)
    if imported:
        return imported
    if compiled is not None:
        return f"torch.compile (called at {place(compiled)})"
    return "" if call is None else place(call)
