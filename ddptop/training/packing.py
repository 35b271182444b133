"""What a rank sends of its steps: records as messages (layouts, microseconds, batches)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ddptop.protocol.limits import MAX_ROWS
from ddptop.protocol.messages import AlikeRows, Bucket, Flag, Layout, OwnTime, Phase, StepRow, Steps
from ddptop.training.bucket_timing import BucketKey
from ddptop.training.step_record import IN_BUFFERS, BucketCall, LeftOutSteps, StepRecord, Wait

CELLS_PER_MESSAGE = 6_000
"""Integers of bucket detail in one message: five bytes each at most keep it under the 64 KiB limit."""


class LayoutTracker:
    """Gives every bucket its number in the rank's layout, and notices when DDP has rebuilt its buckets."""

    def __init__(self, parameters: Mapping[tuple[int, int], int]) -> None:
        """`parameters`: number of parameters in the bucket (model, index), where that is known."""
        self.generation = 0
        self._parameters = parameters
        self._numbers: dict[BucketKey, int] = {}
        self._last: list[BucketKey] = []
        self._last_numbers: list[int] = []
        self._sent: Layout | None = None

    def resolve_numbers(self, calls: Sequence[BucketCall]) -> list[int]:
        """The layout numbers of these all-reduces; a bucket not seen before starts a new generation."""
        keys = [call[0] for call in calls]
        if keys != self._last:
            if any(key not in self._numbers for key in keys):
                self._start_generation(keys)
            self._last, self._last_numbers = keys, [self._numbers[key] for key in keys]
        return self._last_numbers

    def _start_generation(self, keys: Sequence[BucketKey]) -> None:
        rebuilt = {key.model for key in keys if key not in self._numbers}
        kept = [key for key in self._numbers if key.model not in rebuilt]
        new = [key for key in dict.fromkeys(keys) if key.model in rebuilt]
        ordered = sorted(kept + new, key=lambda key: (key.model, key.index))
        self._numbers = {key: number for number, key in enumerate(ordered)}
        self.generation += 1

    def make_layout(self) -> Layout:
        """The present layout as a message."""
        self._sent = Layout(self.generation, tuple(self._make_bucket(key) for key in self._numbers))
        return self._sent

    def unsent_layouts(self) -> list[Layout]:
        """The present layout, if it is not as last sent: its parameters may have become known."""
        # Read before `make_layout`, which replaces it.
        sent = self._sent
        return [] if not self.generation or self.make_layout() == sent else [self.make_layout()]

    def forget_sent(self) -> None:
        """Have `unsent_layouts` give the layout again: the collector is another one."""
        self._sent = None

    def _make_bucket(self, key: BucketKey) -> Bucket:
        n_parameters = key.parameters
        return Bucket(
            model=key.model,
            index=key.index,
            bytes=key.bytes,
            wire_bytes=key.wire_bytes,
            parameters=self._parameters.get((key.model, key.index)) if n_parameters is None else n_parameters,
            dtype=str(key.dtype).removeprefix("torch."),
            hook=key.hook,
        )


def pack_steps(
    records: Sequence[StepRecord | LeftOutSteps], tracker: LayoutTracker
) -> Iterator[Layout | Steps]:
    """Turn finished steps into STEPS messages, with a LAYOUT before the first step of a new generation."""
    rows: list[StepRow] = []
    first = base = room = 0
    for record in records:
        if isinstance(record, LeftOutSteps):
            if rows:
                yield Steps(tracker.generation, first, base, tuple(rows))
                rows = []
            yield from _pack_left_out(record, tracker.generation)
            continue
        before = tracker.generation
        if record.calls and _is_of_two_layouts(record.calls):
            record = record._replace(calls=(), flags=record.flags & ~Flag.DETAIL)
        calls = record.calls
        numbers = tracker.resolve_numbers(calls) if calls else ()
        # Before the row is added: a message must not exceed what the link takes.
        room -= 3 * len(calls)
        if rows and (
            room < 0
            or len(rows) >= MAX_ROWS
            or tracker.generation != before
            # Rows have no numbers: the steps of a message follow each other.
            or record.step != first + len(rows)
        ):
            yield Steps(before, first, base, tuple(rows))
            rows = []
        if tracker.generation != before:
            yield tracker.make_layout()
        if not rows:
            first, base, room = record.step, record.begin, CELLS_PER_MESSAGE - 3 * len(calls)
        rows.append(_make_row(record, base, _make_cells(record, numbers) if calls else ()))
    if rows:
        yield Steps(tracker.generation, first, base, tuple(rows))


