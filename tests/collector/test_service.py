"""The order of work in a round of the collector, and its pauses: real sockets, and a clock of the test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from ddptop.agent.launcher import parse_arguments
from ddptop.agent.round_times import next_second_ns
from ddptop.collector import service, viewers
from ddptop.collector.service import Collector
from ddptop.collector.viewers import INTERVAL_NS
from ddptop.frames.codec import FrameDecoder
from ddptop.host.processes import process_start
from ddptop.host.runs import view_endpoint
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Credit
from ddptop.transport import bundle_receiver, bundle_sender
from ddptop.transport.bundle_receiver import TOGETHER_NS
from ddptop.transport.credit import CreditClient
from tests.collector.conftest import Stage
from tests.collector.fake_agent import Agent, Rank
from tests.run_processes import RUN_ID, wait_for

MS = NS // 1000
ARRIVES_S = 20.0
"""How long a test waits for what must have been sent by then; a deadline that only a failure reaches."""


def _arrives(condition: Callable[[], bool]) -> bool:
    """Whether it holds in time."""
    end_s = time.monotonic() + ARRIVES_S
    while not (arrived := condition()) and time.monotonic() < end_s:
        time.sleep(0.001)
    return arrived


@dataclass
class Clock:
    """The collector's clock: it goes on in its pauses, and where a test says so."""

    now_ns: int = field(default_factory=time.monotonic_ns)
    pauses_ms: list[float] = field(default_factory=list)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.pauses_ms.append(round(1000 * seconds, 6))
        self.now_ns += round(seconds * NS)

    time_ns, time = staticmethod(time.time_ns), staticmethod(time.time)


class Rounds:
    """A collector whose rounds the test takes, with an agent of two ranks and a viewer."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(service, "time", self.clock)
        monkeypatch.setattr(viewers, "time", self.clock)
        words = ["--run-dir", stage.directory, "--run-id", RUN_ID, "--name", "name", "--record", "off"]
        alone = f"{os.getpid()}:{process_start(os.getpid())}"
        words += ["--serve", "127.0.0.1:0", "--alone", alone]
        self.collector = Collector(parse_arguments([*map(str, words)]))
        self.viewer = CreditClient(view_endpoint(stage.directory))
        self.agent = Agent(stage.directory, "n1", 0)
        self.ranks = [Rank(self.agent.link, "n1", rank, 2) for rank in (0, 1)]
        self.steps = 0

    def round(self, after_ns: int = INTERVAL_NS) -> None:
        self.clock.now_ns += after_ns
        self.collector.work_round()

    def hold(self, monkeypatch: pytest.MonkeyPatch) -> int:
        """From now on what arrives is held, as of many agents; returns until when."""
        monkeypatch.setattr(bundle_receiver, "MANY_AGENTS", 0)
        self.round(TOGETHER_NS)
        return self.collector.intake.held_until_ns

    def before(self, owner: object, name: str, note: Callable[[], object]) -> None:
        """Call `note` before each call of a method."""
        method = getattr(owner, name)

        def call(*each: object, **named: object) -> object:
            note()
            return method(*each, **named)

        self._monkeypatch.setattr(owner, name, call)

    def work(self, ms: int) -> None:
        """From now on the rest of a round takes so long."""

        def check(*_: object, **__: object) -> None:
            self.clock.now_ns += ms * MS

        self._monkeypatch.setattr(self.collector.hosts, "check_hosts", check)

    def begin(self) -> None:
        """Until steps of both ranks were taken and acked, a frame was sent, and nothing is on its way."""
        state = self.collector.reducer.state
        self.agent.service()  # it connects; all that it sends from here on is what its link is given
        self._exchange_until(lambda: state.world == 2 and not self.agent.link.kept)
        # With the checks of each second: the next are later than what a test watches.
        self.round(next_second_ns(self.clock.now_ns) - self.clock.now_ns)
        self._relay_steps(1)
        self._exchange_until(lambda: state.complete_step == 0 and not self.agent.link.kept)
        self.ask_for_frame()
        self.round()
        assert self.frame_step() == 0

    def send_steps(self) -> None:
        """Ten steps of each rank: they wait in the collector's socket."""
        self._relay_steps(10)
        self.agent.link.exchange_messages()
        wait_for(lambda: self.collector.hosts.receiver.socket.poll(0))

    def ask_for_frame(self) -> None:
        """A viewer's credit waits in the collector's socket."""
        wait_for(lambda: self.viewer.grant_credit(Credit(0, 0, -1)))
        wait_for(lambda: self.collector.server.socket.poll(0))

    def frame_step(self) -> int | None:
        """The group's step in the frame that was sent; -1: none was."""
        frames = []

        def arrived() -> bool:
            frames.extend(filter(None, [self.viewer.receive_frame()]))
            return bool(frames)

        return FrameDecoder().decode(frames[0].frame).group.step if _arrives(arrived) else -1

    def acks_arrive(self) -> bool:
        """Whether all that was sent has been acked."""

        def arrived() -> bool:
            self.agent.link.exchange_messages()
            return not self.agent.link.kept

        return _arrives(arrived)

    def _relay_steps(self, steps: int) -> None:
        self.steps += steps
        for rank in self.ranks:
            rank.steps(self.steps, self.clock.now_ns, 1000)
        self.agent.link.flush()

    def _exchange_until(self, condition: Callable[[], bool]) -> None:
        """The agent sends, and the collector takes a round whenever something has arrived."""

        def met() -> bool:
            self.agent.link.exchange_messages()
            if any(socket.poll(0) for socket in self.collector.hosts.sockets):
                self.round(0)
            return condition()

        wait_for(met)

    def close(self) -> None:
        self.viewer.close()
        self.agent.link.close()
        self.agent.context.destroy(linger=0)
        self.collector.__exit__()


