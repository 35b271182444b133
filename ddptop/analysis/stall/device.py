"""A stall on the device told from one on the host: what each rank's GPU stands in, in words."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ddptop.analysis.ranks import DeviceWord
from ddptop.frames.calls import is_users, main_stack, place, user_call
from ddptop.frames.phrases import ranks_phrase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.protocol.evidence import Stack
    from ddptop.protocol.messages import Event
    from ddptop.protocol.vocabulary import DeviceState, RankPhase

STUCK = ("compute", "error")
"""States in which the GPU has not reached the collective that its host has launched."""

_WAITS = re.compile(r"\.(item|tolist|cpu|numpy|nonzero|synchronize)\(|\bsynchronize\(|\b(float|int|bool)\(")
"""Calls that wait for the device without a Python frame of their own."""

_SYNCHRONISE = re.compile(r"[/\\]torch[/\\]cuda[/\\](__init__|streams)\.py$")


def device_word(event: Event, t_ns: int) -> DeviceWord:
    """Of an Event("device"); what does not fit is left empty."""
    state, phase, error = (str(event.fields.get(name) or "") for name in ("state", "phase", "error"))
    bucket = event.fields.get("bucket")
    known = cast("DeviceState", state), event.step, cast("RankPhase", phase)
    return DeviceWord(t_ns, *known, bucket if isinstance(bucket, int) else -1, error)


def device_since(member: RankState, since_ns: int) -> DeviceWord | None:
    """Its GPU's state, if it was told after `since_ns`: an older one is of another standstill.

    In a step whose buckets are not timed, the flight recorder may know that no all-reduce is under way.
    """
    word = member.device
    if word is None or word.t_ns <= since_ns:
        return None
    told = member.evidence if member.evidence_ns > since_ns else None
    operations = told.operations if told is not None else ()
    if word.state == "either" and operations and all(operation.done for operation in operations):
        return replace(word, state="compute")
    return word


def device_words(word: DeviceWord | None) -> str:
    """`its GPU does not get on in forward of step 30: a kernel does not end`; empty: nothing is known."""
    if word is None:
        return ""
    where = f"{word.phase} of step {word.step:,}" if word.phase else f"step {word.step:,}"
    number = f"all_reduce {word.bucket + 1} of step {word.step:,}"
    if word.state == "idle":
        return "its GPU has done all that it was given: its host is what is late"
    if word.state == "error":
        return f"its GPU reports an error: {word.error}"
    if word.state == "collective":
        return f"its GPU is in {number}: its gradients are ready, the all-reduce does not end"
    if word.state == "compute":
        before = f" and has not reached {number}" if word.bucket >= 0 else ""
        return f"its GPU does not get on in {where}{before}: a kernel does not end"
    if word.state == "either":
        return f"its GPU does not get on in {where}: a kernel or an all-reduce does not end"
    return ""


def device_lines(member: RankState, since_ns: int) -> list[str]:
    """Whether a rank's host or its GPU stands still, as far as its events and its stack tell: a line each."""
    told = member.evidence if member.evidence_ns > since_ns else None
    words = (device_words(device_since(member, since_ns)), waits_for_device(told.stacks) if told else "")
    return [word for word in words if word]


def stuck_words(members: Sequence[RankState], ranks: Sequence[int], since_ns: int) -> str:
    """`the GPU of rank 2 does not get on in backward of step 30`: where the first of them stands."""
    one = len(ranks) == 1
    gpus = f"the GPU{'' if one else 's'} of {ranks_phrase([*ranks], len(members))}"
    word = device_since(members[ranks[0]], since_ns)
    if word is None or word.state == "error":
        return f"{gpus} {'reports an error' if one else 'report errors'}"
    where = f"{word.phase} of step {word.step:,}" if word.phase else f"step {word.step:,}"
    return f"{gpus} {'does' if one else 'do'} not get on in {where}"


def waits_for_device(stacks: Iterable[Stack]) -> str:
    """`its host waits for the GPU in train.py:88 step`, where the main thread's innermost call does that."""
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
