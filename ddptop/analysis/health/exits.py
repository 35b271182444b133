"""How the process of a rank exited, in words, and whether its exit can be the cause of other exits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptop.analysis.stall.collectives import operation_name, operation_of
from ddptop.frames.calls import collective_called, in_collective, pending_operation, place, user_call
from ddptop.frames.phrases import (
    BY_LAUNCHER,
    KILLED_LATE,
    NOT_OUT_OF_MEMORY,
    OUT_OF_MEMORY,
    SENT_TO_ALL,
    SIGNALS,
    Failure,
    ended_by_signal,
    exit_phrase,
    ranks_phrase,
)
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import FINISHED, ORDERLY_REASONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.frames.stall import Call

_LOST_PEER = re.compile(
    r"connection (reset|closed|refused|was closed)|read error|broken pipe|closed by peer"
    r"|remote (process|error)|ncclRemoteError|ncclSystemError|timed out|timeout|recvValue|socket",
    re.IGNORECASE,
)
"""Errors of a rank that has lost another one, as gloo and NCCL report them."""

_FOLLOWS = re.compile(
    _LOST_PEER.pattern
    + r"|KeyboardInterrupt|SignalException|SystemExit: (143|130)|process group .*(abort|terminat)",
    re.IGNORECASE,
)
"""Errors of a rank that fails because another one has exited."""

_INTERRUPTED = re.compile(r"KeyboardInterrupt|SignalException|SystemExit: (143|130)")
"""Errors of a rank that was ended from outside."""

KILLED_LATE_NS = 25 * NS
"""torchrun kills the ranks that still run 30 s after it has sent them SIGTERM."""

LEFT_NS = 2 * NS
"""A collective that a rank has taken part in before its exit completes on the others in this time."""

_AT_THE_END = frozenset({"destroy_process_group"})
"""Functions of torch.distributed that wait for no other rank's part in a collective."""


_BUILD_PATH = re.compile(r"\[[^\]\s]*/[^\]\s]*:\d+\] |\[enforce fail at [^\]]+\] (?:\w+ == \w+\. )?")
"""`[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] `, where torch was built; `[enforce
fail at alloc_cpu.cpp:127] err == 0. `."""

MAX_REASON = 240
"""Characters of a reason, which may contain a whole tensor. A rank sends 160 of an exception and 80 of the
one that it was raised from; ranks of earlier versions sent more."""

_KILLED_WORKER = re.compile(r"DataLoader workers? \(pids? [\d, ]+\) (?:was|were) killed by (SIG[A-Z]+)$")

_WORKER_MESSAGE = re.compile(r"^\w+ in (a DataLoader worker|the pin_memory thread|a worker process)\b")
"""Reasons that another process of the rank has given."""


@dataclass(frozen=True, slots=True)
class OutsideEnd:
    """A signal that ends the run from outside."""

    signal: str
    """`SIGTERM`."""
    t_ns: int
    """When, on the collector's clock."""
    host: str = ""
    """Whose launcher has received it; empty: known from the ranks alone."""
    stall: str = ""
    """The short sentence of the stall that the run was in; empty: it was in none."""
    restart: int = 0
    """The elastic restart after which the ranks of that stall did not meet; 0: this was no such stall."""
    sure: bool = True
    """False: one rank may have been ended first, and its launcher has then ended the others."""


def reason(rank_state: RankState) -> str:
    """The exception: `ValueError: no such file`; empty if unknown."""
    if rank_state.out_of_memory and rank_state.signal == "SIGKILL":
        return OUT_OF_MEMORY
    if rank_state.by_launcher:
        return BY_LAUNCHER
    if rank_state.killed_late:
        return KILLED_LATE
    if rank_state.out_of_memory is False and rank_state.signal == "SIGKILL":
        return NOT_OUT_OF_MEMORY
    text = rank_state.exit_evidence.reason if rank_state.exit_evidence is not None else ""
    if not text and rank_state.bye is not None and rank_state.bye.reason not in ORDERLY_REASONS:
        text = rank_state.bye.reason
    line = _BUILD_PATH.sub("", text.strip().split("\n", 1)[0])
    killed = _KILLED_WORKER.search(line)
    if killed is not None and killed[1] == "SIGKILL" and rank_state.out_of_memory is not None:
        return f"{line} ({OUT_OF_MEMORY if rank_state.out_of_memory else NOT_OUT_OF_MEMORY})"
    # Before its exit is known it is not known either whether the kernel has killed the worker.
    if killed is not None and not (killed[1] == "SIGKILL" and rank_state.exit_ns is None):
        return line + SIGNALS.get(killed[1], ("", ""))[1]
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3] + "..."


