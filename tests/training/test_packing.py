"""Step records become messages: layouts and generations, microseconds, batches without gaps."""

from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES
from ddptop.protocol.messages import Flag, Layout, Message, OwnTime, Phase, Steps
from ddptop.training.bucket_timing import BucketKey
from ddptop.training.packing import LayoutTracker, pack_steps
from ddptop.training.step_record import UNKNOWN_NS, StepRecord

MS = 1_000_000


def key(index: int, size: int, model: int = 0) -> BucketKey:
    return BucketKey(model, index, size, size, None, "torch.float32", "")


def step(number: int, keys: list[BucketKey], *, detail: bool = True, late: int = 0) -> StepRecord:
    begin = 10_000_000_000 + number * 20 * MS
    calls = [[k, begin + (5 + i) * MS, begin + (6 + i) * MS + late] for i, k in enumerate(keys)]
    return StepRecord(
        number, begin, begin + 20 * MS, MS, 2 * MS, 10 * MS, 3 * MS,
        begin + MS, begin + 4 * MS, begin + 15 * MS, begin + 14 * MS,
        1, int(Flag.DETAIL) if detail else 0, 7_000, 0.5, calls if detail else [],
    )  # fmt: skip


def packed(records: list[StepRecord], tracker: LayoutTracker | None = None) -> list[Message]:
    return list(pack_steps(records, tracker or LayoutTracker({})))


def test_a_step_in_which_ddp_rebuilds_its_buckets_has_no_detail() -> None:
    """Between its micro-steps, where all of them are all-reduced: the first layout would stay for ever."""
    tracker = LayoutTracker({})
    rebuilt = [key(0, 400), key(1, 500)]
    (first,), after = packed([step(0, [key(0, 900), *rebuilt])], tracker), packed([step(1, rebuilt)], tracker)
    assert isinstance(first, Steps)
    assert (first.rows[0].cells, first.rows[0].flags & Flag.DETAIL) == ((), 0)
    layout, second = after
    assert isinstance(layout, Layout) and isinstance(second, Steps)
    assert [(bucket.index, bucket.bytes) for bucket in layout.buckets] == [(0, 400), (1, 500)]
    assert second.rows[0].cells[::3] == (0, 1)


def test_a_row_holds_the_step_in_microseconds() -> None:
    layout, steps = packed([step(0, [key(0, 100), key(1, 200)]), step(1, [key(0, 100), key(1, 200)])])
    assert isinstance(layout, Layout) and isinstance(steps, Steps)
    assert [bucket.bytes for bucket in layout.buckets] == [100, 200]
    assert (steps.first_step, steps.generation, steps.base_ns) == (0, 1, 10_000_000_000)
    row = steps.rows[1]
    assert (row.begin_us, row.wall_us) == (20_000, 20_000)
    assert (row.data_us, row.forward_us, row.backward_us, row.optimizer_us) == (1000, 2000, 10_000, 3000)
    assert (row.forward_at_us, row.backward_at_us, row.optimizer_at_us) == (1000, 4000, 15_000)
    assert row.cells == (0, 5000, 1000, 1, 6000, 1000)
    assert row.cost_us == 7
    for message in (layout, steps):
        assert decode(encode(message)) == message


def test_a_row_says_what_of_the_step_is_own_time() -> None:
    waits = [[int(Phase.OTHER), 100_000], [int(Phase.FORWARD), 30_000], [int(Phase.OTHER), 50_400]]
    known = step(0, [])._replace(
        exposed=2 * MS + 999, before_forward=11_000, before_backward=12_000, before_optimizer=-5, waits=waits
    )
    (steps,) = packed([known, step(1, [])._replace(exposed=UNKNOWN_NS + 3)])
    assert isinstance(steps, Steps)
    assert steps.rows[0].own == OwnTime(2000, 11, 12, 0, 0, 30, 0, 0, 150, buffers=0)
    assert steps.rows[1].own == OwnTime(-1, 0, 0, 0, 0, 0, 0, 0, 0, buffers=0)
    assert decode(encode(steps)) == steps


def test_a_late_completion_stamp_is_held_to_the_end_of_backward() -> None:
    _, steps = packed([step(0, [key(0, 100)], late=50 * MS)])
    assert isinstance(steps, Steps)
    assert steps.rows[0].cells == (0, 5000, 9000)


def test_an_end_that_was_never_stamped_is_unknown() -> None:
    record = step(0, [key(0, 100)])
    record.calls[0][2] = 0
    _, steps = packed([record])
    assert isinstance(steps, Steps)
    assert steps.rows[0].cells == (0, 5000, -1)


def test_rebuilt_buckets_start_a_new_generation() -> None:
    old, new = [key(0, 300)], [key(0, 100), key(1, 200)]
    messages = packed([step(0, old), step(1, new), step(2, [], detail=False), step(3, new)])
    kinds = [type(message).__name__ for message in messages]
    assert kinds == ["Layout", "Steps", "Layout", "Steps"]
    assert isinstance(messages[3], Steps)
    assert (messages[3].generation, messages[3].first_step, len(messages[3].rows)) == (2, 1, 3)


def test_a_second_model_extends_the_layout_and_keeps_the_first() -> None:
    messages = packed([step(0, [key(0, 100)]), step(1, [key(0, 50, model=1)])])
    last = [message for message in messages if isinstance(message, Layout)][-1]
    assert [(bucket.model, bucket.bytes) for bucket in last.buckets] == [(0, 100), (1, 50)]


def test_a_gap_in_step_numbers_starts_a_new_batch() -> None:
    messages = packed([step(n, [], detail=False) for n in (0, 1, 5, 6)])
    assert [(m.first_step, len(m.rows)) for m in messages if isinstance(m, Steps)] == [(0, 2), (5, 2)]


def test_batches_stay_under_the_limit_of_the_link() -> None:
    keys = [key(index, 1000 + index) for index in range(400)]
    messages = packed([step(number, keys) for number in range(30)])
    steps = [message for message in messages if isinstance(message, Steps)]
    assert sum(len(message.rows) for message in steps) == 30
    assert max(len(encode(message)) for message in messages) <= MAX_RANK_MESSAGE_BYTES


def test_parameter_counts_come_from_torch_where_the_bucket_does_not_tell() -> None:
    layout = packed([step(0, [key(0, 100)])], LayoutTracker({(0, 0): 6}))[0]
    assert isinstance(layout, Layout)
    assert layout.buckets[0].parameters == 6
