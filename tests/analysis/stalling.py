"""Ranks that stand still, and what they would answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddptop.analysis.reducer import Reducer
from ddptop.frames.frame import Frame
from ddptop.protocol.evidence import Evidence, GroupState, Operation, Stack, StackFrame
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import Event, Phase, Received, Scalar
from tests.made_up_run import NS, START_NS, feed_together

MAIN = StackFrame("/home/me/train.py", 41, "main", "batch = next(it)")
ALL_REDUCE = StackFrame(
    "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2900, "all_reduce", ""
)
BACKWARD = StackFrame(
    "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 820, "_engine_run_backward", ""
)


def users(function: str, line: int = 88, code: str = "while True: self.lock.acquire()") -> tuple[Stack, ...]:
    """The main thread waits in the standard library, called from the user's function."""
    inner = StackFrame("/usr/lib/python3.11/threading.py", 327, "wait", "waiter.acquire()")
    own = StackFrame("/home/me/train.py", line, function, code)
    other = Stack("loader", False, (StackFrame("/home/me/other.py", 1, "thread", ""),))
    return other, Stack("MainThread", True, (inner, own, MAIN))


def waits(call: StackFrame = BACKWARD, line: int = 61) -> tuple[Stack, ...]:
    """The main thread waits in a collective, called from `step`."""
    return (Stack("MainThread", True, (call, StackFrame("/home/me/train.py", line, "step", ""), MAIN)),)


def op(sequence: int, name: str = "all_reduce", sizes: str = "[[1000]]", **more: Any) -> Operation:
    """One entry of a flight recorder, not completed."""
    return Operation(more.get("group", "0"), sequence, name, sizes, "Float", more.get("done", False), 1000)


class Stage:
    """A world that has done some steps, and time that goes on while they stand."""

    def __init__(self, world: Any, steps: int = 40, **options: Any) -> None:
        self.world, self.reducer = world, Reducer(**options)
        self.messages: list[Received] = []
        """All of them so far, for a report."""
        self.feed(world.run(), *world.introduce(), *world.steps(steps))
        self.last_ns = START_NS + world.now_us * 1000
        """When the last step was reported."""
        self.after_s = 0.0

    def feed(self, *messages: Received) -> None:
        self.messages += messages
        feed_together(self.reducer, messages)

    @property
    def now_ns(self) -> int:
        return self.last_ns + int(self.after_s * NS)

    def say(self, rank: int, message: Any) -> None:
        """A rank's own message, now."""
        self.feed(Received(self.now_ns, rank, self.world.session(rank), 1, message))

    def tell(self, kind: str, rank: int, **fields: Scalar) -> None:
        """The collector's event about a rank's process."""
        told = {"session": self.world.session(rank), **fields}
        self.feed(Received(self.now_ns, -1, 0, 0, Event(kind, self.now_ns, rank, -1, told)))

    def beat(
        self, until_s: float, ranks: Mapping[int, Mapping[str, int]], *, there: Sequence[int] = ()
    ) -> None:
        """Heartbeats of the given ranks twice a second; readings alone of those that are only `there`."""
        while self.after_s < until_s:
            self.after_s += 0.5
            t_us = (self.now_ns - START_NS) // 1000
            for rank, changes in ranks.items():
                self.feed(self.world.progress(rank, t_us=t_us, **{"phase": Phase.BACKWARD, **changes}))
            for rank in (*ranks, *there):
                usage = Usage(self.now_ns, 1, 3.0)
                self.feed(Received(self.now_ns, rank, self.world.session(rank), 0, usage))

    def answer(
        self,
        rank: int,
        stacks: tuple[Stack, ...],
        *,
        groups: Mapping[str, int] | None = None,
        operations: tuple[Operation, ...] = (),
        number: int = 7,
        reason: str = "",
        phase: int = Phase.BACKWARD,
        size: int = 4,
        message: tuple[str, ...] = (),
    ) -> None:
        """A rank's evidence; `groups`: launched collectives by process group, of `size` ranks."""
        states = tuple(GroupState(name, "gloo", size, n, -1) for name, n in (groups or {}).items())
        step = self.reducer.state.ranks[rank].step
        words = (states, stacks, operations, message)
        evidence = Evidence(self.now_ns, number, step, phase, 0, reason, *words)
        self.say(rank, evidence)

    def frame(self) -> Frame:
        return self.reducer.frame(self.now_ns)

    def said(self, kind: str) -> list[str]:
        """The log's lines of one kind."""
        return [event.message for event in self.frame().events if event.kind == kind]