def complete_message(rank_state: RankState) -> tuple[str, ...]:
    """The exception's complete message in lines; empty where `reason` has all of it, or it is not known."""
    return rank_state.exit_evidence.message if rank_state.exit_evidence is not None else ()


def own_call(rank_state: RankState) -> Call | None:
    """The call in the user's code in which it exited."""
    return user_call(rank_state.exit_evidence.stacks) if rank_state.exit_evidence is not None else None


def failure_of(rank_state: RankState) -> Failure:
    """How a rank failed, to be compared with earlier attempts."""
    return Failure.of(own_call(rank_state), reason(rank_state), process_phrase(rank_state))


def process_phrase(rank_state: RankState) -> str:
    """How the process exited, without the reason: `killed by SIGKILL`, `exit code 1`, `gone`."""
    if rank_state.signal is not None:
        return (
            f"killed by {rank_state.signal}"
            if rank_state.signal == "SIGKILL"
            else f"ended by {rank_state.signal}"
        )
    if rank_state.left_early:
        return "exit code 0"
    if rank_state.exit_code is not None and (rank_state.exit_code or rank_state.bye is None):
        return f"exit code {rank_state.exit_code}"
    if rank_state.bye is None:
        return "gone"
    return "finished" if rank_state.finished else "ended"


def describe_exit(rank_state: RankState, step: int | None = None) -> str:
    """The words after `rank 1`: `failed: ValueError: bad batch (train.py:88 load)`.

    `step`: the step in which it ended; None: that of its own last message.
    """
    call = own_call(rank_state)
    where = f" ({place(call)})" if call is not None else ""
    at_step = f" at step {rank_state.step if step is None else step:,}"
    if rank_state.left_alone:
        return f"failed in {_collective_of(rank_state)}{where}: {rank_state.left_alone}"
    if rank_state.left_early and rank_state.exit_code is None and rank_state.signal is None:
        return f"exited before the end of training{at_step}"
    return exit_phrase(rank_state.signal, rank_state.exit_code, reason(rank_state), at=at_step, detail=where)


def exit_known(rank_state: RankState) -> bool:
    """Whether a signal, an exit code or an exception is known; otherwise only that the process is gone."""
    how = (rank_state.signal, rank_state.exit_code, reason(rank_state) or None)
    return rank_state.left_early or how != (None, None, None)


def follows(rank_state: RankState) -> bool:
    """Whether it exited as ranks do after the exit of another one, or gave up waiting for one, so that it is
    not the cause."""
    if rank_state.gave_up or rank_state.by_launcher or rank_state.killed_late:
        return True
    if rank_state.left_alone:
        return False
    if ended_by_signal(rank_state.signal, reason(rank_state)):
        return rank_state.signal in SENT_TO_ALL
    return follows_a_peer(rank_state)


def follows_a_peer(rank_state: RankState) -> bool:
    """Whether its exception is one of a rank that has lost another one, or was interrupted."""
    text = reason(rank_state)
    return _FOLLOWS.search(text) is not None and _WORKER_MESSAGE.match(text) is None


def interrupted(rank_state: RankState) -> bool:
    """Whether an exception that a signal from outside raises has ended it."""
    return bool(_INTERRUPTED.search(reason(rank_state)))


def ended_in_collective(rank_state: RankState) -> bool:
    """Whether it ended by an exception or an abort in a collective."""
    last = rank_state.exit_evidence
    ended = rank_state.signal in (None, "SIGABRT") or not ended_by_signal(
        rank_state.signal, reason(rank_state)
    )
    return last is not None and ended and in_collective(last.stacks)


