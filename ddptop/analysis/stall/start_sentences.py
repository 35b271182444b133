"""The sentence about ranks that wait for others on the way to the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.stall.rank_position import call_read
from ddptop.analysis.stall.start import INITIALIZES, place_in_start
from ddptop.analysis.stall.start_watch import milestone_of
from ddptop.frames.calls import place
from ddptop.frames.phrases import ranks_phrase
from ddptop.frames.start import MILESTONES
from ddptop.protocol.messages import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.analysis.state import RunState
    from ddptop.protocol.messages import Scalar


def start_sentence(state: RunState, ranks: Sequence[int], waiting: Sequence[int], where: str) -> str:
    """`rank 1 is in train.py:6 preprocess_dataset; rank 0 waits for it in DistributedDataParallel()`."""
    addresses = _addresses(state) if where == INITIALIZES else {}
    if len(addresses) > 1:
        parts = (f"{ranks_phrase(mine, state.world)} at {at}" for at, mine in addresses.items())
        return f"the ranks look for one another at different addresses: {', '.join(parts)}"
    wanted = _wanted(state) if where == INITIALIZES else 0
    if wanted:
        started = f"the launcher has started {state.world:,}"
        return f"init_process_group waits for {wanted:,} ranks, and {started}"
    if not ranks:
        who, at = ranks_phrase(waiting, state.world), "".join(f" at {at}" for at in addresses)
        return f"{who} {_verb(waiting, 'is', 'are')} in init_process_group{at}, and none gets past it"
    what = _missing_phrase(state, ranks) or _place_phrase(state, ranks)
    wait, them = _verb(waiting, "waits", "wait"), _verb(ranks, "it", "them")
    return f"{what}; {ranks_phrase(waiting, state.world)} {wait} for {them} in {where}"


def start_case(state: RunState, ranks: Sequence[int], where: str) -> str:
    """What to try about it, by its name in `frames.remedies`: `addresses`, `world_size`, `not_reported`,
    `store`, `nobody`; `code`: what the rank does is to be looked into."""
    addresses = _addresses(state) if where == INITIALIZES else {}
    if len(addresses) > 1:
        return "addresses"
    if where == INITIALIZES and _wanted(state):
        return "world_size"
    if not ranks:
        return "nobody"
    first = state.ranks[ranks[0]]
    if first.hello is None:
        return "not_reported"
    return "store" if milestone_of(first) == "init" else "code"


def _place_phrase(state: RunState, ranks: Sequence[int]) -> str:
    """What ranks do that have reported."""
    first, who = state.ranks[ranks[0]], ranks_phrase(ranks, state.world)
    reached = milestone_of(first)
    if reached == "init":
        has = _verb(ranks, "has", "have")
        return f"{who} {has} not reached the store at {_address(first.milestones['init'].fields)}"
    at = place_in_start(first, 0)
    if not at:
        of_one, of_several = MILESTONES[reached]
        return f"{who} {_verb(ranks, of_one, of_several)} and {_verb(ranks, 'has', 'have')} come no further"
    if first.progress is not None and first.progress.phase == Phase.DATA:
        return f"{who} {_verb(ranks, 'waits', 'wait')} for the first batch in {at}"
    return f"{who} {_verb(ranks, 'is', 'are')} in {at}"


def _missing_phrase(state: RunState, ranks: Sequence[int]) -> str:
    """What is known of ranks that have not reported; empty of others."""
    if state.ranks[ranks[0]].hello is not None:
        return ""
    who = ranks_phrase(ranks, state.world)
    late, kernel = state.not_initialized.get(ranks[0]), state.ranks[ranks[0]].kernel
    if late is None or kernel is None:
        return f"{who} {_verb(ranks, 'has', 'have')} not started, or not imported torch"
    call = call_read(state.ranks[ranks[0]], kernel.pid, 0)
    if call is not None:
        return f"{who} {_verb(ranks, 'is', 'are')} in {place(call)}"
    has = f"{who} {_verb(ranks, 'has', 'have')} not"
    what = f"{has} reached init_process_group" if late.torch else f"{has} imported torch"
    return f"{what} ({kernel.words()})"


def _wanted(state: RunState) -> int:
    """How many ranks `init_process_group` waits for, where the launcher has started fewer; else 0."""
    fields = (rank.milestones["init"].fields for rank in state.ranks if "init" in rank.milestones)
    wanted = max((number for one in fields if isinstance(number := one.get("world"), int)), default=0)
    return wanted if wanted > state.world else 0


def _addresses(state: RunState) -> dict[str, list[int]]:
    """Where the ranks look for one another that are in `init_process_group`."""
    addresses: dict[str, list[int]] = {}
    for number, rank in enumerate(state.ranks):
        if "init" in rank.milestones and "group" not in rank.milestones:
            addresses.setdefault(_address(rank.milestones["init"].fields), []).append(number)
    return addresses


def _address(fields: Mapping[str, Scalar]) -> str:
    return f"{fields.get('address') or '?'}:{fields.get('port') or '?'}"


def _verb(ranks: Sequence[int], of_one: str, of_several: str) -> str:
    return of_one if len(ranks) == 1 else of_several
