"""Past its limit a recording gives up bucket detail first, then steps, never events."""

from __future__ import annotations

import os
from pathlib import Path

from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Event, Flag, Received, Steps
from ddptop.recording.reader import Recording
from ddptop.recording.thinning import Thinner
from ddptop.recording.writer import Writer

from .made_up import NS, START_NS, steps

LIMIT = 60_000


def test_detail_goes_first_then_steps_and_never_events(tmp_path: Path) -> None:
    path = tmp_path / "thin.ddptop"
    writer = Writer(path, limit_bytes=LIMIT)
    notes = [writer.note]
    events = 0
    for number in range(3000):
        t_ns = START_NS + number * NS
        for rank in range(2):
            message = steps(number * 4, 4, rank)
            body = encode(message)
            writer.add(Received(t_ns, rank, 1000 + rank, number + 1, message), body)
        if number % 10 == 0:
            event = Event("mute", t_ns, -1, number * 4, {"noise": os.urandom(20).hex()})
            writer.add(Received(t_ns, -1, 0, 0, event), encode(event))
            events += 1
        writer.flush()
        if writer.note != notes[-1]:
            notes.append(writer.note)
    writer.close()
    assert notes[0] is None
    assert notes[1] == "recording past its limit: bucket detail is left out"
    assert "every 2th" not in str(notes) and "of 2 steps" in str(notes[2])
    with Recording.open(path) as recording:
        records = list(recording.records())
    assert sum(r.message.kind == "mute" for r in records if isinstance(r.message, Event)) == events
    told = [
        r.message.fields["every"]
        for r in records
        if isinstance(r.message, Event) and r.message.kind == "thinned"
    ]
    assert told == sorted(told) and told[0] == 1 and len(told) == len(notes) - 1

    rows = [(m.message.first_step + i, r) for m in records if isinstance(m.message, Steps) and m.rank == 0
            for i, r in enumerate(m.message.rows)]  # fmt: skip
    bare = next(number for number, (_, row) in enumerate(rows) if not row.cells)
    assert all(row.cells and row.flags & Flag.DETAIL for _, row in rows[:bare])
    assert not any(row.cells or row.flags & Flag.DETAIL for _, row in rows[bare:])
    numbers = [step for step, _ in rows]
    assert numbers[:bare] == list(range(bare)), "no step was given up before all detail was"
    assert 500 < len(numbers) < 6000
    other = [m.message.first_step + i for m in records if isinstance(m.message, Steps) and m.rank == 1
             for i in range(len(m.message.rows))]  # fmt: skip
    assert numbers == other, "all ranks keep the same steps"


def test_a_kept_step_keeps_its_figures() -> None:
    thinner = Thinner(1000)
    thinner.look(1260)
    assert thinner.every == 2
    batch = steps(7, 4, 0)
    kept = list(thinner.thin(batch))
    assert [message.first_step for message in kept] == [8, 10]
    assert all(message.base_ns == batch.base_ns for message in kept)
    assert kept[0].rows[0] == batch.rows[1]._replace(cells=(), flags=0)


def test_the_rule_never_relaxes() -> None:
    thinner = Thinner(1000)
    seen = []
    for size in (900, 1001, 1100, 1251, 1301, 1352, 900):
        seen.append((thinner.look(size), thinner.thins, thinner.every))
    assert seen == [
        (False, False, 1),
        (True, True, 1),
        (False, True, 1),
        (True, True, 2),
        (True, True, 4),
        (True, True, 8),
        (False, True, 8),
    ]


def test_a_resumed_recording_goes_on_thinning(tmp_path: Path) -> None:
    path = tmp_path / "thin.ddptop"
    writer = Writer(path, limit_bytes=500)
    message = steps(0, 50, 0)
    writer.add(Received(START_NS, 0, 1000, 1, message), encode(message))
    writer.close()
    again = Writer(path, limit_bytes=500, resume=True)
    assert again.note is not None
    again.close()
