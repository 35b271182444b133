"""Wrong bits, lost sectors, and files that were made to do harm."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop.cli.find import RecordingEntry, recorded_id
from ddptop.cli.runs import of_recording
from ddptop.protocol.messages import Hello
from ddptop.recording.format import (
    BLOCK,
    COPY,
    FOOTER,
    HEADER,
    HISTORY,
    INDEX,
    MAGIC,
    BlockEntry,
    BlockSummary,
    block_payload,
    footer_payload,
    index_payload,
    pack_frame,
    walk_frames,
)
from ddptop.recording.reader import Recording, RecordingError
from ddptop.recording.records import BlockBuilder
from tests.made_up_run import a_run, write

from .flips import flipped, read

STEPS = 120


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "run.ddptop"
    write(path, a_run(STEPS, buckets=3))
    assert read(path) == (STEPS, False)
    return path.read_bytes()


def frames_of(path: Path) -> list[tuple[int, int, int]]:
    """(kind, begin, end) of every frame."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return [
            (one.kind, one.offset, one.end)
            for one in walk_frames(descriptor, len(MAGIC), path.stat().st_size)
        ]
    finally:
        os.close(descriptor)


def test_a_wrong_bit_costs_no_steps(whole: bytes, tmp_path: Path) -> None:
    found = list(flipped(whole, tmp_path / "run.ddptop", 40, seed=1))
    assert sum(one.steps for one in found) >= 0.97 * STEPS * len(found)
    assert all(one.told for one in found if one.steps < STEPS)


def test_a_wrong_bit_in_each_field_of_a_header_is_put_right(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.ddptop"
    path.write_bytes(whole)
    _, begin, _ = [one for one in frames_of(path) if one[0] == BLOCK][1]
    for at in (0, 4, 5, 6, 8, 10, 12, 16, 19):  # sync, kind, flags, reserved, length, sequence, crc
        broken = bytearray(whole)
        broken[begin + at] ^= 1
        path.write_bytes(broken)
        assert read(path) == (STEPS, True)
    broken = bytearray(whole)
    broken[0] ^= 1
    path.write_bytes(broken)
    assert read(path).steps == STEPS
    broken[1] ^= 1
    path.write_bytes(broken)
    with pytest.raises(RecordingError, match="not a ddptop recording"):
        Recording.open(path)


@pytest.mark.parametrize("close", [True, False])
def test_a_lost_sector_with_the_first_messages_costs_only_what_was_not_kept_twice(
    close: bool, tmp_path: Path
) -> None:
    path = tmp_path / "run.ddptop"
    write(path, a_run(STEPS, buckets=3), close=close)
    content = bytearray(path.read_bytes())
    blocks = [one for one in frames_of(path) if one[0] == BLOCK]
    for _, begin, end in blocks[:3]:
        if begin < blocks[2][1]:
            content[begin : min(begin + 512, end)] = bytes(min(512, end - begin))
    path.write_bytes(content)
    with Recording.open(path) as recording:
        sessions = {r.session for r in recording.records() if isinstance(r.message, Hello)}
        assert (sessions, recording.run.name) == ({1000, 1001}, "train-k7qf")
        assert "blocks cannot be read" in (recording.damage or "")
    assert read(path).steps > 0.8 * STEPS


def test_a_recording_without_copies_is_read_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockBuilder, "essential_records", b"")
    path = tmp_path / "run.ddptop"
    write(path, a_run(STEPS))
    assert COPY not in {kind for kind, _, _ in frames_of(path)}
    assert read(path) == (STEPS, False)


def a_file(*entries: BlockEntry, before: int = 0) -> bytes:
    """One block of nothing, and an INDEX that says this."""
    block = pack_frame(BLOCK, 0, block_payload(BlockSummary(1, 2, -1, -1, 0, 0), b""))
    index = pack_frame(INDEX, 1, index_payload(before, entries))
    return MAGIC + block + index + pack_frame(FOOTER, 2, footer_payload(len(MAGIC) + len(block)))


