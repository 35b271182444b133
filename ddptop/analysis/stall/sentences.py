"""The sentences about a stall: a full one, a short one for 80 columns, and lines of detail."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from ddptop.analysis.health.exits import describe_exit, early_phrase
from ddptop.analysis.health.hosts import range_phrase, ranks_by_host, silence_phrase, whole_host
from ddptop.analysis.stall.collectives import (
    DEFAULT_GROUP,
    called_operation,
    operation_name,
    operation_of,
    operation_phrase,
)
from ddptop.analysis.stall.rank_position import (
    answer_since,
    device_since,
    ended_step,
    evidence_since,
    kernel_since,
)
from ddptop.analysis.stall.start_sentences import start_sentence
from ddptop.frames.calls import collective_called, main_stack, pending_operation, place, user_call
from ddptop.frames.conditions import STALLS, say_stall
from ddptop.frames.numbers import fixed, percent
from ddptop.frames.phrases import ranks_phrase, ranks_range
from ddptop.protocol.limits import NS
from ddptop.protocol.user_code import is_users

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddptop.analysis.ranks import DeviceReport, RankState
    from ddptop.analysis.stall.collectives import Side
    from ddptop.analysis.stall.diagnosis import Diagnosis
    from ddptop.analysis.state import RunState
    from ddptop.frames.stall import RankPosition
    from ddptop.protocol.evidence import Evidence, Stack

ANSWERS_NS = 3 * NS
"""A rank without a heartbeat for so long before the kernel's report runs no Python: six were due."""

MAX_DETAILED = 3
"""Ranks that have lines of their own."""

_WAITS = re.compile(r"\.(item|tolist|cpu|numpy|nonzero|synchronize)\(|\bsynchronize\(|\b(float|int|bool)\(")
"""Calls in the user's code that wait for the device."""

_SYNCHRONISE = re.compile(r"[/\\]torch[/\\]cuda[/\\](__init__|streams)\.py$")


def sentence(state: RunState, diagnosis: Diagnosis) -> str:
    """`rank 1 is missing: it has not entered all_reduce 3 of step 12,480 (sequence 49,923)`."""
    if diagnosis.restart or diagnosis.start:
        return short_sentence(state, diagnosis)
    silent = len(diagnosis.ranks) == 1 and _holds_lock(state, diagnosis.ranks[0], diagnosis.since_ns)
    short = diagnosis.outside or silent or _entered_phrase(state, diagnosis)
    if diagnosis.kind == "missing" and not short and diagnosis.sequence is not None:
        who, single = _who_phrase(state, diagnosis.ranks)
        # Of a rank that has not answered only an old heartbeat's number is known.
        answered = answer_since(state.ranks[diagnosis.ranks[0]], diagnosis.since_ns) is not None
        number = f" ({_sequence_phrase(diagnosis)})" if answered else ""
        return say_stall(
            "missing",
            who=who,
            be="is" if single else "are",
            has="it has" if single else "they have",
            collective=_collective_phrase(state, diagnosis),
            number=number,
        )
    if diagnosis.sides:
        sides = _sides_phrase(diagnosis.sides, state.world)
        return say_stall("mismatch", sides=sides, number=_sequence_phrase(diagnosis))
    if diagnosis.kind == "transport":
        everyone = ranks_phrase(diagnosis.waiting, state.world)
        number = f" ({_sequence_phrase(diagnosis)})" if diagnosis.sequence is not None else ""
        what, why = _collective_phrase(state, diagnosis), _transport_or_device(state)
        if diagnosis.on_device:
            why = say_stall("transport", "on_device", why=TRANSPORT)
        return say_stall("transport", who=everyone, collective=what, number=number, why=why)
    if diagnosis.kind == "device":
        what = _collective_phrase(state, diagnosis) if diagnosis.waiting else ""
        launched = say_stall("device", "launched", collective=what) if what else ""
        return stuck_phrase(state.ranks, diagnosis.ranks, diagnosis.since_ns, launched)
    return short_sentence(state, diagnosis)


TRANSPORT = "transport"


def _transport_or_device(state: RunState) -> str:
    return f"{TRANSPORT} or device" if any(map(has_gpu, state.ranks)) else TRANSPORT


