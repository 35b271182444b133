"""Which ranks are asked to sample their stacks, and when."""

from __future__ import annotations

from ddptop.analysis.reducer import Reducer
from ddptop.collector.sample_requests import (
    ASK_AGAIN_NS,
    LOOK_NS,
    MOST_UNANSWERED,
    REFRESH_NS,
    SampleRequests,
)
from ddptop.protocol.evidence import StackSamples, asks_for_samples, requested_place
from ddptop.protocol.limits import NS
from tests.made_up_run import World, feed_together


class Asking:
    """A run of which some ranks are slow, and who is asked."""

    def __init__(self, **world: object) -> None:
        self.world = World(own=True, **world)  # type: ignore[arg-type]
        self.reducer = Reducer()
        self.asked: list[tuple[int, str]] = []
        self.number = 0
        self.askable = [self.world.session(rank) for rank in range(self.world.size)]
        self.requests = SampleRequests(self.reducer, self._ask, lambda now_ns: self.askable)
        feed_together(self.reducer, [self.world.run(), *self.world.introduce()])

    def _ask(self, session: int, number: int) -> None:
        assert asks_for_samples(number)
        self.number = number
        self.asked.append((session - self.world.session(0), requested_place(number)))

    def train(self, steps: int = 120) -> None:
        feed_together(self.reducer, self.world.steps(steps))

    def check(self, after_ns: int = 0) -> list[tuple[int, str]]:
        """Who is asked within this time, looked at once a second: (rank, place)."""
        self.asked.clear()
        begin_ns = self.reducer.state.newest_ns
        for second in range(after_ns // NS + 1):
            self.requests.ask_due(begin_ns + second * NS)
        return self.asked

    def answer(self, rank: int) -> None:
        samples = StackSamples(1, self.number, 3, requested_place(self.number), 50, 2000, 0, ())
        self.world.now_us += 1
        self.reducer.feed(self.world.received(rank, samples))


def test_a_slow_rank_is_asked_about_its_place() -> None:
    asking = Asking(delays={(2, "data"): 20_000})
    assert asking.check() == [], "nobody is flagged yet"
    asking.train()
    assert asking.check() == [(2, "data")]


def test_equal_ranks_are_not_asked() -> None:
    asking = Asking()
    asking.train()
    assert asking.check(60 * NS) == []


def test_a_rank_that_does_not_answer_is_asked_a_few_times() -> None:
    asking = Asking(delays={(1, "forward"): 20_000})
    asking.train()
    assert asking.check(10 * ASK_AGAIN_NS) == [(1, "forward")] * MOST_UNANSWERED


def test_one_that_answers_is_asked_again_later_and_later() -> None:
    asking = Asking(delays={(1, "data"): 20_000})
    asking.train()
    asking.check()
    asking.answer(1)
    assert asking.check(REFRESH_NS - LOOK_NS) == []
    assert asking.check(REFRESH_NS + LOOK_NS) == [(1, "data")]


def test_its_first_samples_and_all_of_them_are_one_answer() -> None:
    asking = Asking(delays={(1, "data"): 20_000})
    asking.train()
    asking.check()
    asking.answer(1)
    asking.check()
    asking.answer(1)
    assert asking.check(REFRESH_NS - LOOK_NS) == []
    assert asking.check(REFRESH_NS + LOOK_NS) == [(1, "data")]
    asking.answer(1)
    asking.check()
    asking.answer(1)
    assert asking.check(2 * REFRESH_NS - LOOK_NS) == []
    assert asking.check(2 * REFRESH_NS + LOOK_NS) == [(1, "data")]


def test_a_rank_that_cannot_be_reached_is_not_asked() -> None:
    asking = Asking(delays={(1, "data"): 20_000})
    asking.train()
    asking.askable = []
    assert asking.check(60 * NS) == []


def test_no_stack_shows_why_a_rank_waits_for_a_cpu_or_collects_garbage() -> None:
    asking = Asking(delays={(1, "forward"): 20_000}, gc_us={rank: 20_000 * (rank == 1) for rank in range(4)})
    asking.train()
    assert asking.check(60 * NS) == []
