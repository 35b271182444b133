"""Messages that are added together: what is kept and what is counted are as with each added alone."""

import os

import numpy as np
import pytest

from ddptop.protocol.codec import encode
from ddptop.protocol.message_run import EncodedRun, Readings, StepMessages
from ddptop.protocol.messages import Clock, Layout, Progress, Received, Steps
from ddptop.recording import writer as writer_module
from ddptop.recording.reader import Recording
from ddptop.recording.records import BlockBuilder
from ddptop.recording.writer import Writer
from tests.made_up_run import GIB, NS, START_NS, hello, layout, progress, run_message, steps

FLUSH_BYTES, RUNS, WORLD, PAUSE_NS = 2_500, 12, 4, 2 * NS
START = [
    Received(START_NS, -1, 0, 0, run_message()),
    *(Received(START_NS, rank, 1000 + rank, 0, hello(rank, WORLD)) for rank in range(WORLD)),
    *(Received(START_NS, rank, 1000 + rank, 1, layout(3)) for rank in range(WORLD)),
]


def of_a_moment(number):
    """What is read together: steps of several ranks and sizes, heartbeats, and clocks of two hosts; the
    second half arrived before the first, and a LAYOUT is to be added alone."""
    begin_ns, first = START_NS + number * PAUSE_NS, number * 40
    for turn in range(8):
        t_ns = begin_ns + (turn + 4) % 8 * NS // 100
        for rank in range(WORLD):
            some = steps(first + 5 * turn, 1 + (turn + rank) % 5, rank, buckets=3)
            yield Received(t_ns, rank, 1000 + rank, 2 + number * 8 + turn, some)
            if (turn + rank) % 3 == 0:
                beat = progress(t_ns, first + 5 * turn, sequence=turn)
                yield Received(t_ns, rank, 1000 + rank, 0, beat)
        if turn % 3 == 1:
            yield Received(t_ns, -1, 77, 1 + number * 8 + turn, Clock(t_ns, "b", turn, 1000))
        if turn == 2:
            yield Received(t_ns, 0, 1000, 0, layout(3 + number))


def every_message():
    return [received for number in range(RUNS) for received in of_a_moment(number)]


def rows_of(messages):
    return sum(len(one.message.rows) for one in messages if isinstance(one.message, Steps))


def run_of(messages, in_columns):
    """A run of them and the places of those that are added together; clocks in columns alone are."""
    if not in_columns:
        run = EncodedRun.of_encoded([(one, encode(one.message)) for one in messages])
    else:
        bodies = [encode(one.message) for one in messages]
        at = {
            kind: [at for at, one in enumerate(messages) if type(one.message) is kind]
            for kind in (Steps, Clock, Progress)
        }
        parts = {kind: [bodies[place] for place in places] for kind, places in at.items()}
        readings = [
            Readings.decoded(kind, np.array(at[kind], np.int64), parts[kind]) for kind in (Clock, Progress)
        ]
        apart = [*enumerate(messages)]
        others = [(place, one) for place, one in apart if type(one.message) not in at]
        heads = np.array([one[:4] for one in messages], np.int64).T
        of_steps = StepMessages.decoded(parts[Steps])
        assert of_steps is not None and None not in readings
        run = EncodedRun(heads, np.array(at[Steps], np.int64), of_steps, others, bodies, readings)
    together = (Steps, Progress, Clock) if in_columns else (Steps, Progress)
    places = [place for place, one in enumerate(messages) if isinstance(one.message, together)]
    return run, np.array(places, np.int64)


def by_add(writer, run, places):
    """Each as any other message."""
    for place in places.tolist():
        writer.add(run.received(place), run.body(place))


def record(path, how, in_columns, limit_bytes=GIB, disk=None):
    if disk is not None:
        disk.room = None
    writer = Writer(path, limit_bytes=limit_bytes)
    for received in START:
        writer.add(received, encode(received.message))
    for number in range(RUNS):
        messages = [*of_a_moment(number)]
        if disk is not None:
            disk.room = 2 if number == 3 else None if number == disk.until else disk.room
        how(writer, *run_of(messages, in_columns))
        for received in messages:
            if isinstance(received.message, Layout) or (
                isinstance(received.message, Clock) and not in_columns
            ):
                writer.add(received, encode(received.message))
        if number % 3:  # otherwise something waits for the next
            writer.write_due(START_NS + (number + 1) * PAUSE_NS)
    end = Received(START_NS + RUNS * PAUSE_NS, -1, 0, 0, run_message("finished", 0))
    writer.add(end, encode(end.message))
    writer.close()
    with Recording.open(path) as recording:
        never_closed = "it was never closed: its last moments may be missing"
        assert recording.damage == (never_closed if writer.unwritten else None)
        blocks = [recording.read_block(at) for at in range(recording.blocks_until(1 << 62))]
        for at, block in enumerate(blocks):
            built, before = BlockBuilder(), 0
            for received in block:
                before = built.bytes
                built.add(received, encode(received.message))
            # What the writer itself adds, that it keeps less, does not end a block.
            assert before < FLUSH_BYTES + 300, "it should have ended before its last message"
            assert recording.block_summary(at) == built.build_block()[0]
    counted = (writer.left_out, writer.without_detail, writer.unwritten, writer.note)
    return path.read_bytes(), [one for block in blocks for one in block], counted


class Disk:
    """A disk that takes `room` frames more, and then nothing; None: everything."""

    def __init__(self, monkeypatch, until):
        self.room, self.refused, self.until, real = None, 0, until, os.write

        def write(descriptor, data):
            if self.room == 0:
                self.refused += 1
                real(descriptor, data[: len(data) // 2])
                raise OSError(28, "No space left on device")
            if self.room is not None:
                self.room -= 1
            return real(descriptor, data)

        monkeypatch.setattr(os, "write", write)


CASES = {"plain": GIB, "thins": 40_000, "full": 6_000, "disk": GIB, "disk to the end": GIB}


@pytest.mark.parametrize("in_columns", [False, True], ids=["objects", "columns"])
@pytest.mark.parametrize("case", CASES)
def test_together_as_each_alone(tmp_path, monkeypatch, case, in_columns):
    disk = Disk(monkeypatch, RUNS if case == "disk to the end" else 6)

    def recorded(how, name):
        return record(tmp_path / name, how, in_columns, CASES[case], disk if "disk" in case else None)

    monkeypatch.setattr(writer_module, "FLUSH_BYTES", FLUSH_BYTES)
    monkeypatch.setattr(writer_module, "FLUSH_SHARE", 1)
    data, kept, counted = recorded(Writer.add_passing, "together.ddptop")
    _, alike, counted_alike = recorded(by_add, "alike.ddptop")
    left_out, without_detail, unwritten, note = counted
    missing = rows_of(every_message()) - rows_of(kept)
    assert (left_out, unwritten) == ((0, missing) if case == "disk to the end" else (missing, 0))
    if case in ("plain", "disk"):
        assert kept == alike
        assert (counted, left_out, without_detail) == (counted_alike, 0, 0)
        assert (note is None, bool(disk.refused)) == (case == "plain", case == "disk")
    elif case == "disk to the end":
        assert unwritten > 0
        assert kept == alike[: len(kept)] or alike == kept[: len(alike)]
    else:
        assert len(data) <= CASES[case]
        assert left_out > 0
        assert ("nothing more" in note) == (case == "full")
