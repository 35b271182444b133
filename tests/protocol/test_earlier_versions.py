"""What earlier versions send is understood, on the links and in recordings, and decoded to one form.

`tests/recording/test_old_recordings.py` has whole recordings.
"""

from __future__ import annotations

import msgpack
import pytest

from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.hosts import HostUsage
from ddptop.protocol.machine import Usage
from ddptop.protocol.message_run import StepMessages
from ddptop.protocol.messages import UNKNOWN_OWN_TIME, Bye, Clock, Message, OwnTime, StepRow, Steps
from ddptop.protocol.step_columns import decode_steps
from ddptop.protocol.step_rows import valid_parts

TIMES = (0, 21_000, 300, 4_000, 9_000, 800, 310, 5_000, 15_000, 1, 1, 30)
CELLS = (0, 6_000, 900, 1, 7_000, -1)
OWN = OwnTime(-1, 10, 20, 30, 0, 0, 5, 0, 40, 3, 25, 4096, 1, 30)
ROWS = (
    StepRow(*TIMES, 0.41, CELLS, OWN),
    StepRow(*TIMES, None, (), OWN._replace(exposed=7)),
    StepRow(*TIMES, float("inf"), CELLS[:3], OWN),
)
HOST_USAGE = HostUsage(10**15, 12.5, 1 << 36, 1e6, None, 160_000, 3, None, 0)


def steps_with(n_own_fields: int) -> Steps:
    """The same steps of a version that measures only so many fields of `OwnTime`."""
    own_times = [(*row.own[:n_own_fields], *UNKNOWN_OWN_TIME[n_own_fields:]) for row in ROWS]
    rows = [row._replace(own=OwnTime(*own)) for row, own in zip(ROWS, own_times, strict=True)]
    return Steps(3, 120, 10**15, tuple(rows))


def in_rows(n_own_fields: int, rows: tuple[StepRow, ...] = ROWS) -> bytes:
    """STEPS in rows, with so many fields of `OwnTime`; 0.1.0 had none."""
    own = [number for row in rows for number in row.own[:n_own_fields]]
    fields = [2, 3, 120, 10**15, [[*row[:13], *row.cells] for row in rows], *([own] if n_own_fields else [])]
    return msgpack.packb(fields)


def in_columns(n_own_fields: int) -> bytes:
    """STEPS in columns, with so many fields of `OwnTime`."""
    *head, planes, n_rows, width = msgpack.unpackb(encode(Steps(3, 120, 10**15, ROWS)))
    size, earlier_width = len(planes) // 4, width - len(OWN) + n_own_fields
    parts = [planes[begin : begin + size] for begin in range(0, len(planes), size)]
    kept = b"".join(part[: n_rows * earlier_width] + part[n_rows * width :] for part in parts)
    return msgpack.packb([*head, kept, n_rows, earlier_width])


EARLIER_STEPS = [
    *((in_rows(n_fields), n_fields) for n_fields in (0, 9, 10, 12)),
    *((in_columns(n_fields), n_fields) for n_fields in (10, 12, 13)),
]


@pytest.mark.parametrize(("body", "n_own_fields"), EARLIER_STEPS)
def test_what_an_earlier_version_does_not_send_of_each_row_is_unknown(body: bytes, n_own_fields: int) -> None:
    expected = steps_with(n_own_fields)
    today = Steps(3, 120, 10**15, ROWS)
    assert decode(body) == expected
    assert decode_steps([body, encode(today)]) == [expected, today]
    together = StepMessages.decoded([encode(today), body])
    assert together is not None and [*together.messages()] == [today, expected]
    assert valid_parts(body) == ([expected], [])
    assert decode(encode(expected)) == expected


def test_one_wrong_row_of_an_earlier_version_is_left_out() -> None:
    wrong = (*ROWS[:2], ROWS[2]._replace(wall_us=-1))
    with pytest.raises(ProtocolError):
        decode(in_rows(0, wrong))
    assert valid_parts(in_rows(0, wrong)) == ([Steps(3, 120, 10**15, steps_with(0).rows[:2])], [122])


def with_fields(message: Message, n_fields: int) -> bytes:
    """The message as before its last fields were added."""
    return msgpack.packb(msgpack.unpackb(encode(message))[: 1 + n_fields])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (with_fields(Bye(5, "finished", 7), 2), Bye(5, "finished")),
        (with_fields(Clock(5, "node1", -7, 80_000, 3, 9), 4), Clock(5, "node1", -7, 80_000)),
        (with_fields(Clock(5, "node1", -7, 80_000, 3, 9), 5), Clock(5, "node1", -7, 80_000, 3)),
        (with_fields(Usage(5, 1 << 30, 99.5, 40.0, 5, 2), 4), Usage(5, 1 << 30, 99.5, 40.0)),
        (with_fields(HOST_USAGE, 9), HOST_USAGE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_fields_that_were_added_to_a_message_have_their_default(body: bytes, message: Message) -> None:
    assert decode(body) == message