def short_sentence(state: RunState, diagnosis: Diagnosis) -> str:
    """The short sentence, for the verdict: `rank 1 is missing: not in all_reduce 3 of step 12,480`."""
    ranks = state.ranks
    if diagnosis.start:
        return start_sentence(state, diagnosis.ranks, diagnosis.waiting, diagnosis.start)
    if diagnosis.restart:
        since = time.strftime("%H:%M:%S", time.localtime(state.unix_s(diagnosis.since_ns)))
        who, be = ranks_range(diagnosis.waiting), "is" if len(diagnosis.waiting) == 1 else "are"
        return say_stall("missing", "restart", restart=diagnosis.restart, who=who, be=be, since=since)
    if diagnosis.kind == "asking":
        return say_stall("asking", "awaits_answers" if diagnosis.awaits_answers else "", step=diagnosis.step)
    if diagnosis.kind == "dead":
        return dead_phrase(state, diagnosis.ranks)
    if STALLS[diagnosis.kind].has_own_alert:
        return silence_phrase(state, ranks_by_host(state, diagnosis.ranks), state.newest_ns, lost=False)
    if diagnosis.kind == "transport":
        why = TRANSPORT if diagnosis.on_device else _transport_or_device(state)
        return say_stall("transport", "short", collective=_collective_phrase(state, diagnosis), why=why)
    if diagnosis.kind == "device":
        return stuck_phrase(state.ranks, diagnosis.ranks, diagnosis.since_ns)
    if STALLS[diagnosis.kind].has_sides:
        if diagnosis.sides:
            return _sides_phrase(diagnosis.sides, len(ranks))
        return _in_different_steps(state, diagnosis)
    if diagnosis.ranks[0] in state.start.not_initialized:
        return _say_start(state, diagnosis)
    who, single = _who_phrase(state, diagnosis.ranks)
    name, be = ranks_phrase(diagnosis.ranks, len(ranks)), "is" if single else "are"
    if diagnosis.outside:
        make = "makes" if single else "make"
        return say_stall("missing", "outside", who=name, make=make, step=diagnosis.step)
    if ranks[diagnosis.ranks[0]].finished:
        has, it_or_them = ("has", "it") if single else ("have", "them")
        return say_stall("missing", "finished", who=name, has=has, them=it_or_them, step=diagnosis.step)
    entered = _entered_phrase(state, diagnosis)
    if entered:
        return entered
    holds = _holds_lock(state, diagnosis.ranks[0], diagnosis.since_ns) if len(diagnosis.ranks) == 1 else ""
    if holds:
        return say_stall("missing", "holds_lock", rank=diagnosis.ranks[0], lock=holds)
    if diagnosis.sequence is not None:
        return say_stall("missing", "short", who=who, be=be, collective=_collective_phrase(state, diagnosis))
    behind = ranks[diagnosis.ranks[0]].step
    if behind < diagnosis.step:
        return say_stall("missing", "behind", who=who, be=be, own_step=behind, step=diagnosis.step)
    return say_stall("missing", "silent", who=who, be=be, silence=_silence_phrase(state, diagnosis.ranks[0]))


STALE_ADDRESSES = "on torchrun's own store, gloo may have found addresses of the processes before the restart"


def detail(
    state: RunState, diagnosis: Diagnosis, positions: Sequence[RankPosition], *, ended: bool = False
) -> tuple[str, ...]:
    """Lines about the ranks: which wait, and where the missing ones are. `ended`: the stall is over."""
    if diagnosis.restart:
        return (STALE_ADDRESSES,)
    lines = []
    if diagnosis.waiting and STALLS[diagnosis.kind].others_wait and not diagnosis.outside:
        who = ranks_phrase(diagnosis.waiting, state.world)
        since = time.strftime("%H:%M:%S", time.localtime(state.unix_s(diagnosis.since_ns)))
        verb = "waited" if ended else "waits" if len(diagnosis.waiting) == 1 else "wait"
        lines.append(f"{who} {verb} there since {since}")
    detailed = [position for position in positions if position.rank in diagnosis.ranks][:MAX_DETAILED]
    if STALLS[diagnosis.kind].shows_waiting:
        detailed = [*positions][:MAX_DETAILED]
    for position in detailed:
        lines.append(_position_phrase(position))
        rank_state = state.ranks[position.rank]
        if diagnosis.kind == "missing" and not rank_state.finished and not ended:
            lines.append(f"it waits for {position.waits_for}" if position.waits_for else "")
            lines.append(_process_phrase(state, position))
            if position.operation and position.rank in diagnosis.ranks and not diagnosis.outside:
                operation = _own_operation_phrase(state, diagnosis, position.rank)
                lines.append(f"rank {position.rank} itself waits in {operation}")
        lines += device_lines(rank_state, diagnosis.since_ns)
    not_detailed = len(diagnosis.ranks) - MAX_DETAILED
    if not_detailed > 0 and STALLS[diagnosis.kind].others_wait:
        lines.append(f"and {not_detailed} more rank{'s' if not_detailed > 1 else ''}")
    return tuple(line for line in lines if line)