GOOD = BlockSummary(1, 2, -1, -1, 0, 0)
WRONG = {
    "offset beyond any file": a_file(BlockEntry(2**63, GOOD)),
    "offset of 2^64 - 1": a_file(BlockEntry(2**64 - 1, GOOD)),
    "offset behind the index": a_file(BlockEntry(10_000, GOOD)),
    "the same block twice": a_file(BlockEntry(8, GOOD), BlockEntry(8, GOOD)),
    "time that runs backwards": a_file(BlockEntry(8, GOOD._replace(first_ns=5))),
    "time before all time": a_file(BlockEntry(8, GOOD._replace(first_ns=-(2**63)))),
    "time after all time": a_file(BlockEntry(8, GOOD._replace(last_ns=2**63 - 1))),
    "a step beyond all steps": a_file(BlockEntry(8, GOOD._replace(first_step=0, last_step=2**63 - 1))),
    "a ring": a_file(BlockEntry(8, GOOD), before=8),
    "an index before the file": a_file(BlockEntry(8, GOOD), before=2**63),
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_an_index_that_says_what_cannot_be_is_passed_over_and_told(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "wrong.ddptop"
    path.write_bytes(content)
    item = RecordingEntry("wrong", path)
    entry = of_recording(item)
    assert "its index is damaged" in (entry.note or "")
    assert entry.state == "lost"
    assert recorded_id(path) == ""


def mutations(whole: bytes, count: int) -> Iterator[bytes]:
    """Payloads of frames changed here and there, their checksums made to fit."""
    chance = random.Random(3)
    nasty = [b"\xff" * 8, b"\x00" * 8, struct.pack("<Q", 2**63), struct.pack("<Q", len(MAGIC))]
    frames: list[tuple[int, bytes]] = []
    at = len(MAGIC)
    while at < len(whole):
        _, kind, _, _, length, _, _ = HEADER.unpack_from(whole, at)
        frames.append((kind, whole[at + HEADER.size : at + HEADER.size + length]))
        at += HEADER.size + length
    for _ in range(count):
        changed = list(frames)
        for _ in range(chance.choice([1, 1, 2, 5])):
            number = chance.randrange(len(changed))
            if chance.random() < 0.5:  # there are few of them, and much hangs on them
                number = chance.choice(
                    [i for i, (kind, _) in enumerate(frames) if kind in (INDEX, FOOTER, COPY)]
                )
            kind, payload = changed[number]
            changed[number] = (kind, changed_payload(chance, kind, payload, nasty))
        if chance.random() < 0.2:
            changed.append(chance.choice(changed))
        yield MAGIC + b"".join(pack_frame(kind, i, payload) for i, (kind, payload) in enumerate(changed))


def changed_payload(chance: random.Random, kind: int, payload: bytes, nasty: list[bytes]) -> bytes:
    packed = {BLOCK: 48, HISTORY: 0, COPY: 56}.get(kind)
    if packed is None or chance.random() < 0.5:
        return spoilt(chance, payload, nasty)
    try:
        raw = zlib.decompress(payload[packed:])
    except zlib.error:  # it has been changed before
        return payload
    return payload[:packed] + zlib.compress(spoilt(chance, raw, nasty), 1)


def spoilt(chance: random.Random, data: bytes, nasty: list[bytes]) -> bytes:
    if not data or chance.random() < 0.1:
        return data[: chance.randrange(len(data) + 1)]
    spoiled, at = bytearray(data), chance.randrange(len(data))
    piece = chance.choice([*nasty, chance.randbytes(1), bytes([data[at] ^ 1 << chance.randrange(8)])])
    spoiled[at : at + len(piece)] = piece
    return bytes(spoiled)


def test_a_file_made_to_do_harm_is_read_or_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "hostile.ddptop"
    tracemalloc.start()
    try:
        for content in mutations(whole, 30):
            path.write_bytes(content)
            try:
                with Recording.open(path) as recording:
                    for _ in recording.records():
                        pass
                    list(recording.tail())
                    recording.history_pieces()
                    recording.span_of_step(50)
                    assert recording.latest_run and recording.detail_every(before_ns=2**62) >= 1
                    assert recording.messages >= 0 and recording.damage != ""
            except RecordingError:
                continue
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_file_of_frames_that_are_none_takes_a_bounded_time(tmp_path: Path) -> None:
    """Each of them claims a megabyte: checking all of that for each would take minutes."""
    path = tmp_path / "slow.ddptop"
    false = HEADER.pack(b"\xd7DR1", BLOCK, 0, 0, 1 << 19, 0, 0)
    path.write_bytes(MAGIC + false * 100_000)
    with pytest.raises(RecordingError):
        Recording.open(path)
