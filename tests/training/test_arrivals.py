"""When collectives were launched, as read from torch's flight recorder: which, in which step, how often."""

from __future__ import annotations

from typing import Any

import pytest

from ddptop.protocol.arrivals import Arrivals, CollectiveKind
from ddptop.training.evidence import arrival_reader
from ddptop.training.evidence.arrival_reader import LEAST_S, MOST_S, ArrivalReader
from ddptop.training.step_record import StepRecord
from ddptop.training.torch_compat.process_groups import SharedGroup

MS = 1_000_000
OFFSET_NS = 17 * 10**17
"""Of the wall clock from the monotonic one."""


class Counted:
    """A process group as torch has it."""

    def __init__(self) -> None:
        self.launched = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.launched


class Clocks:
    """Wall, monotonic and CPU clock of a rank; a read takes `read_ns`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns, self.cpu_ns, self.offset_ns = 10**12, 0, OFFSET_NS
        monkeypatch.setattr(arrival_reader.time, "monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(arrival_reader.time, "time_ns", lambda: self.now_ns + self.offset_ns)
        monkeypatch.setattr(arrival_reader.time, "time", lambda: (self.now_ns + self.offset_ns) / 1e9)
        monkeypatch.setattr(arrival_reader.time, "thread_time_ns", lambda: self.cpu_ns)


class Rank:
    """One rank that launches collectives of two groups in steps of 10 ms, and reads them."""

    def __init__(self, clocks: Clocks, *, timed: str = "none", read_ns: int = 0) -> None:
        self.clocks, self.read_ns = clocks, read_ns
        self.entries: list[dict[str, Any]] = []
        self.counters = {"0": Counted(), "7": Counted()}
        self.reads = 0
        groups = [
            SharedGroup("0", "default_pg", (), self.counters["0"]),
            SharedGroup("7", "mesh_tp", (0, 2), self.counters["7"]),
        ]
        self.reader = ArrivalReader(lambda: [timed], self._dumps, lambda: groups)
        self.step = 0

    def _dumps(self) -> list[dict[str, Any]]:
        self.reads += 1
        self.clocks.cpu_ns += self.read_ns // 2
        self.clocks.now_ns += self.read_ns
        return [{"entries": self.entries[-2000:]}]

    def launch(
        self, group: str, size: int = 256, *, p2p: bool = False, name: str = "gloo:all_reduce"
    ) -> None:
        counter = self.counters[group]
        counter.launched += 1
        self.entries.append(
            {
                "process_group": (group, "x"),
                "collective_seq_id": counter.launched,
                "is_p2p": p2p,
                "profiling_name": name,
                "input_sizes": [[size, 2], [1]],
                "input_dtypes": ["Float", "Long"],
                "time_created_ns": self.clocks.now_ns + self.clocks.offset_ns,
            }
        )

    def train(self, steps: int) -> None:
        for _ in range(steps):
            begin = self.clocks.now_ns
            for group in ("0", "7", "0"):
                self.clocks.now_ns += 3 * MS
                self.launch(group)
            self.clocks.now_ns += MS
            times = (begin, self.clocks.now_ns, 0, 0, 0, 0, -1, -1, -1, -1, 1, 0, 0)
            self.reader.note_steps([StepRecord(self.step, *times, loss=None, calls=())])
            self.step += 1

    def read(self, budget_pct: float = 1.0, others_pct: float = 0.0) -> list[Arrivals]:
        return self.reader.read_if_due(budget_pct, others_pct + 100 * self.reader.share)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_collectives_are_sent_once_by_group_with_their_steps(clocks: Clocks) -> None:
    rank = Rank(clocks)
    rank.train(4)
    of_world, of_part = rank.read()
    assert (of_world.group, of_world.description, of_world.backend, of_world.ranks) == (
        *("0", "default_pg", "gloo"),
        (),
    )
    assert (of_part.group, of_part.ranks, of_part.first, of_part.steps) == ("7", (0, 2), 2, (0, 1, 2))
    assert (of_world.first, of_world.first_step, of_world.steps) == (3, 1, (0, 0, 1, 1, 2, 2))
    assert of_world.launched_us == (0, 6_000, 10_000, 16_000, 20_000, 26_000)
    assert of_world.base_ns == 10**12 + 10 * MS + 3 * MS, "by the monotonic clock"
    assert (of_world.kinds, set(of_world.of_kind)) == ((CollectiveKind("all_reduce", 2056),), {0})
    clocks.now_ns += 10**9
    assert rank.read() == [] and rank.reads == 1, "nothing is new: the recorder is not read"
    rank.train(1)
    clocks.now_ns += 10**9
    assert [(sent.first, sent.first_step) for sent in rank.read()] == [(9, 4), (5, 4)]


def test_a_collective_of_the_running_step_is_sent_with_the_next_ones(clocks: Clocks) -> None:
    rank = Rank(clocks, timed="7")
    rank.train(2)
    clocks.now_ns += 3 * MS
    rank.launch("0")
    (sent,) = rank.read()
    assert (sent.first, len(sent.steps)) == (3, 2)
    rank.train(1)
    clocks.now_ns += 10**9
    (sent,) = rank.read()
    assert (sent.first, sent.first_step, sent.steps) == (5, 2, (0, 0, 0))


def test_of_a_group_with_two_backends_only_that_of_the_gpus_is_sent(clocks: Clocks) -> None:
    """Each counts its collectives by itself."""
    rank = Rank(clocks, timed="7")
    rank.train(3)
    for number in range(40, 44):
        rank.counters["0"].launched = number
        rank.launch("0", name="nccl:_allgather_base")
    rank.train(1)
    messages = rank.read()
    assert [(sent.backend, sent.first, len(sent.steps)) for sent in messages] == [("nccl", 41, 4)]


def test_a_group_that_is_made_anew_is_sent_again(clocks: Clocks) -> None:
    """Under the same name, with numbers from 1; the buffer still has the collectives before."""
    rank = Rank(clocks, timed="7")
    rank.train(4)
    rank.read()
    rank.train(1)
    rank.counters["0"].launched = 0
    rank.train(2)
    clocks.now_ns += 10**9
    assert [(sent.first, len(sent.steps)) for sent in rank.read()] == [(9, 2), (1, 4)]
    rank.train(1)
    clocks.now_ns += 10**9
    assert [(sent.first, len(sent.steps)) for sent in rank.read()] == [(5, 2)]


def test_a_group_that_is_made_anew_may_launch_as_many(clocks: Clocks) -> None:
    rank = Rank(clocks, timed="7")
    rank.train(4)
    assert len(rank.reader.read_if_due(1.0, 0.0, at_end=True)) == 1
    rank.counters["0"].launched = 0
    rank.train(4)
    clocks.now_ns += 3 * 10**9
    (sent,) = rank.reader.read_if_due(1.0, 0.0, at_end=True)
    assert (sent.first, len(sent.steps)) == (1, 8)


def test_at_the_end_the_rest_is_read_once(clocks: Clocks) -> None:
    rank = Rank(clocks, timed="7", read_ns=25 * MS)
    rank.train(2)
    rank.read()
    assert rank.reader.every_s == 8
    rank.train(1)
    assert rank.reader.read_if_due(1.0, 0.0, at_end=True) == [], "a moment ago it was read"
    clocks.now_ns += 3 * 10**9
    assert len(rank.reader.read_if_due(1.0, 0.0, at_end=True)) == 1
    assert rank.reader.read_if_due(1.0, 0.0, at_end=True) == []


def test_groups_that_a_hook_times_are_left_out(clocks: Clocks) -> None:
    rank = Rank(clocks, timed="0")
    rank.train(3)
    assert [sent.group for sent in rank.read()] == ["7"]


def test_what_the_buffer_has_lost_divides_the_message(clocks: Clocks) -> None:
    rank = Rank(clocks, timed="7")
    rank.train(3)
    del rank.entries[6]
    assert [(sent.first, len(sent.launched_us)) for sent in rank.read()] == [(3, 2), (6, 1)]


def test_a_wall_clock_that_was_set_widens_the_bound(clocks: Clocks) -> None:
    rank = Rank(clocks, timed="7")
    rank.train(2)
    assert rank.read()[0].bound_ns == 0
    clocks.offset_ns += 5 * MS
    clocks.now_ns += 10**9
    rank.train(1)
    assert rank.read()[0].bound_ns == 5 * MS


@pytest.mark.parametrize(
    ("read_ns", "budget_pct", "others_pct", "every_s"),
    [
        (100_000, 1.0, 0.5, LEAST_S),
        (25 * MS, 1.0, 0.5, 8),
        (25 * MS, 1.0, 0.8, 16),
        (25 * MS, 0.1, 0.0, 64),
        (2 * 10**9, 1.0, 0.0, MOST_S),
    ],
)
def test_reads_keep_to_their_share_of_the_budget(
    clocks: Clocks, read_ns: int, budget_pct: float, others_pct: float, every_s: int
) -> None:
    rank = Rank(clocks, read_ns=read_ns)
    rank.train(2)
    rank.read(budget_pct, others_pct)
    assert rank.reader.every_s == every_s
    assert rank.reader.share == pytest.approx(read_ns / 1e9 / every_s)
    assert (rank.reader.take_spent_ns(), rank.reader.take_spent_ns()) == (read_ns // 2, 0)
    rank.train(1)
    rank.read(budget_pct, others_pct)
    assert rank.reads == 1, "not before it is due"
    clocks.now_ns += every_s * 10**9
    rank.read(budget_pct, others_pct)
    assert rank.reads == 2
    clocks.now_ns += every_s * 10**9
    rank.train(1)
    assert rank.read(budget_pct, budget_pct) == [] and rank.reads == 2, "the others use it up"


def test_a_recorder_that_fails_is_not_read_again(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(clocks)
    rank.train(2)
    rank.entries[-1] = {}
    with pytest.raises(KeyError):
        rank.read()
    clocks.now_ns += 10**10
    assert rank.read() == [] and rank.reads == 1