def analyser_lines(state: RunState, since_ns: int) -> tuple[str, ...]:
    """Results of torch's flight recorder analyser and of NCCL RAS for this stall, a line each."""
    result: list[str] = []
    for kind, source in (("analyser", "torch's analyser"), ("ras", "NCCL RAS")):
        asked_ns, lines = state.analyser_results.get(kind, (0, ()))
        result += [f"{source}: {line}" for line in lines if asked_ns >= since_ns]
    return tuple(result)


def dead_phrase(state: RunState, dead: Sequence[int]) -> str:
    """`rank 2 was killed by SIGKILL at step 340 (out of memory?) and 3 more`."""
    if not dead:
        return say_stall("dead", "all")
    rank_state = state.ranks[dead[0]]
    and_more = f" and {len(dead) - 1} more" if len(dead) > 1 else ""
    if not rank_state.ended_badly:
        return say_stall("dead", "with_host", rank=dead[0], host=rank_state.host, more=and_more)
    return say_stall(
        "dead", rank=dead[0], how=describe_exit(rank_state, ended_step(state, dead[0])), more=and_more
    )


def left_behind_phrase(state: RunState, left_rank: int) -> str:
    """`, one barrier before the others; ranks 0 and 2 are in barrier`: by how many collectives a rank has
    exited too early, else its last one, and that of the others; empty where all of it is unknown."""
    ranks, operations = state.ranks, dict[str, list[int]]()
    last = ""
    for rank, rank_state in enumerate(ranks):
        evidence = rank_state.exit_evidence or rank_state.evidence
        if rank == left_rank or evidence is None or rank_state.left_early:
            continue
        number = ranks[left_rank].last_sequence or ranks[left_rank].sequence
        same = (op for op in evidence.operations if (op.group, op.sequence) == (DEFAULT_GROUP, number))
        last = last or operation_phrase(next(same, None))
        operations.setdefault(called_operation(evidence), []).append(rank)
    operations.pop("", None)
    parts = [
        f"{ranks_phrase(ranks_in_it, len(ranks))} {'is' if len(ranks_in_it) == 1 else 'are'} in {operation}"
        for operation, ranks_in_it in operations.items()
    ]
    early = f"after {last}" if last and last not in operations else early_phrase(ranks, left_rank)
    return (f", {early}" if early else "") + (f"; {', '.join(parts)}" if parts else "")


def _who_phrase(state: RunState, ranks: Sequence[int]) -> tuple[str, bool]:
    """`rank 1`, and whether it is a single rank; of all ranks of a host `host node2 (ranks 4-7)`, a single
    host."""
    single = len(ranks) == 1
    host = whole_host(state, ranks)
    if host is not None:
        return f"host {host} ({range_phrase(tuple(sorted(ranks)), state.world)})", True
    return ranks_phrase(ranks, state.world), single


def _sequence_phrase(diagnosis: Diagnosis) -> str:
    group = f" of group {diagnosis.group}" if diagnosis.group != "0" else ""
    return f"sequence {diagnosis.sequence or 0:,}{group}"


def _collective_phrase(state: RunState, diagnosis: Diagnosis) -> str:
    """`all_reduce 3 of step 12,480`, as far as known: the collective that the waiting ranks are in."""
    reported = (evidence_since(state.ranks[rank], diagnosis.since_ns) for rank in diagnosis.waiting)
    names = (_name_collective(evidence, diagnosis.group) for evidence in reported if evidence is not None)
    phases = {state.ranks[rank].phase for rank in diagnosis.waiting}
    name = next(filter(None, names), "all_reduce" if phases == {"backward"} else "a collective")
    count = ""
    if name == "all_reduce" and diagnosis.ranks and diagnosis.kind != "device":
        missing = state.ranks[diagnosis.ranks[0]]
        if missing.bucket is not None and missing.step == diagnosis.step:
            count = f" {missing.bucket + 1}"
    return f"{name}{count} of step {diagnosis.step:,}"


def _name_collective(evidence: Evidence, group: str) -> str:
    """The collective that a rank waits in, or did when it failed; empty: not known."""
    pending = pending_operation(evidence, group)
    if pending is None and (called := collective_called(evidence.stacks)):
        return called  # not all are in the flight recorder: monitored_barrier
    operation = pending or operation_of(evidence, group)
    return "" if operation is None else operation_name(operation)


