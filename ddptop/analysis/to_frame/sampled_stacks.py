"""The samples of stacks that a frame shows: of flagged ranks, of the last long step, of what was dear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.phrases import blamed
from ddptop.frames.sampled_stack import SampledStack, StackShare, place_to_sample
from ddptop.protocol.limits import NS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddptop.analysis.received_samples import ReceivedSamples
    from ddptop.analysis.state import RunState
    from ddptop.frames.frame import Straggler

MOST_SHOWN = 8
"""Series in a frame."""

WORKER_CALLS_NS = 30 * NS
"""Workers of a rank are read as it is asked; so long before or after its answer their calls count."""


def sampled_stacks(state: RunState, straggler: Straggler | None) -> tuple[SampledStack, ...]:
    """The newest series of each flagged rank in its place first, then those of long steps, the newest first,
    one for each rank."""
    newest: dict[tuple[int, str, bool], ReceivedSamples] = {}
    for received in state.stack_samples:  # later ones replace earlier ones
        if received.samples.samples or received.samples.held_ms:
            samples = received.samples
            newest[received.rank, samples.place, not samples.number] = received
    place = None if straggler is None else place_to_sample(straggler.cause, straggler.place)
    flagged = [(rank, place or "", False) for rank in blamed(straggler) if place is not None]
    long_steps = sorted((key for key in newest if key[2]), key=lambda key: -newest[key].t_ns)
    keys_of_long_steps = sorted((key for key in newest if not key[2]), key=lambda key: -newest[key].t_ns)
    keys = dict.fromkeys([*(key for key in flagged if key in newest), *long_steps, *keys_of_long_steps])
    return tuple(_sampled_stack(state, newest[key]) for key in [*keys][:MOST_SHOWN])


def _sampled_stack(state: RunState, received: ReceivedSamples) -> SampledStack:
    samples, rank = received.samples, received.rank
    total = max(1, samples.samples)
    calls = (
        StackShare(call.file, call.line, call.function, call.parent, 100.0 * call.samples / total)
        for call in samples.calls
    )
    return SampledStack(
        rank=rank,
        place=samples.place,
        is_long_step=samples.number == 0,
        step=samples.step,
        taken_s=state.unix_s(received.t_ns),
        samples=samples.samples,
        held_pct=100.0 * samples.held_ms / max(1, samples.lasted_ms),
        calls=tuple(calls),
        workers=tuple(_worker_calls(state, received)) if samples.place == "data" else (),
    )


def _worker_calls(state: RunState, received: ReceivedSamples) -> Iterator[str]:
    if received.rank < len(state.ranks):
        for t_ns, call in state.ranks[received.rank].worker_calls.values():
            if call and abs(t_ns - received.t_ns) < WORKER_CALLS_NS:
                yield call