def update_left_early(rank_states: Sequence[RankState]) -> list[int]:
    """Decide which ranks exited in good order while the others still needed them; returns those newly known.

    Since the exit of such a rank, another one has failed because it lost a peer, or waits in a collective of
    all ranks, or did so until it ended. There is no such rank while most ranks have exited in good order or
    may still do so: then the others did not stay for those that failed (`update_left_alone`). Nor is there
    one where a rank has failed for a reason of its own.
    """
    finished = [
        rank_state
        for rank_state in rank_states
        if rank_state.bye is not None and rank_state.bye.reason == FINISHED
    ]
    left_in_good_order = [
        rank_state for rank_state in finished if not rank_state.exit_code and rank_state.signal is None
    ]
    if not left_in_good_order:
        return []
    left_rows = {rank_state.row for rank_state in left_in_good_order}
    others = [rank_state for rank_state in rank_states if rank_state.row not in left_rows]
    failed = [rank_state for rank_state in others if rank_state.ended_badly]
    waiting_since_ns = min(map(ended_ns, left_in_good_order)) + LEFT_NS
    waiting = [  # those that have failed had waited until then
        rank_state
        for rank_state in others
        if rank_state.running or rank_state.ended_badly
        if rank_state.evidence_ns >= waiting_since_ns and _waits_for_all(rank_state)
    ]
    n_needed = len(failed) + sum(rank_state.running for rank_state in waiting)
    present = sum(rank_state.hello is not None for rank_state in rank_states)
    lost_peer_ns = [ended_ns(rank_state) for rank_state in failed if _lost_peer(rank_state)]
    waits_ns = [rank_state.evidence_ns - LEFT_NS for rank_state in waiting]
    since_ns = max([*lost_peer_ns, *waits_ns], default=0)
    if 2 * n_needed < present or not all(map(follows, failed)):
        since_ns = 0
    before = [rank_state.left_early for rank_state in rank_states]
    for rank_state in left_in_good_order:
        rank_state.left_early = 0 < ended_ns(rank_state) <= since_ns
    return [r for r, rank_state in enumerate(rank_states) if rank_state.left_early and not before[r]]


def update_left_alone(rank_states: Sequence[RankState]) -> None:
    """Mark the ranks that failed in a collective for which the others did not stay: most ranks had exited in
    good order by then, and none has failed for a reason of its own.

    Where a signal has ended some ranks before they told that they had finished, those that have exited in
    good order are named, if these are behind.
    """
    well = [rank for rank, rank_state in enumerate(rank_states) if _ended_in_good_order(rank_state)]
    bad = [
        rank_state
        for rank_state in rank_states
        if rank_state.ended_badly and not _ended_in_good_order(rank_state)
    ]
    alone = [rank_state for rank_state in bad if _lost_peer(rank_state)]
    n_ended_by_others = sum(map(_ended_by_others, bad))
    if not (well and alone) or len(well) + len(alone) + n_ended_by_others < len(rank_states):
        return
    most = 2 * len(well) > len(rank_states) and not n_ended_by_others
    if not (most or n_ended_by_others) or any(rank_state.left_early for rank_state in rank_states):
        return
    last_sequence = max(
        (number for rank in well if (number := rank_states[rank].last_sequence) is not None), default=None
    )
    left = "the others" if most else ranks_phrase(well, len(rank_states))
    for rank_state in alone:
        behind = _behind_phrase(rank_state, last_sequence)
        if most or behind:
            rank_state.left_alone = f"{left} had ended in good order{behind}"


def _ended_in_good_order(rank_state: RankState) -> bool:
    """A signal to all ranks that comes after its BYE has met it while it was exiting."""
    return rank_state.finished and (not rank_state.ended_badly or rank_state.signal in SENT_TO_ALL)