def _sides_phrase(sides: Sequence[Side], world: int) -> str:
    """`rank 1 calls broadcast where ranks 0 and 2 call all_reduce`; with sizes where the names are equal."""
    names = {operation_name(side.operation) for side in sides}
    parts = []
    for side in sides:
        who, call = ranks_phrase(side.ranks, world), "calls" if len(side.ranks) == 1 else "call"
        what = operation_phrase(side.operation) if len(names) == 1 else operation_name(side.operation)
        parts.append(say_stall("mismatch", "side", who=who, call=call, operation=what))
    return " where ".join(parts)


def _in_different_steps(state: RunState, diagnosis: Diagnosis) -> str:
    ranks = state.ranks
    if not diagnosis.ranks:
        return _deadlock_phrase(state, diagnosis)
    who = ranks_phrase(diagnosis.ranks, len(ranks))
    wait, own_step = "waits" if len(diagnosis.ranks) == 1 else "wait", ranks[diagnosis.ranks[0]].step
    step = diagnosis.step
    return say_stall("mismatch", "different_steps", who=who, wait=wait, own_step=own_step, step=step)


def _deadlock_phrase(state: RunState, diagnosis: Diagnosis) -> str:
    """`deadlock: rank 0 waits in all_reduce of group 1 where rank 1 waits in all_reduce of group 2`."""
    sides: dict[str, list[int]] = {}
    for rank in diagnosis.waiting:
        op = pending_operation(answer_since(state.ranks[rank], diagnosis.since_ns))
        if op is not None:
            sides.setdefault(f"{operation_name(op)} of group {op.group}", []).append(rank)
    if len(sides) < 2:
        return say_stall("mismatch", "deadlock_unknown")
    parts = []
    for operation, ranks in sides.items():
        who, wait = ranks_phrase(ranks, state.world), "waits" if len(ranks) == 1 else "wait"
        parts.append(say_stall("mismatch", "deadlock_side", who=who, wait=wait, operation=operation))
    return say_stall("mismatch", "deadlock", sides=" where ".join(parts))


def _entered_phrase(state: RunState, diagnosis: Diagnosis) -> str:
    """`rank 0 is in save_checkpoint, 3 ranks wait in barrier`, where the script itself has called their
    collective; empty otherwise."""
    answers = (answer_since(state.ranks[rank], diagnosis.since_ns) for rank in diagnosis.waiting)
    names = (collective_called(answer.stacks) for answer in answers if answer is not None)
    called = next(filter(None, names), "") if diagnosis.entered else ""
    many = len(diagnosis.waiting) > 1
    if not called:
        return ""
    waiting_ranks = f"{len(diagnosis.waiting)} ranks wait" if many else f"rank {diagnosis.waiting[0]} waits"
    who, single = _who_phrase(state, diagnosis.ranks)
    be, entered = "is" if single else "are", diagnosis.entered
    return say_stall(
        "missing", "entered", who=who, be=be, entered=entered, others=waiting_ranks, called=called
    )


def _say_start(state: RunState, diagnosis: Diagnosis) -> str:
    """`rank 2 has not reached init_process_group: it sleeps in futex_wait, 0.1 s of CPU, torch imported`."""
    single = len(diagnosis.ranks) == 1
    who = ranks_phrase(diagnosis.ranks, state.world)
    kernel, late = state.ranks[diagnosis.ranks[0]].kernel, state.start.not_initialized[diagnosis.ranks[0]]
    where = ""
    if kernel is not None:
        first = "it" if single else f"rank {diagnosis.ranks[0]}"
        torch = "torch imported" if late.torch else "torch not imported"
        where = f": {first} {kernel.words()}, {fixed(kernel.cpu_s)} s of CPU, {torch}"
    return say_stall("missing", "before_first_group", who=who, has="has" if single else "have", where=where)


def _silence_phrase(state: RunState, rank: int) -> str:
    return "its process is stopped (SIGSTOP)" if state.ranks[rank].stopped else "it does not answer"


def _holds_lock(state: RunState, rank: int, since_ns: int) -> str:
    """`a C call holds the interpreter lock (it sleeps in hrtimer_nanosleep, 0% CPU)`.

    Empty of a rank that answers, sends heartbeats, or whose process is stopped.
    """
    rank_state = state.ranks[rank]
    kernel = kernel_since(rank_state, since_ns)
    answered = answer_since(rank_state, since_ns) is not None
    if kernel is None or kernel.state in "Tt" or rank_state.stopped or answered:
        return ""
    if rank_state.heard_ns > kernel.t_ns - ANSWERS_NS:
        return ""
    read_ns, native = rank_state.native_calls
    inside = f": {native}" if native and read_ns > since_ns else ""
    return f"a C call holds the interpreter lock (it {kernel.words()}{_cpu_used(rank_state)}){inside}"


