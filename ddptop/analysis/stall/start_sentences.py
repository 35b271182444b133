"""The sentence about ranks that wait for others on the way to the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.stall.rank_position import answer_since, call_read, worker_waited_for
from ddptop.analysis.stall.start import CONSTRUCTS, INITIALIZES, place_in_start
from ddptop.analysis.stall.start_watch import milestone_of
from ddptop.frames.calls import constructing, importing, place
from ddptop.frames.phrases import ranks_phrase
from ddptop.frames.start import MILESTONES
from ddptop.protocol.messages import REACH, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.stall.start import StartWait
    from ddptop.analysis.state import RunState
    from ddptop.frames.stall import Call
    from ddptop.protocol.messages import Scalar


def start_sentence(state: RunState, ranks: Sequence[int], waiting: Sequence[int], where: str) -> str:
    """`rank 1 is in train.py:6 preprocess_dataset; rank 0 waits for it in DistributedDataParallel()`."""
    addresses = _addresses(state) if where == INITIALIZES else {}
    if len(addresses) > 1:
        parts = (
            f"{ranks_phrase(of_address, state.world)} at {address}"
            for address, of_address in addresses.items()
        )
        return f"the ranks look for one another at different addresses: {', '.join(parts)}"
    wanted = _wanted(state) if where == INITIALIZES else 0
    if wanted:
        started = f"the launcher has started {state.world:,}"
        return f"init_process_group waits for {wanted:,} ranks, and {started}"
    cut_off = _cut_off(state) if where == INITIALIZES and not ranks else []
    if cut_off:
        others = [rank for rank in waiting if rank not in cut_off]
        wait, them = _verb(others, "waits", "wait"), _verb(cut_off, "it", "them")
        waits = f"; {ranks_phrase(others, state.world)} {wait} for {them} in {where}" if others else ""
        return f"{_place_phrase(state, cut_off)}{waits}"
    if not ranks:
        who = ranks_phrase(waiting, state.world)
        where_all_look = "".join(f" at {address}" for address in addresses)
        interfaces = _interfaces(state) if where == INITIALIZES else ""
        place_of_all = where + where_all_look + interfaces + _part_of_constructor(state, waiting, where)
        return f"{who} {_verb(waiting, 'is', 'are')} in {place_of_all}, and none gets past it"
    what = _missing_phrase(state, ranks) or _place_phrase(state, ranks)
    wait, them = _verb(waiting, "waits", "wait"), _verb(ranks, "it", "them")
    part = _part_of_constructor(state, waiting, where)
    return f"{what}; {ranks_phrase(waiting, state.world)} {wait} for {them} in {where}{part}"


def _part_of_constructor(state: RunState, waiting: Sequence[int], where: str) -> str:
    """` (parameter check)`: where in DDP's constructor they wait; empty: elsewhere, or not known."""
    answers = (answer_since(state.ranks[rank], 0) for rank in waiting if where == CONSTRUCTS)
    parts = (constructing(answer.stacks) for answer in answers if answer is not None)
    part = next(filter(None, parts), "")
    return f" ({part})" if part else ""


def start_case(state: RunState, ranks: Sequence[int], waiting: Sequence[int], where: str) -> str:
    """What to try about it, by its name in `frames.remedies`: `addresses`, `world_size`, `not_reported`,
    `store` and why it is not reached, `nobody`, `nccl`, `network`, `import`, `first_batch`; `code`: what the
    rank does is to be looked into."""
    addresses = _addresses(state) if where == INITIALIZES else {}
    if len(addresses) > 1:
        return "addresses"
    if where == INITIALIZES and _wanted(state):
        return "world_size"
    ranks = ranks or (_cut_off(state) if where == INITIALIZES else ())
    if not ranks and where != INITIALIZES:
        return (
            "nccl"
            if "nccl" in (hello.backend if (hello := state.ranks[waiting[0]].hello) else "")
            else "network"
        )
    if not ranks:
        return "nobody"
    first = state.ranks[ranks[0]]
    if first.hello is None:
        return "not_reported" if _call_of_late(first) is None else "code"
    if milestone_of(first) == "init":
        return f"store_{_reach(first)}".removesuffix("_")
    answer = answer_since(first, 0)
    if answer is not None and importing(answer.stacks):
        return "import"
    # A worker that it waits for has a line of its own.
    return "first_batch" if _waits_for_batch(first) and not worker_waited_for(first, 0) else "code"


def meets_nobody_again(state: RunState, wait: StartWait) -> bool:
    """Whether all ranks have reached the store after an elastic restart, and do not find each other."""
    stored = all(milestone_of(rank) == "store" for rank in state.ranks)
    return (
        state.incarnation > 0
        and stored
        and start_case(state, wait.behind, wait.waiting, wait.where) == "nobody"
    )