def _pack_left_out(left_out: LeftOutSteps, generation: int) -> Iterator[Steps]:
    begin = left_out.begin
    for first in range(0, len(left_out.ends), MAX_ROWS):
        ends = left_out.ends[first : first + MAX_ROWS]
        begins_us = [0, *((end - begin) // 1000 for end in ends[:-1])]
        walls_us = [(end - before) // 1000 for before, end in pairwise((begin, *ends))]
        yield Steps(generation, left_out.step + first, begin, AlikeRows(_LEFT_OUT, begins_us, walls_us))
        begin = ends[-1]


def _is_of_two_layouts(calls: Sequence[BucketCall]) -> bool:
    """Whether DDP has rebuilt its buckets between two backward passes of a step. Those before would stay in
    the layout for ever."""
    keys = {call[0] for call in calls}
    return len({(key.model, key.index) for key in keys}) < len(keys)


def _make_row(record: StepRecord, base: int, cells: tuple[int, ...]) -> StepRow:
    """A step in microseconds. Positional and flat: this runs for every step, on a thread that has the GIL."""
    (
        _step, begin, end, data, forward, backward, optimizer,
        forward_at, backward_at, optimizer_at, _backward_end,
        micro_steps, flags, cost, loss, _calls, _marks,
        exposed, before_forward, before_backward, before_optimizer, waits, cpu_wait, gc, elements,
        first_optimizer,
    ) = record  # fmt: skip
    if flags & Flag.SHADOW:  # only its begin and end are known
        begin_us, wall_us = (begin - base) // 1000, (end - begin) // 1000
        return _LEFT_OUT._replace(begin_us=begin_us, wall_us=wall_us, flags=flags, loss=loss)
    waited, in_buffers = _waited_us(waits) if waits else (_NOTHING_WAITED, 0)
    return StepRow(
        (begin - base) // 1000,
        (end - begin) // 1000,
        data // 1000,
        forward // 1000,
        backward // 1000,
        optimizer // 1000,
        (forward_at - begin) // 1000 if forward_at >= begin else -1,
        (backward_at - begin) // 1000 if backward_at >= begin else -1,
        (optimizer_at - begin) // 1000 if optimizer_at >= begin else -1,
        micro_steps,
        flags,
        cost // 1000,
        loss,
        cells,
        OwnTime._make(
            (
                exposed // 1000 if exposed >= 0 else -1,
                max(0, before_forward) // 1000,
                max(0, before_backward) // 1000,
                max(0, before_optimizer) // 1000,
                *waited,
                cpu_wait // 1000 if exposed >= 0 else -1,
                gc // 1000,
                elements,
                first_optimizer,
                in_buffers,
            )
        ),
    )


_NOTHING_WAITED = (0, 0, 0, 0, 0)
_LEFT_OUT = StepRow(
    0, 0, 0, 0, 0, 0, -1, -1, -1, 0, int(Flag.SHADOW), 0, None, (), OwnTime(-1, 0, 0, 0, *_NOTHING_WAITED)
)
"""Earlier versions read of it that own times are not known."""


def _waited_us(waits: Sequence[Wait]) -> tuple[tuple[int, ...], int]:
    """Microseconds waited while fetching data, in forward, in backward, in the optimizer and elsewhere; and
    how many of these in DDP's broadcasts of buffers."""
    phases = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER)
    waited = tuple(sum(ns for wait_phase, ns in waits if wait_phase == phase) // 1000 for phase in phases)
    in_buffers = sum(ns for wait_phase, ns in waits if wait_phase == IN_BUFFERS) // 1000
    # Both are rounded down apart: the part must not exceed the sum.
    return waited, max(-1, min(in_buffers, sum(waited)))


def _make_cells(record: StepRecord, numbers: Sequence[int]) -> tuple[int, ...]:
    """Number, ready and duration of each bucket all-reduce."""
    begin, latest = record.begin, record.backward_end
    cells: list[int] = []
    for number, (_key, ready, end) in zip(numbers, record.calls, strict=True):
        # A completion callback may run late; backward has waited for every bucket.
        end = min(end, latest) if latest >= ready else end
        cells += (number, max(0, ready - begin) // 1000, max(0, end - ready) // 1000 if end else -1)
    return tuple(cells)
