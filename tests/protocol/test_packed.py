"""Values that are read together are those that msgpack reads one by one."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddptop.protocol.checks import ProtocolError
from ddptop.protocol.packed import Bodies, Packed, constant, is_constant

integers = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [0, 127, 128, 255, 256, 2**16, 2**32, -1, -32, -33, -128, -129, -(2**31), -(2**31) - 1]
)
short = st.text(max_size=7)


def packed(values: list[Any]) -> tuple[Packed, np.ndarray]:
    bodies = Bodies.of([*map(msgpack.packb, values)])
    return Packed(bodies.data, bodies.begins), bodies.begins + bodies.sizes


@given(st.lists(integers, min_size=1))
def test_integers(values: list[int]) -> None:
    fields, ends = packed(values)
    assert fields.integers().tolist() == values
    assert fields.at.tolist() == ends.tolist()


@given(st.lists(integers | st.floats(allow_nan=False) | st.none() | short, min_size=1))
def test_numbers_texts_and_none(values: list[Any]) -> None:
    fields, ends = packed(values)
    found = fields.values().tolist()
    assert found == values
    assert [*map(type, found)] == [*map(type, values)]
    assert fields.at.tolist() == ends.tolist()


@given(st.lists(st.binary(max_size=300), min_size=1))
def test_bytes(values: list[bytes]) -> None:
    fields, ends = packed(values)
    sizes = fields.lengths()
    assert sizes.tolist() == [*map(len, values)]
    first = fields.rows(len(values[0]), np.arange(1))
    assert first[0].tobytes() == values[0]
    fields.skip(sizes)
    assert fields.at.tolist() == ends.tolist()


@pytest.mark.parametrize("value", [None, "", "x", 7, 0.5])
def test_all_none_or_empty_take_no_memory(value: Any) -> None:
    values = packed([value] * 5)[0].values()
    assert values.tolist() == [value] * 5
    assert is_constant(values) == (not value)
    assert is_constant(constant(value, 5))


@pytest.mark.parametrize("wrong", [2**63, True, b"1", [1], {}, "1" * 32])
def test_another_type_is_refused(wrong: object) -> None:
    for values in ([wrong], [7, wrong], [None, wrong]):
        with pytest.raises(ProtocolError):
            packed(values)[0].values()
    with pytest.raises(ProtocolError):
        packed([7, wrong])[0].integers()


@pytest.mark.parametrize("wrong", [1.5, None, "text"])
def test_what_is_no_integer_is_refused(wrong: object) -> None:
    with pytest.raises(ProtocolError):
        packed([7, wrong])[0].integers()
    with pytest.raises(ProtocolError):
        packed([b"", wrong])[0].lengths()


@given(
    st.lists(st.tuples(st.integers(-1, 2**16), st.integers(0, 2**62), st.binary(min_size=1, max_size=300)))
)
def test_records_are_read_as_msgpack_arrays(records: list[tuple[int, int, bytes]]) -> None:
    bodies = Bodies.of([body for *_, body in records])
    heads = np.array([head for *head, _ in records], np.int64).reshape(-1, 2).T
    data, ends = bodies.records(heads)
    unpacker = msgpack.Unpacker(use_list=False)
    for (rank, number, body), begin, end in zip(records, [0, *ends], ends, strict=False):
        unpacker.feed(data[begin:end])
        assert unpacker.unpack() == (rank, number, body)
    assert len(data) == (ends[-1] if len(ends) else 0)