def _position_phrase(position: RankPosition) -> str:
    """`rank 1, node0, pid 4312, is in train.py:88 tokenize`."""
    pid = f", pid {position.pid}" if position.pid is not None else ""
    name = f"rank {position.rank}, {position.host}{pid},"
    if position.user_call is not None:
        return f"{name} {'is' if position.process == 'alive' else 'was'} in {place(position.user_call)}"
    if position.process in ("alive", "stopped", "silent"):
        return f"{name} has not answered" if position.at_s is None else f"{name} is not in user code"
    return f"{name} {position.process}"


def _cpu_used(rank_state: RankState) -> str:
    """`, 98% CPU`; empty: not known."""
    return f", {percent(rank_state.usage.cpu_pct, 0)} CPU" if rank_state.usage is not None else ""


def _process_phrase(state: RunState, position: RankPosition) -> str:
    cpu, process = _cpu_used(state.ranks[position.rank]), f"rank {position.rank}'s process"
    if position.process == "stopped":
        return f"{process} is stopped (SIGSTOP)"
    if position.process == "silent":
        return f"{process} does not answer{cpu}: the interpreter lock (GIL) is held, or it is stopped"
    return f"{process} is alive{cpu}"


def _own_operation_phrase(state: RunState, diagnosis: Diagnosis, rank: int) -> str:
    op = pending_operation(answer_since(state.ranks[rank], diagnosis.since_ns))
    if op is None:
        return "a collective"
    return f"{operation_phrase(op)} (sequence {op.sequence:,})"


def device_phrase(device: DeviceReport | None) -> str:
    """`its GPU makes no progress in forward of step 30: a kernel does not complete`; may be empty."""
    if device is None:
        return ""
    where = f"{device.phase} of step {device.step:,}" if device.phase else f"step {device.step:,}"
    number = f"all_reduce {device.bucket + 1} of step {device.step:,}"
    if device.state == "idle":
        return "its GPU has finished all its work: the host is late"
    if device.state == "error":
        return f"its GPU reports an error: {device.error}"
    if device.state == "collective":
        return f"its GPU is in {number}: its gradients are ready, the all-reduce does not complete"
    if device.state == "compute":
        before = f" and has not reached {number}" if device.bucket >= 0 else ""
        return f"its GPU makes no progress in {where}{before}: a kernel does not complete"
    if device.state == "either":
        return f"its GPU makes no progress in {where}: a kernel or an all-reduce does not complete"
    return ""


def device_lines(rank_state: RankState, since_ns: int) -> list[str]:
    """Lines about whether a rank's host or its GPU makes no progress, from its CUDA events and its stack."""
    answer = answer_since(rank_state, since_ns)
    lines = [
        device_phrase(device_since(rank_state, since_ns)),
        waits_for_device(answer.stacks) if answer and has_gpu(rank_state) else "",
    ]
    return [line for line in lines if line]


def has_gpu(rank_state: RankState) -> bool:
    """Whether the rank trains on a GPU, or has not said on what it does."""
    device = "" if rank_state.hello is None else rank_state.hello.device
    return rank_state.device is not None or not device.startswith("cpu")


def stuck_phrase(
    rank_states: Sequence[RankState], ranks: Sequence[int], since_ns: int, launched: str = ""
) -> str:
    """`the GPU of rank 2 makes no progress in backward of step 30`; the phase is that of the first rank.
    `launched`: what follows about the hosts."""
    single = len(ranks) == 1
    gpus = f"the GPU{'' if single else 's'} of {ranks_phrase(ranks, len(rank_states))}"
    device = device_since(rank_states[ranks[0]], since_ns)
    if device is None or device.state == "error":
        report = "reports an error" if single else "report errors"
        return say_stall("device", "error", gpus=gpus, report=report, launched=launched)
    where = f"{device.phase} of step {device.step:,}" if device.phase else f"step {device.step:,}"
    make = "makes" if single else "make"
    return say_stall("device", gpus=gpus, make=make, where=where, launched=launched)


def waits_for_device(stacks: Iterable[Stack]) -> str:
    """`its host waits for the GPU in train.py:88 step`, if that is the main thread's innermost call."""
    kept = tuple(stacks)
    stack = main_stack(kept)
    inner = stack.frames[0] if stack is not None and stack.frames else None
    if inner is None:
        return ""
    in_torch = inner.function == "synchronize" and _SYNCHRONISE.search(inner.file) is not None
    in_users = is_users(inner.file) and _WAITS.search(inner.code) is not None
    call = user_call(kept)
    return (
        f"its host waits for the GPU in {place(call)}" if call is not None and (in_torch or in_users) else ""
    )
