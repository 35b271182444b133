"""Frames over two pipes: whole in any pieces, and nothing else is taken for one."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.limits import MAX_FRAME_BYTES
from ddptop.transport import stdio
from ddptop.transport.stdio import (
    FROM_FAR,
    FROM_NEAR,
    GREETING,
    FramePipe,
    FrameReader,
    PipeFrame,
    RelayError,
    RelayHello,
    from_json,
    pack_pipe_frame,
    to_json,
)

FRAMES = [PipeFrame(stdio.STATE, b"\n" * 70_000), PipeFrame(stdio.BEAT, b"1"), PipeFrame(stdio.HELLO, b"")]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 30_000), max_size=20), st.binary(max_size=300))
def test_frames_come_whole_in_any_pieces_after_anything_a_shell_printed(
    cuts: list[int], banner: bytes
) -> None:
    assume(GREETING not in banner)  # hypothesis takes it from the source; what prints it is a relay
    data = banner + GREETING[:5] + GREETING + b"".join(pack_pipe_frame(*frame) for frame in FRAMES)
    reader, frames = FrameReader(FROM_FAR, greeted=False), []
    for cut in [*cuts, len(data)]:
        frames += reader.take_bytes(data[:cut])
        data = data[cut:]
    assert frames == FRAMES


def test_what_is_no_ddptop_is_given_up() -> None:
    reader = FrameReader(FROM_FAR, greeted=False)
    with pytest.raises(ProtocolError, match="no ddptop answers"):
        for _ in range(5):
            reader.take_bytes(b"x" * 65_536)


@pytest.mark.parametrize(
    "data",
    [
        pack_pipe_frame(stdio.CREDIT, b"")[:5] + b"x",
        b"Z" + struct.pack(">I", 0) + b"\n",
        stdio.STATE + struct.pack(">I", MAX_FRAME_BYTES + 1),
        stdio.STATE + struct.pack(">I", 2**32 - 1),
        pack_pipe_frame(stdio.BEAT, b"12"),
    ],
)
def test_a_frame_that_cannot_be_is_refused_before_its_payload_comes(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameReader(FROM_FAR if data[:1] != stdio.CREDIT else FROM_NEAR, greeted=True).take_bytes(data)


def test_hello_and_error_are_checked() -> None:
    hello = RelayHello(1, "0.3", "aa11", "train", "gpu01")
    assert from_json(RelayHello, to_json(hello)) == hello
    error = RelayError(3, "no\x1b[2J such" + "x" * 9999)
    assert from_json(RelayError, to_json(error)).text.startswith("no[2J suchxxx")
    for bad in (b"", b"[]", b"{}", b'{"version": true}', to_json(hello).replace(b'"aa11"', b"7"), b"\xff"):
        with pytest.raises(ProtocolError):
            from_json(RelayHello, bad)


def test_a_full_pipe_blocks_nobody_and_an_end_is_seen() -> None:
    (near_in, far_out), (far_in, near_out) = os.pipe(), os.pipe()
    near = FramePipe(near_in, near_out, FrameReader(FROM_FAR, greeted=True))
    far = FramePipe(far_in, far_out, FrameReader(FROM_NEAR, greeted=True))
    payload = bytes(1 << 20)
    far.send_frame(stdio.STATE, payload)
    assert far.unsent
    frames: list[PipeFrame] = []
    while far.unsent:
        frames += near.receive_frames()
        far.flush()
    frames += near.receive_frames()
    assert frames == [PipeFrame(stdio.STATE, payload)]
    near.send_frame(stdio.CREDIT, b"c")
    assert far.receive_frames() == [PipeFrame(stdio.CREDIT, b"c")]
    os.close(far_out)
    assert near.receive_frames() == []
    assert near.ended
    os.close(near_in)
    os.close(far_in)
    near.send_frame(stdio.CREDIT, b"c")  # a closed pipe raises nothing
    assert near.unsent == 0
    os.close(near_out)
