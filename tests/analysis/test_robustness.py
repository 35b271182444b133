"""Whatever ranks send within the limits: no exception, no warning of numpy's, frames that hold together."""

from __future__ import annotations

import json
import random
import warnings
from dataclasses import replace

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol import limits
from ddptop.protocol.evidence import Evidence, GroupState, Operation, Stack, StackFrame
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import (
    Bucket,
    Bye,
    Card,
    Clock,
    Event,
    Hello,
    Layout,
    Membership,
    Message,
    Progress,
    Received,
    Replica,
    Run,
    StepRow,
    Steps,
)
from tests.made_up_run import hello


class Chaos:
    """Messages that are each valid and together make no sense."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.t_ns = 0
        self.step = 0

    def whole(self, most: int) -> int:
        """Small numbers often, the extremes sometimes."""
        return self.random.choice([0, 1, 2, 3, self.random.randrange(most + 1), most])

    def loss(self) -> float | None:
        return self.random.choice([None, 1.0, float("nan"), float("inf"), -float("inf"), 1e300, 0.0])

    def row(self) -> StepRow:
        cells: list[int] = []
        for number in range(self.random.choice([0, 2, 2, 2, 4])):
            cells += [number, self.whole(limits.MAX_US), self.random.choice([-1, 0, 7])]
        times = [self.whole(limits.MAX_US) for _ in range(8)]
        flags, loss = self.random.choice([0, 1, 1, 1, 2, 3]), self.loss()
        return StepRow(*times, -1, self.whole(9), flags, self.whole(limits.MAX_US), loss, tuple(cells))

    def message(self) -> Message:
        makers = (self.hello, self.layout, self.steps, self.steps, self.steps, self.progress, self.event)
        clock = self.whole(limits.MAX_NS)
        rare: tuple[Message, ...] = (
            Card({"torch": self.random.choice([None, "2", 2.0]), "ddp.x": True}),
            Usage(clock, self.whole(limits.MAX_BYTES), 1.0),
            Bye(clock, self.random.choice(["finished", "Überfehler"])),
            Run(1, "i", "n", "s", (), clock, clock, self.random.choice(["live", "failed"]), None, False),
        )
        if self.random.random() < 0.15:
            return self.random.choice((self.evidence, self.replica, self.membership, self.host_clock))()
        return self.random.choice(rare) if self.random.random() < 0.1 else self.random.choice(makers)()

    def hello(self) -> Message:
        """Of two ranks mostly; a number names the rank and, now and then, a restarted process."""
        session = self.random.choice([1, 2, 1, 2, 1, 2, 3, 4])
        world = 2 if self.random.random() < 0.97 else 4
        clock = self.whole(limits.MAX_NS)
        rank, again, host = session % 2, self.random.random() < 0.02, self.random.choice("aaaab")
        return hello(
            rank,
            world,
            session=session,
            incarnation=int(again),
            host=host,
            monotonic_ns=clock,
            unix_ns=clock,
        )

    def layout(self) -> Message:
        sizes = self.random.choice([(8, 8, 8), (8, 8, 8), (8,), ()])
        wire = self.random.choice([None, 0, 9])
        return Layout(
            self.random.randrange(2), tuple(Bucket(0, i, n, wire, None, "f", "") for i, n in enumerate(sizes))
        )

    def steps(self) -> Message:
        """Mostly in order with the steps before, so that many get complete."""
        self.step += self.random.choice([0, 0, 1])
        first = self.step if self.random.random() < 0.97 else self.whole(limits.MAX_STEP - 10)
        rows = tuple(self.row() for _ in range(self.random.randrange(6)))
        return Steps(self.random.randrange(2), first, self.whole(limits.MAX_NS), rows)

    def progress(self) -> Message:
        step, every = self.whole(limits.MAX_STEP), self.whole(99)
        return Progress(0, step, self.random.randrange(9), -1, -1, every, 0.0, 0.0, 0)

    def event(self) -> Message:
        kinds = [
            "lost_rank",
            "exit",
            "process",
            "timer",
            "recording",
            "thinned",
            "phase_begins",
            "phase_ends",
            "x",
        ]
        fields = {
            "every": self.random.choice([0, 2, "3"]),
            "session": self.random.choice([1, 2, None]),
            "exit_code": self.random.choice([None, 0, 1, -9, "one"]),
            "signal": self.random.choice([None, "SIGKILL", "SIGTERM", 9]),
            "state": self.random.choice(["stopped", "running", 3]),
            "ready_us": self.random.choice([1.0, 5, None]),
            "end_us": self.random.choice([0, -1, "x"]),
        }
        kept = {name: value for name, value in fields.items() if self.random.random() < 0.7}
        return Event(self.random.choice(kinds), 0, self.random.randrange(-1, 4), -1, kept)

    def evidence(self) -> Message:
        files = [
            "/me/train.py",
            "/v/site-packages/torch/distributed/distributed_c10d.py",
            "/v/torch/_dynamo/x.py",
        ]
        frames = tuple(
            StackFrame(self.random.choice(files), self.whole(9), "f", "x") for _ in range(self.whole(4))
        )
        stacks = tuple(
            Stack("t", self.random.random() < 0.5, frames) for _ in range(self.random.randrange(3))
        )
        names = ["all_reduce", "broadcast"]
        operations = tuple(
            Operation("01"[i % 2], self.whole(5), self.random.choice(names), "[[1]]", "Float", i % 3 == 0, 1)
            for i in range(self.whole(5))
        )
        groups = tuple(GroupState(name, "gloo", 2, self.whole(5), -1) for name in "01")
        number, reason = self.random.choice([0, 1]), self.random.choice(["", "Überfehler", "Fatal: Aborted"])
        return Evidence(
            0, number, self.whole(9), self.random.randrange(9), -1, reason, groups, stacks, operations
        )

    def replica(self) -> Message:
        values = tuple(self.whole(3) for _ in range(self.random.randrange(5)))
        return Replica(self.whole(limits.MAX_STEP), self.whole(2), self.whole(8), self.whole(8), values)

    def membership(self) -> Message:
        return Membership(self.whole(2), "g", "gloo", self.random.choice([(), (0, 1), (1, 3)]))

    def host_clock(self) -> Message:
        return Clock(0, self.random.choice("ab"), self.whole(limits.MAX_NS), self.whole(limits.MAX_NS))

    def received(self) -> Received:
        self.t_ns += self.random.choice([0, 10**6, 10**9, 10**11])
        message = self.message()
        session = message.session if isinstance(message, Hello) else self.random.randrange(5)
        return Received(self.t_ns, self.random.randrange(-1, 4), session, 1, message)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))]
)
def test_nonsense_does_no_harm(seed) -> None:
    chaos, reducer = Chaos(seed), Reducer(window=10, history_points=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            for _ in range(40):
                reducer.feed(chaos.received())
            frame = reducer.frame(chaos.t_ns, cursor=chaos.whole(100), focus=chaos.random.randrange(-1, 5))
            shown = json.dumps(snapshot(frame), allow_nan=False)
            assert shown == json.dumps(snapshot(FrameDecoder().decode(encode_frame(frame))), allow_nan=False)
            assert verdict(frame).sentence
            assert verdict(frame).line(ascii_only=True).isascii()
    assert reducer.state.history_end > 0, "no step got complete: this proved nothing"


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("every", [1, 3])
def test_steps_that_took_no_time_have_no_share_and_cost_no_warning(make_world, own, every) -> None:
    """Every step or every third one has a wall time of 0."""
    world, reducer = make_world(3, delays={(1, "backward"): 6_000}, own=own), Reducer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for received in (world.run(), *world.introduce(), *world.steps(120)):
            message = received.message
            if isinstance(message, Steps) and message.first_step % every == 0:
                rows = tuple(row._replace(wall_us=0) for row in message.rows)
                received = received._replace(message=replace(message, rows=rows))
            reducer.feed(received)
            if world.step % 50 == 0:
                reducer.frame(received.t_ns)
        frame = reducer.frame(received.t_ns)
    json.dumps(snapshot(frame), allow_nan=False)
    assert frame.group.exposed_comm_pct == (None if every == 1 else pytest.approx(30, abs=1))
