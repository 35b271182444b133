"""Near its limit a recording gives up bucket detail, then steps, events last of all; none exceeds it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.collector.record import note_kind
from ddptop.protocol.codec import encode
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import Bye, Card, Event, Flag, Message, Received, Steps
from ddptop.recording.reader import Recording
from ddptop.recording.thinning import Thinner
from ddptop.recording.writer import Writer
from tests.made_up_run import NS, START_NS, STEP_US, feed_runs, hello, layout, progress, run_message, steps

LIMIT = 200_000


def test_detail_goes_first_then_steps_and_events_last(tmp_path: Path) -> None:
    path, chance = tmp_path / "thin.ddptop", random.Random(1)
    writer = Writer(path, limit_bytes=LIMIT)
    notes = [writer.note]
    events = 0
    for number in range(3000):
        t_ns = START_NS + number * NS
        for rank in range(2):
            message = steps(number * 4, 4, rank)
            body = encode(message)
            writer.add(Received(t_ns, rank, 1000 + rank, number + 1, message), body)
        if number % 100 == 0:
            event = Event("mute", t_ns, -1, number * 4, {"noise": chance.randbytes(20).hex()})
            writer.add(Received(t_ns, -1, 0, 0, event), encode(event))
            events += 1
        if number % 10 == 0:
            writer.flush()
        if writer.note != notes[-1]:
            notes.append(writer.note)
    writer.close()
    assert path.stat().st_size <= LIMIT
    assert notes[0] is None
    assert notes[1] == "recording near its limit: bucket detail is left out"
    assert "all but one of 2 steps" in str(notes[2])
    kinds = {note_kind(note) for note in notes if note is not None and "near" in note}
    assert kinds == {"recording near its limit"}, "it is said once in the launcher's terminal"
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
    assert 200 < len(numbers) < 6000
    other = [m.message.first_step + i for m in records if isinstance(m.message, Steps) and m.rank == 1
             for i in range(len(m.message.rows))]  # fmt: skip
    # A block may end between the messages of two ranks: then one keeps what the other no longer does.
    apart = set(numbers) ^ set(other)
    assert len(apart) <= 4 * len(told), "all ranks keep the same steps, but for a message at each change"


class Life:
    """A made-up run of any length: ranks that come and go, steps, readings, events, a collector that dies."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.limit = self.chance.choice((32 << 10, 96 << 10))
        self.path, self.t_ns, self.step, self.incarnation = path, START_NS, 0, 0
        self.world = self.chance.choice((1, 3, 40))
        self.rates = [self.chance.random() ** 2 for _ in range(4)]
        """How probable a restart of the ranks, of the collector, an event, and noise in it are."""
        self.writer = Writer(path, limit_bytes=self.limit)
        self.say(-1, run_message())
        self.join()

    def say(self, rank: int, message: Message) -> None:
        session = 0 if rank < 0 else 1000 * (self.incarnation + 1) + rank
        self.writer.add(Received(self.t_ns, rank, session, 1, message), encode(message))
        assert self.path.stat().st_size <= self.limit

    def join(self) -> None:
        for rank in range(self.world):
            session = 1000 * (self.incarnation + 1) + rank
            self.say(rank, hello(rank, self.world, session=session, incarnation=self.incarnation))
            self.say(rank, Card({"noise": self.chance.randbytes(100).hex()}))
            self.say(rank, layout())

    def goes_on(self, rounds: int) -> None:
        for number in range(rounds):
            self.t_ns += NS // 2
            for rank in range(self.world):
                self.say(
                    rank, steps(self.step, 4, rank, start_ns=self.t_ns - (self.step + 4) * STEP_US * 1000)
                )
                self.say(rank, progress(self.t_ns, self.step))
                self.say(rank, Usage(self.t_ns, number, 99.0))
            self.step += 4
            self.writer.write_due(self.t_ns)
            self._befalls()

    def _befalls(self) -> None:
        restart, death, event, noise = (self.chance.random() < rate / 10 for rate in self.rates)
        if restart:
            self.incarnation, self.step = self.incarnation + 1, 0
            self.join()
        if event:
            fields = {"noise": self.chance.randbytes(50).hex()} if noise else {}
            self.say(0, Event("warning", self.t_ns, 0, self.step, {"message": "slow", **fields}))
        if death:
            self.writer.close()
            with Recording.open(self.path) as recording:
                lasting = list(recording.lasting_messages())
            self.writer = Writer(self.path, limit_bytes=self.limit, resume=True)
            for received in lasting:
                self.writer.note_recorded(received)


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_no_run_however_long_exceeds_the_limit(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "long.ddptop"
    life = Life(path, seed)
    life.goes_on(3000 // life.world)
    life.say(-1, run_message("finished", 0))
    life.writer.close()
    assert life.limit / 2 < path.stat().st_size <= life.limit
    with Recording.open(path) as recording:
        assert recording.damage is None
        assert (recording.run.state, recording.latest_run.state) == ("live", "finished")
        reducer = Reducer()
        feed_runs(reducer, recording)
        thinned = [r.message.fields["every"] for r in recording.lasting_messages()
                   if isinstance(r.message, Event) and r.message.kind == "thinned"]  # fmt: skip
    assert thinned == sorted(thinned) and len(thinned) <= len(set(thinned)) + 2
    assert [one.message for one in reducer.state.log.all() if "stall" in one.kind] == []


def test_what_a_rank_says_again_to_a_new_collector_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "again.ddptop"
    card = Received(START_NS, 0, 1000, 1, Card({"torch": "2.13.0"}))
    for start in range(3):
        writer = Writer(path, limit_bytes=1 << 20, resume=start > 0)
        if start:
            with Recording.open(path) as recording:
                for received in recording.lasting_messages():
                    writer.note_recorded(received)
        writer.add(card._replace(seq=start + 1), encode(card.message))
        writer.close()
    with Recording.open(path) as recording:
        assert recording.messages == 1


def test_a_kept_step_keeps_its_figures() -> None:
    thinner = Thinner(1000)
    thinner.update_size(710)
    assert thinner.every == 2
    batch = steps(7, 4, 0)
    kept = list(thinner.thin_steps(batch))
    assert [message.first_step for message in kept] == [8, 10]
    assert all(message.base_ns == batch.base_ns for message in kept)
    assert kept[0].rows[0] == batch.rows[1]._replace(cells=(), flags=0)


def test_the_rule_never_relaxes() -> None:
    thinner = Thinner(1000)
    seen = []
    for size in (600, 601, 650, 701, 721, 741, 600):
        seen.append((thinner.update_size(size), thinner.thins, thinner.every))
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
    writer = Writer(path, limit_bytes=1 << 20)
    message = steps(0, 50, 0)
    writer.add(Received(START_NS, 0, 1000, 1, message), encode(message))
    writer.close()
    again = Writer(path, limit_bytes=int(path.stat().st_size / 0.65), resume=True)
    assert again.note is not None
    again.close()


def test_the_last_step_of_a_rank_that_leaves_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "end.ddptop"
    writer = Writer(path, limit_bytes=LIMIT)
    writer.add(Received(START_NS, -1, 0, 0, run_message()), encode(run_message()))
    for number in range(1500):
        t_ns = START_NS + number * NS
        for rank in range(2):
            message = steps(number * 4, 4, rank)
            writer.add(Received(t_ns, rank, 1000 + rank, number + 1, message), encode(message))
        if number % 10 == 0:
            writer.flush()
    before = writer.left_out
    bye = Bye(t_ns, "finished")
    writer.add(Received(t_ns + NS, 0, 1000, 1501, bye), encode(bye))
    assert writer.left_out == before - 1
    writer.close()
    assert path.stat().st_size <= LIMIT
    with Recording.open(path) as recording:
        of_ranks = {
            rank: [r for r in recording.records() if r.rank == rank and isinstance(r.message, Steps | Bye)]
            for rank in range(2)
        }
    last, said_bye = of_ranks[0][-2:]
    assert isinstance(last.message, Steps) and isinstance(said_bye.message, Bye)
    assert last.message.first_step == 5999 and len(last.message.rows) == 1
    assert last.message.rows[0] == steps(5996, 4, 0).rows[-1]._replace(cells=(), flags=0)
    assert of_ranks[1][-1].message.first_step % 2 == 0, "it has not said that it leaves"
