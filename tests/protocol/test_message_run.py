"""Messages that are decoded together are those that are decoded one by one."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddptop.protocol import limits
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.hosts import HostLink, HostUsage
from ddptop.protocol.machine import Disk, Gpu, Memory, OwnCost, Usage
from ddptop.protocol.message_run import EncodedRun, Readings
from ddptop.protocol.messages import Clock, Message, Progress, Received

times = st.integers(0, limits.MAX_NS)
counts = st.integers(0, limits.MAX_STEP)
known = st.none() | st.floats(0.0, 1e12)
sizes = st.none() | st.integers(0, limits.MAX_BYTES)
few = st.none() | counts
quantities = st.floats(0.0, 1e12)
LINK = HostLink("a", "b\x07", 1, 2, 3, 4, 5, 6)
KINDS: dict[type[Message], st.SearchStrategy[Any]] = {
    Progress: st.builds(
        Progress,
        *(times, counts, st.integers(0, 5), counts, counts, st.just(8), quantities, quantities, counts),
    ),
    Usage: st.builds(Usage, times, counts, quantities, known, few, first_core=few),
    Gpu: st.builds(
        Gpu,
        *(known, sizes, sizes, known, known, few, few, st.sampled_from([None, "", "a\x1bb"])),
        *(sizes, sizes, few, few, times),
    ),
    Memory: st.builds(Memory, times, *[counts] * 4),
    Disk: st.builds(Disk, times, counts),
    OwnCost: st.builds(OwnCost, times, quantities),
    Clock: st.builds(Clock, times, st.text(max_size=5), st.integers(-5, 5), times),
    HostUsage: st.builds(
        HostUsage,
        *(times, known, sizes, known, known, st.none() | times, counts, st.none() | st.text(max_size=4)),
        *(counts, st.none() | st.just((LINK,))),
    ),
}
GOOD: dict[type[Message], Message] = {
    Progress: Progress(1, 2, 3, -1, 4, 8, 1.5, 0.25, 0),
    Usage: Usage(1, 2, 3.0),
    Memory: Memory(1, 2, 3, 4, 5),
    Disk: Disk(1, 2),
    OwnCost: OwnCost(1, 0.5),
    Gpu: Gpu(*[None] * 12, 7),  # type: ignore[arg-type]
    Clock: Clock(5, "b", -7, 3, 2, 1),
    HostUsage: HostUsage(1, None, 5, 1.0, 2.5, None, 0, None, 0),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_readings_in_columns_are_those_decoded_alone(kind: type[Message], data: st.DataObject) -> None:
    messages = data.draw(st.lists(KINDS[kind], min_size=1, max_size=6))
    bodies = [encode(message) for message in messages]
    readings = Readings.decoded(kind, np.arange(len(bodies)), bodies)
    assert readings is not None
    found, alone = [*readings.messages()], [*map(decode, bodies)]
    assert found == alone
    assert repr(found) == repr(alone), "an integer stays one"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_one_wrong_reading_is_left_to_be_decoded_alone(kind: type[Message]) -> None:
    body = encode(GOOD[kind])
    for place, value in (
        (1, -1),
        (1, True),
        (1, math.nan),
        (2, math.inf),
        (2, [1]),
        (1, 2**63),
        (1, 2**64 - 1),
    ):
        wrong = list(msgpack.unpackb(body))
        wrong[place] = value
        assert Readings.decoded(kind, np.arange(2), [body, msgpack.packb(wrong)]) is None
    another = encode(GOOD[Memory if kind is Usage else Usage])
    for other in (b"", body[:-1], body + b"\x00", another):
        assert Readings.decoded(kind, np.arange(2), [body, other]) is None


@given(st.lists(st.tuples(times, st.integers(-1, 2**16 - 1), st.integers(0, 2**63 - 1), counts)))
def test_records_are_msgpack_arrays(heads: list[tuple[int, int, int, int]]) -> None:
    messages = [Received(*head, Usage(at, 2, 3.0)) for at, head in enumerate(heads)]
    run = EncodedRun.of_encoded([(received, encode(received.message)) for received in messages])
    data, ends = run.records(np.arange(len(heads)))
    expected = [msgpack.packb((*received[:4], encode(received.message))) for received in messages]
    assert bytes(data) == b"".join(expected)
    assert ends.tolist() == np.cumsum([*map(len, expected)], dtype=np.int64).tolist()