@pytest.fixture
def rounds(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    monkeypatch.setattr(service, "TICK_MS", 1)
    monkeypatch.setattr(viewers, "MANY_RANKS", 2)
    monkeypatch.setattr(viewers, "WINDOW", 1)
    monkeypatch.setattr(viewers, "FIGURES_NS", 3600 * NS)
    for name in ("EMPTY_NS", "RESEND_NS"):  # the agent sends what a test gives it, once
        monkeypatch.setattr(bundle_sender, name, 3600 * NS)
    made = Rounds(stage, monkeypatch)
    yield made
    made.close()


def test_a_frame_is_sent_before_acks_and_figures_are_made_after_both(rounds, monkeypatch):
    rounds.begin()
    rounds.send_steps()
    rounds.ask_for_frame()
    monkeypatch.setattr(viewers, "AHEAD_NS", viewers.FIGURES_NS)  # new figures are always due
    seen = []
    collector = rounds.collector
    evaluation = collector.reducer.evaluation
    rounds.before(
        collector.intake, "acknowledge_written", lambda: seen.append(("frame", rounds.frame_step()))
    )
    rounds.before(collector.frames, "prepare_next", lambda: seen.append(("acks", rounds.acks_arrive())))
    rounds.before(collector.reducer, "frame", lambda: seen.append("figures"))
    waiting = []
    rounds.before(collector.frames, "prepare_next", lambda: waiting.append(evaluation.n_waiting))
    rounds.round()
    # The frame has the steps that came in this round, which were not evaluated for it.
    assert seen == [("frame", 10), ("acks", True), "figures"]
    assert waiting == [10]
    assert not evaluation.n_waiting


def test_at_the_end_of_the_run_acks_come_first(rounds):
    rounds.begin()
    rounds.send_steps()
    rounds.ask_for_frame()
    rounds.collector.pipe.ended = True
    seen = []
    rounds.before(rounds.collector.viewers, "serve_due", lambda: seen.append(rounds.acks_arrive()))
    rounds.round()
    assert seen == [True], "processes wait for their last acks"
    assert rounds.frame_step() == 10


def test_a_collector_sleeps_longer_only_where_nobody_waits_for_it(rounds, monkeypatch):
    collector = rounds.collector
    assert collector.longest_sleep_ms(0) == service.TICK_MS, "other hosts take part"
    monkeypatch.setattr(collector, "hosts", None)
    assert collector.longest_sleep_ms(0) == service.IDLE_TICK_MS
    collector.pipe.ended = True
    assert collector.longest_sleep_ms(0) == service.TICK_MS, "the launcher waits for the summary"


def test_a_frame_waits_for_what_is_held_and_is_sent_when_that_is_taken(rounds, monkeypatch):
    rounds.begin()
    held_until_ns = rounds.hold(monkeypatch)
    rounds.send_steps()
    rounds.ask_for_frame()
    rounds.clock.now_ns = held_until_ns - 1
    rounds.round(0)
    assert rounds.viewer.receive_frame() is None
    assert rounds.collector.server.waiting_viewers(), "its credit is not used up"
    rounds.clock.now_ns = held_until_ns
    rounds.round(0)
    assert rounds.frame_step() == 10


def test_a_frame_is_sent_with_what_is_taken_early_because_it_is_much(rounds, monkeypatch):
    rounds.begin()
    held_until_ns = rounds.hold(monkeypatch)
    monkeypatch.setattr(bundle_receiver, "DRAIN_BYTES", 1)
    rounds.send_steps()
    rounds.ask_for_frame()
    rounds.clock.now_ns = held_until_ns - 1
    rounds.round(0)
    assert rounds.frame_step() == 10


def test_what_is_held_is_taken_at_the_moment_when_it_is_due(rounds, monkeypatch):
    rounds.begin()
    held_until_ns = rounds.hold(monkeypatch)
    rounds.send_steps()
    rounds.ask_for_frame()
    begun_ns = []
    rounds.before(rounds.collector.intake, "take_arrived", lambda: begun_ns.append(rounds.clock.now_ns))
    while rounds.collector.intake.held_until_ns == held_until_ns:
        rounds.round(0)
    assert begun_ns[-1] == held_until_ns
    assert len(begun_ns) > 3, "there were pauses before"
    assert rounds.frame_step() == 10


@pytest.mark.parametrize(
    ("work_ms", "left_ms", "pause_ms"),
    [
        (0, 200, 25),
        (0, 35, 25),
        (0, 34, 34),
        (0, 26, 26),
        (0, 20, 20),
        (0, 10, 10),
        (0, 5, 5),
        (0, 0.001, 0.001),
        (10, 50, 40),
        (10, 49, 49),
        (10, 39, 39),
        (30, 60, 50),
        (30, 59, 59),
        (30, 1, 1),
    ],
)
def test_a_pause_that_would_end_near_the_moment_when_something_is_due_ends_then(
    rounds, monkeypatch, work_ms, left_ms, pause_ms
):
    """`work_ms`: how long the round works; `left_ms`: from then until what is held is due."""
    monkeypatch.setattr(bundle_receiver, "MANY_AGENTS", -1)
    rounds.round()
    clock = rounds.clock
    clock.now_ns = rounds.collector.intake.held_until_ns - round((work_ms + left_ms) * MS)
    rounds.work(work_ms)
    clock.pauses_ms.clear()
    rounds.round(0)
    assert clock.pauses_ms == [pause_ms]


@pytest.mark.parametrize(("work_ms", "pause_ms"), [(0, 10), (2, 10), (5, 20), (12, 48), (13, 50), (60, 50)])
def test_where_nothing_is_held_a_pause_is_four_times_the_round(rounds, work_ms, pause_ms):
    rounds.work(work_ms)
    rounds.round()
    assert rounds.clock.pauses_ms == [pause_ms]


def test_while_messages_wait_to_be_read_there_is_no_pause(rounds, monkeypatch):
    monkeypatch.setattr(rounds.collector.intake, "take_arrived", lambda *_, **__: 1)
    rounds.collector.intake.emptied = False
    rounds.round()
    assert rounds.clock.pauses_ms == []