def _place_phrase(state: RunState, ranks: Sequence[int]) -> str:
    """What ranks do that have reported."""
    first, who = state.ranks[ranks[0]], ranks_phrase(ranks, state.world)
    reached = milestone_of(first)
    if reached == "init":
        has = _verb(ranks, "has", "have")
        fields = first.milestones["init"].fields
        address = _address(fields)
        why = REACH_PHRASES.get(_reach(first), "").format(at=address, name=fields.get("address"))
        return f"{who} {has} not reached the store at {address}{why and f': {why}'}"
    at = place_in_start(first, 0)
    if not at:
        of_one, of_several = MILESTONES[reached]
        return f"{who} {_verb(ranks, of_one, of_several)} and {_verb(ranks, 'has', 'have')} come no further"
    if _waits_for_batch(first):
        return f"{who} {_verb(ranks, 'waits', 'wait')} for the first batch in {at}"
    return f"{who} {_verb(ranks, 'is', 'are')} in {at}"


def _waits_for_batch(rank: RankState) -> bool:
    return rank.progress is not None and rank.progress.phase == Phase.DATA


REACH_PHRASES = {
    "refused": "nothing listens there (refused)",
    "silent": "it does not answer",
    "no_route": "there is no route to it",
    "no_name": "the name {name} is not found",
}


def _reach(rank: RankState) -> str:
    """Why a rank does not reach the store; empty: it does, or has not said."""
    reached = rank.milestones.get(REACH)
    result = "" if reached is None else str(reached.fields.get("result"))
    return result if result in REACH_PHRASES else ""


def _cut_off(state: RunState) -> list[int]:
    """The ranks that do not reach the store, all for one reason."""
    reasons = {rank: _reach(state.ranks[rank]) for rank in range(state.world)}
    first = next(filter(None, reasons.values()), "")
    return [rank for rank, reason in reasons.items() if reason and reason == first]


def _call_of_late(rank: RankState) -> Call | None:
    """Where in its code a rank is that has not reported, read from outside; None: it was not read."""
    return None if rank.kernel is None else call_read(rank, rank.kernel.pid, 0)


def _missing_phrase(state: RunState, ranks: Sequence[int]) -> str:
    """What is known of ranks that have not reported; empty of others."""
    if state.ranks[ranks[0]].hello is not None:
        return ""
    who = ranks_phrase(ranks, state.world)
    late, kernel = state.start.not_initialized.get(ranks[0]), state.ranks[ranks[0]].kernel
    if late is None or kernel is None:
        # Where each host's launcher has made a run of its own, they may train in the other.
        return f"{who} {_verb(ranks, 'has', 'have')} not reported (not started, or torch not imported)"
    call = _call_of_late(state.ranks[ranks[0]])
    if call is not None:
        return f"{who} {_verb(ranks, 'is', 'are')} in {place(call)}"
    has = f"{who} {_verb(ranks, 'has', 'have')} not"
    what = f"{has} reached init_process_group" if late.torch else f"{has} imported torch"
    return f"{what} ({kernel.words()})"


def _wanted(state: RunState) -> int:
    """How many ranks `init_process_group` waits for, where the launcher has started fewer; else 0."""
    fields = (rank.milestones["init"].fields for rank in state.ranks if "init" in rank.milestones)
    wanted = max(
        (number for fields_of_rank in fields if isinstance(number := fields_of_rank.get("world"), int)),
        default=0,
    )
    return wanted if wanted > state.world else 0


def _addresses(state: RunState) -> dict[str, list[int]]:
    """Where the ranks look for one another that are in `init_process_group`."""
    addresses: dict[str, list[int]] = {}
    for number, rank in enumerate(state.ranks):
        if "init" in rank.milestones and "group" not in rank.milestones:
            addresses.setdefault(_address(rank.milestones["init"].fields), []).append(number)
    return addresses


def _interfaces(state: RunState) -> str:
    """` by the interface eth0`: those that the script or the job has set; empty: none."""
    fields = (rank.milestones["init"].fields for rank in state.ranks if "init" in rank.milestones)
    names = sorted(
        {str(fields_of_rank.get("interface")) for fields_of_rank in fields if fields_of_rank.get("interface")}
    )
    return f" by the interface{'s' * (len(names) > 1)} {' and '.join(names)}" if names else ""


def _address(fields: Mapping[str, Scalar]) -> str:
    return f"{fields.get('address') or '?'}:{fields.get('port') or '?'}"


def _verb(ranks: Sequence[int], of_one: str, of_several: str) -> str:
    return of_one if len(ranks) == 1 else of_several