def early_phrase(rank_states: Sequence[RankState], left: int) -> str:
    """`one barrier before the others`: how many collectives too early a rank has left; empty: not known."""
    last_sequence = rank_states[left].last_sequence
    waits = [
        rank_state
        for rank_state in rank_states
        if not rank_state.finished and (rank_state.exit_evidence or rank_state.evidence)
    ]
    numbers = (number for rank_state in waits if (number := _number_at(rank_state)) is not None)
    ahead = max(numbers, default=0) - last_sequence if last_sequence is not None else 0
    if ahead == 1:
        names = {_collective_of(rank_state) for rank_state in waits}
        return f"one {names.pop() if len(names) == 1 else 'collective'} before the others"
    return f"{ahead} collectives before the others" if ahead > 1 else ""


def _number_at(rank_state: RankState) -> int | None:
    """Collectives that a rank had launched in the group of all ranks when it last told; None: not known."""
    last = rank_state.exit_evidence or rank_state.evidence
    numbers = [group.sequence for group in last.groups if group.name == "0"] if last is not None else []
    return next((number for number in numbers if number >= 0), None)


def _behind_phrase(rank_state: RankState, theirs: int | None) -> str:
    """`, one barrier behind`: by how many collectives others were behind a rank; empty: not known."""
    number = _number_at(rank_state)
    behind = 0 if theirs is None or number is None else number - theirs
    if behind == 1:
        return f", one {_collective_of(rank_state)} behind"
    return f", {behind} collectives behind" if behind > 1 else ""


def _collective_of(rank_state: RankState) -> str:
    """The collective of torch.distributed that it is in, or has failed in; `collective`: not known which."""
    last = rank_state.exit_evidence or rank_state.evidence
    operation = operation_of(last)
    called = collective_called(last.stacks) if last is not None else ""
    return called or ("collective" if operation is None else operation_name(operation))


def _lost_peer(rank_state: RankState) -> bool:
    last = rank_state.exit_evidence
    return last is not None and in_collective(last.stacks) and bool(_LOST_PEER.search(reason(rank_state)))


def _waits_for_all(rank_state: RankState) -> bool:
    """Whether its newest answer shows that it waits in a collective of the group of all ranks."""
    answer, hello = rank_state.evidence, rank_state.hello
    if answer is None or hello is None:
        return False
    pending = pending_operation(answer)
    of_all = {group.name for group in answer.groups if group.size == hello.world_size}
    if pending is not None:
        return pending.group in of_all
    called = collective_called(answer.stacks)
    return in_collective(answer.stacks) and called not in _AT_THE_END and len(answer.groups) <= 1


def ended_ns(rank_state: RankState) -> int:
    """When it exited, as far as known, on the collector's clock."""
    if rank_state.finished and rank_state.signal is not None and rank_state.exit_ns is not None:
        return rank_state.exit_ns  # its BYE came when it had finished, the signal while it was exiting
    times = (rank_state.gone_ns, rank_state.ended_ns, rank_state.exit_ns)
    return min((t_ns for t_ns in times if t_ns is not None), default=0)


def ended_badly(rank_states: Sequence[RankState], ended: Iterable[int]) -> list[int]:
    """The `ended` ranks that failed or died: causes first, then the ranks that followed, each by time.

    A peer may be seen to fail before the death that caused it, so time alone does not show the cause. Of
    ranks that all followed, the one comes first that a signal has ended before any other process had exited:
    the launcher has not sent it.
    """
    ranks_and_states = [(rank, rank_states[rank]) for rank in ended if rank_states[rank].ended_badly]
    exits_ns = sorted(
        rank_state.exit_ns for _, rank_state in ranks_and_states if rank_state.exit_ns is not None
    )
    first_ns = exits_ns[0] if exits_ns and exits_ns[:2].count(exits_ns[0]) == 1 else None
    badly = [
        (
            follows(rank_state),
            not (_ended_by_others(rank_state) and rank_state.exit_ns == first_ns),
            ended_ns(rank_state),
            rank,
        )
        for rank, rank_state in ranks_and_states
    ]
    return [rank for *_, rank in sorted(badly)]


def _ended_by_others(rank_state: RankState) -> bool:
    """Whether a signal has ended it that others send, and no exception."""
    return rank_state.signal in SENT_TO_ALL and rank_state.exit_ns is not None and not reason(rank_state)
