"""A stall in words: the sentence, a short form of it for 80 columns, and what more there is to say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ddptop.analysis.health.exits import describe_exit
from ddptop.analysis.stall.device import device_lines, stuck_words
from ddptop.analysis.stall.testimony import answer_since, ended_step, operation_name, operation_words, pending
from ddptop.frames.calls import place
from ddptop.frames.phrases import ranks_phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.stall.mismatch import Mismatch
    from ddptop.analysis.stall.positions import Standstill
    from ddptop.analysis.state import RunState
    from ddptop.frames.stall import RankPosition

TOLD_APART = 3
"""Ranks to blame that get lines of their own."""


def sentence(state: RunState, stall: Standstill) -> str:
    """`rank 1 is missing: it has not entered all_reduce 3 of step 12,480 (sequence 49,923)`."""
    found = stall.found
    if found.kind == "missing" and not found.alone and found.sequence is not None:
        who, one = _who(state, found.blamed)
        has = "it has" if one else "they have"
        # Of a rank that has not answered only an old heartbeat's number is known.
        answered = answer_since(state.ranks[found.blamed[0]], stall.since_ns) is not None
        number = f" ({_number(stall)})" if answered else ""
        return f"{who} missing: {has} not entered {_collective(state, stall)}{number}"
    if found.kind == "mismatch" and found.mismatch is not None:
        return f"{_sides(found.mismatch, len(state.ranks))} ({_number(stall)})"
    if found.kind == "transport":
        everyone = ranks_phrase([*found.waiting], len(state.ranks))
        number = f" ({_number(stall)})" if found.sequence is not None else ""
        what = _collective(state, stall)
        why = "every GPU is in it: transport" if found.on_device else "transport or device"
        return f"{everyone} have all launched {what}{number} and none completes: {why}"
    if found.kind == "device":
        launched = f": all hosts have launched {_collective(state, stall)}" if found.waiting else ""
        return stuck_words(state.ranks, found.blamed, stall.since_ns) + launched
    return short(state, stall)


def short(state: RunState, stall: Standstill) -> str:
    """The same for the verdict line: `rank 1 is missing: not in all_reduce 3 of step 12,480`."""
    found, members = stall.found, state.ranks
    if found.kind == "asking":
        rest = ": the ranks are asked where they are" if stall.patient else ", and no rank says where it is"
        return f"nobody is behind in step {stall.step:,}{rest}"
    if found.kind == "dead":
        return dead_words(state, found.blamed)
    if found.kind == "transport":
        why = "transport" if found.on_device else "transport or device"
        return f"all ranks are in {_collective(state, stall)}, none completes it: {why}"
    if found.kind == "device":
        return stuck_words(state.ranks, found.blamed, stall.since_ns)
    if found.kind == "mismatch":
        if found.mismatch is not None:
            return _sides(found.mismatch, len(members))
        return _unlike(state, stall)
    who, one = _who(state, found.blamed)
    if found.alone:
        stands = "stands" if one else "stand"
        name = ranks_phrase([*found.blamed], len(members))
        return f"{name} {stands} still in step {stall.step:,}, outside any collective"
    if members[found.blamed[0]].finished:
        has = "has" if one else "have"
        it = "it" if one else "them"
        name = ranks_phrase([*found.blamed], len(members))
        return f"{name} {has} finished: the others wait for {it} in step {stall.step:,}"
    if found.sequence is not None:
        return f"{who} missing: not in {_collective(state, stall)}"
    behind = members[found.blamed[0]].step
    if behind < stall.step:
        return f"{who} missing: still in step {behind:,}, the others in {stall.step:,}"
    return f"{who} missing: {_silence(state, found.blamed[0])}"


def detail(state: RunState, stall: Standstill, told: Sequence[RankPosition], now_ns: int) -> tuple[str, ...]:
    """Who waits where, and where those are that they wait for: a line each."""
    found = stall.found
    lines = []
    if found.waiting and found.kind in ("missing", "dead", "device") and not found.alone:
        who = ranks_phrase([*found.waiting], len(state.ranks))
        since = time.strftime("%H:%M:%S", time.localtime(state.unix_s(stall.since_ns)))
        lines.append(f"{who} {'waits' if len(found.waiting) == 1 else 'wait'} there since {since}")
    named = [t for t in told if t.rank in found.blamed][:TOLD_APART]
    if found.kind in ("mismatch", "transport", "asking"):
        named = [*told][:TOLD_APART]
    for one in named:
        lines.append(_where(one))
        if found.kind == "missing" and not state.ranks[one.rank].finished:
            lines.append(_process(state, one))
            if one.operation and one.rank in found.blamed and not found.alone:
                lines.append(f"rank {one.rank} itself waits in {_own_operation(state, stall, one.rank)}")
        lines += device_lines(state.ranks[one.rank], stall.since_ns)
    more = len(found.blamed) - TOLD_APART
    if more > 0 and found.kind in ("missing", "dead", "device"):
        lines.append(f"and {more} more rank{'s' if more > 1 else ''}")
    return tuple(lines)


def opinions(state: RunState, since_ns: int) -> tuple[str, ...]:
    """What torch's own analyser found in the flight recorders' dumps of this stall, and NCCL: a line each."""
    said = []
    for kind, whose in (("analyser", "torch's analyser"), ("ras", "NCCL itself")):
        asked_ns, lines = state.opinions.get(kind, (0, ()))
        said += [f"{whose}: {line}" for line in lines if asked_ns >= since_ns]
    return tuple(said)


def dead_words(state: RunState, dead: Sequence[int]) -> str:
    """`rank 2 was killed by SIGKILL at step 340 (out of memory?) and 3 more`."""
    if not dead:
        return "no rank is there any more"
    member = state.ranks[dead[0]]
    more = f" and {len(dead) - 1} more" if len(dead) > 1 else ""
    how = (
        describe_exit(member, ended_step(state, dead[0]))
        if member.ended_badly
        else f"is silent, and so is its host {member.host}"
    )
    return f"rank {dead[0]} {how}{more}"


def _who(state: RunState, ranks: Sequence[int]) -> tuple[str, bool]:
    """`rank 1 is` and whether it is one."""
    one = len(ranks) == 1
    return f"{ranks_phrase([*ranks], len(state.ranks))} {'is' if one else 'are'}", one


def _number(stall: Standstill) -> str:
    found = stall.found
    group = f" of group {found.group}" if found.group != "0" else ""
    return f"sequence {found.sequence or 0:,}{group}"


def _collective(state: RunState, stall: Standstill) -> str:
    """`all_reduce 3 of step 12,480`, as far as known: the one that the waiting ranks are in."""
    found = stall.found
    operations = (
        pending(answer_since(state.ranks[rank], stall.since_ns), found.group) for rank in found.waiting
    )
    op = next((op for op in operations if op is not None), None)
    phases = {state.ranks[rank].phase for rank in found.waiting}
    name = (
        operation_name(op) if op is not None else "all_reduce" if phases == {"backward"} else "a collective"
    )
    count = ""
    if name == "all_reduce" and found.blamed and found.kind != "device":
        missing = state.ranks[found.blamed[0]]
        if missing.bucket is not None and missing.step == stall.step:
            count = f" {missing.bucket + 1}"
    return f"{name}{count} of step {stall.step:,}"


def _sides(mismatch: Mismatch, world: int) -> str:
    """`rank 1 calls broadcast where ranks 0 2 3 call all_reduce`, or the sizes where the names agree."""
    names = {operation_name(side.operation) for side in mismatch.sides}
    parts = []
    for side in mismatch.sides:
        one = len(side.ranks) == 1
        what = operation_words(side.operation) if len(names) == 1 else operation_name(side.operation)
        parts.append(f"{ranks_phrase([*side.ranks], world)} {'calls' if one else 'call'} {what}")
    return " where ".join(parts)


def _unlike(state: RunState, stall: Standstill) -> str:
    found, members = stall.found, state.ranks
    if not found.blamed:
        return "the ranks wait for each other in different process groups"
    who = ranks_phrase([*found.blamed], len(members))
    waits = "waits" if len(found.blamed) == 1 else "wait"
    own = members[found.blamed[0]].step
    return f"{who} {waits} in a collective of step {own:,}, the others in one of step {stall.step:,}"


def _silence(state: RunState, rank: int) -> str:
    return "its process is stopped (SIGSTOP)" if state.ranks[rank].stopped else "it does not answer"


def _where(one: RankPosition) -> str:
    """`rank 1, node0, pid 4312, is in train.py:88 tokenize`."""
    pid = f", pid {one.pid}" if one.pid is not None else ""
    name = f"rank {one.rank}, {one.host}{pid},"
    if one.user_call is not None:
        return f"{name} {'is' if one.process == 'alive' else 'was'} in {place(one.user_call)}"
    if one.process in ("alive", "stopped", "silent"):
        return (
            f"{name} has not told where it is" if one.at_s is None else f"{name} is in no code of the user's"
        )
    return f"{name} {one.process}"


def _process(state: RunState, one: RankPosition) -> str:
    member = state.ranks[one.rank]
    cpu = f", {member.cpu_pct:.0f}% CPU" if member.cpu_pct is not None else ""
    if one.process == "stopped":
        return "its process is stopped (SIGSTOP)"
    if one.process == "silent":
        return (
            f"its process gives no answer{cpu}: something holds its interpreter (the GIL), or it is stopped"
        )
    return f"its process is alive{cpu}"


def _own_operation(state: RunState, stall: Standstill, rank: int) -> str:
    op = pending(answer_since(state.ranks[rank], stall.since_ns))
    if op is None:
        return "a collective"
    group = f" of group {op.group}" if op.group != "0" else ""
    return f"{operation_words(op)} (sequence {op.sequence:,}{group})"
