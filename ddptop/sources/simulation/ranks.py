"""The simulated ranks in time: steps as they become due, heartbeats, answers, a failure and a restart.

The ranks of one simulated host share one connection of the acked link. An ack does not say which of the
sessions on a connection it is for, so nothing is kept to be sent again: every message gives its own number as
the oldest one that is kept. What a collector misses while it is restarted is then counted as lost, as it
would be of ranks that had to drop it.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections import deque

import msgpack
import zmq

from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import (
    Ask,
    Evidence,
    GroupState,
    Stack,
    StackFrame,
    asks_for_samples,
)
from ddptop.protocol.limits import MAX_FRAME_BYTES, NS, VERSION
from ddptop.protocol.messages import (
    Ack,
    Bye,
    Card,
    Hello,
    Layout,
    Membership,
    Message,
    Phase,
    Progress,
    StepRow,
    Steps,
)
from ddptop.sources.simulation.hosts import CUT_S, RANKS_PER_NODE, SimulatedHost
from ddptop.sources.simulation.story import Story
from ddptop.transport.sockets import connect_dealer, new_context, receive_messages

SEND_HIGH = 64
"""Two messages of every rank and more: the rest waits in `_due`."""

MOST_DUE = 4_000
"""Messages that wait for a collector that takes none; then the oldest are given up."""


class Node:
    """Some ranks. All methods on one thread; none of them blocks."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, run_id: str, ranks: range, story: Story
    ) -> None:
        self.ranks = ranks
        self.asked = 0
        """Number of the collector's newest ASK."""
        self._run_id = run_id
        self._story = story
        self.host = SimulatedHost(ranks.start // RANKS_PER_NODE)
        self._host_due_ns = 0
        self._due: deque[tuple[bytes, bytes]] = deque(maxlen=MOST_DUE)
        self._epoch: int | None = None
        self._socket = connect_dealer(
            context, endpoint, send_high=SEND_HIGH, receive_high=SEND_HIGH, max_bytes=MAX_FRAME_BYTES,
        )  # fmt: skip

    @property
    def is_met(self) -> bool:
        """Whether a collector has answered."""
        return self._epoch is not None

    @property
    def n_pending(self) -> int:
        """Messages that are not sent yet."""
        return len(self._due)

    def begin_processes(self, incarnation: int, monotonic_ns: int, unix_ns: int) -> None:
        """New processes: every rank introduces itself."""
        self._sessions = [secrets.randbits(62) + 1 for _ in self.ranks]
        self._next = [1] * len(self.ranks)
        self._hellos = [
            encode(self._make_hello(rank, session, incarnation, monotonic_ns, unix_ns))
            for rank, session in zip(self.ranks, self._sessions, strict=True)
        ]
        self._send_hellos()

    def _make_hello(
        self, rank: int, session: int, incarnation: int, monotonic_ns: int, unix_ns: int
    ) -> Hello:
        local = rank % RANKS_PER_NODE
        return Hello(
            version=VERSION,
            run_id=self._run_id,
            session=session,
            rank=rank,
            world_size=self._story.world,
            local_rank=local,
            incarnation=incarnation,
            host=self.host.name,
            pid=10_000 + rank,
            device=f"cuda:{local}",
            backend="nccl",
            timing_path="reducer",
            monotonic_ns=self.host.clock_ns(monotonic_ns),
            unix_ns=unix_ns,
            budget_pct=1.0,
        )

    def _send_hellos(self) -> None:
        for place, hello in enumerate(self._hellos):
            self._queue_body(place, 0, hello)
            # The first rank's link carries what the host's agent would send.
            if place == 0:
                now_ns = time.monotonic_ns()
                self._queue_numbered(0, encode(self.host.introduction(self._run_id, now_ns, time.time_ns())))
                self._host_due_ns = 0
            if self.ranks.start + place == 0:
                self._queue_numbered(
                    # Who simulates is said by the real host's name: the others are made up.
                    place,
                    encode(Card({"script": "simulated", "host": socket.gethostname()})),
                )
            self._queue_numbered(place, encode(Membership(0, "0", "nccl", ())))
            self._queue_numbered(place, encode(Layout(1, self._story.buckets)))

    def offer_message(self, rank: int, message: Message) -> None:
        """A numbered message of a rank."""
        self._queue_numbered(rank - self.ranks.start, encode(message))

    def report_host(self, now_ns: int) -> None:
        """Report the readings and the clock of its host, if they are due."""
        if now_ns < self._host_due_ns:
            return
        self._host_due_ns = now_ns + HOST_NS
        if self.host.number:
            self._queue_numbered(0, encode(self.host.compare_clocks(now_ns)))
        self._queue_numbered(
            0, encode(self.host.read_usage(now_ns, kept=self.n_pending if self.n_pending > SEND_HIGH else 0))
        )

    def send_heartbeat(self, rank: int, message: Message) -> None:
        """Send a heartbeat of a rank."""
        self._queue_body(rank - self.ranks.start, 0, encode(message))

    def work_link(self) -> None:
        """Send what can be sent, and read what the collector sent."""
        while self._due:
            try:
                self._socket.send_multipart(self._due[0], zmq.NOBLOCK)
            except zmq.Again:
                break
            self._due.popleft()
        for message in receive_messages(self._socket):
            self._take_answer(message)

    def close(self, patience_s: float) -> None:
        """Close the connection. Messages that are not sent within `patience_s` are dropped."""
        self._socket.close(linger=int(1000 * patience_s))

    def _take_answer(self, message: Message) -> None:
        if isinstance(message, Ask) and not asks_for_samples(message.number):
            self.asked = message.number
        elif isinstance(message, Ack) and message.epoch != self._epoch:
            before, self._epoch = self._epoch, message.epoch
            # The first answer tells only which collector it is; a new one knows nobody.
            if before is not None:
                self._send_hellos()

    def _queue_numbered(self, place: int, body: bytes) -> None:
        self._queue_body(place, self._next[place], body)
        self._next[place] += 1

    def _queue_body(self, place: int, number: int, body: bytes) -> None:
        # The oldest kept is the message itself: see above.
        head = msgpack.packb((self._sessions[place], self.ranks.start + place, number, max(1, number)))
        self._due.append((head, body))


REPORT_S = 1.0
"""Many ranks report once a second: a rank is stale when nothing has come from it for one and a half."""
QUICK_REPORT_S = 0.25
"""Few report as often as real ones."""
BEAT_EVERY = 4
"""One report in this many is followed by a heartbeat; while the step does not change, every one is."""

HOST_NS = NS
"""An agent reports its host once a second."""

MOST_ROWS = 100
"""Step rows in one message: far from the limits of the link."""

RESTART_AFTER_S = 12.0
"""From a failure until the elastic agent has restarted all ranks."""

REASON = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB"

_STUCK = (
    StackFrame("torch/autograd/graph.py", 841, "_engine_run_backward", "engine.run_backward("),
    StackFrame("torch/_tensor.py", 648, "backward", "torch.autograd.backward("),
    StackFrame("train.py", 118, "train", "loss.backward()"),
    StackFrame("train.py", 164, "<module>", "train()"),
)  # fmt: skip
_FAILED = (StackFrame("train.py", 97, "attention", "scores = q @ k.transpose(-2, -1)"), *_STUCK[2:])


class SimulatedRanks:
    """All ranks of the story. One thread."""

    def __init__(self, story: Story, endpoint: str, run_id: str, *, steps: int = 0) -> None:
        """`steps`: how many steps are simulated in all incarnations together; 0: without end."""
        self._story = story
        self._left = steps or None
        self._context = new_context()
        world = story.world
        self._nodes = [
            Node(
                self._context,
                endpoint,
                run_id,
                range(first_rank, min(world, first_rank + RANKS_PER_NODE)),
                story,
            )
            for first_rank in range(0, world, RANKS_PER_NODE)
        ]
        self.pause_s = 0.02
        self._report_ns = int((QUICK_REPORT_S if world <= 64 else REPORT_S) * NS)
        self._incarnation = -1
        self._restart_ranks(time.monotonic_ns())

    def await_collector(self, now_ns: int) -> bool:
        """Whether no collector has answered yet. The first step begins at the last such moment: one that
        began before the collector's first message would be in no second of the run."""
        for node in self._nodes:
            node.work_link()
        self._end_ns = now_ns
        return not any(node.is_met for node in self._nodes)

    def work_due(self, now_ns: int) -> bool:
        """Do what is due by this moment; False when the steps are done."""
        if self._restart_ns is not None and now_ns >= self._restart_ns:
            self._restart_ranks(now_ns)
        self._take_steps(now_ns)
        done = self._left == 0
        for place, node in enumerate(self._nodes):
            if now_ns >= self._due_ns[place] or done:
                # From the time that was due, so that delays do not add up; never in the past.
                self._due_ns[place] = max(self._due_ns[place] + self._report_ns, now_ns)
                self._report_step(place, node, now_ns)
            if node.asked != self._answered[place]:
                self._answered[place] = node.asked
                self._answer_asks(node, now_ns)
            # What is queued meanwhile arrives all at once afterwards, as after a real cut.
            if place != self._story.cut_host or now_ns >= self._cut_until_ns:
                node.work_link()
        return not done

    def close(self, patience_s: float = 1.0) -> None:
        """Have every rank send BYE. Messages that are not sent within `patience_s` are dropped."""
        now_ns = time.monotonic_ns()
        for node in self._nodes:
            for rank in node.ranks:
                # By its host's clock, as all times of a rank.
                node.offer_message(rank, Bye(node.host.clock_ns(now_ns), "finished"))
        end = time.monotonic() + patience_s
        while any(node.n_pending for node in self._nodes) and time.monotonic() < end:
            for node in self._nodes:
                node.work_link()
            time.sleep(self.pause_s)
        for node in self._nodes:
            node.close(patience_s)
        self._context.term()

    # -- inside ----------------------------------------------------------------------

    def _restart_ranks(self, now_ns: int) -> None:
        """Processes of the next incarnation."""
        self._incarnation += 1
        self._restart_ns: int | None = None
        self._step = 0
        self._end_ns = now_ns
        """When the last finished step ended."""
        self._rows: list[tuple[int, int, list[StepRow]]] = []
        self._ahead: tuple[int, list[StepRow]] | None = None
        """Length and rows of the step that is going on."""
        count = len(self._nodes)
        self._reported = [0] * count
        """By node: steps before this one were reported."""
        self._answered = [node.asked for node in self._nodes]
        self._cut_until_ns = 0
        """Until then nothing arrives from the host that is silent for some time."""
        # Spread over the period, as hosts that started by themselves.
        self._due_ns = [now_ns + self._report_ns * (1 + place) // count for place in range(count)]
        self._reports = 0
        for node in self._nodes:
            node.begin_processes(self._incarnation, now_ns, time.time_ns())

    def _take_steps(self, now_ns: int) -> None:
        """Simulate the steps that have ended by now."""
        while self._restart_ns is None and self._left != 0:
            if self._ahead is None:
                self._ahead = self._story.make_rows(self._step, 0)
            wall_us, rows = self._ahead
            end_ns = self._end_ns + wall_us * 1000
            # Not ended yet: it is taken when its time has come.
            if end_ns > now_ns:
                return
            self._rows.append((self._step, self._end_ns, rows))
            self._ahead = None
            self._left = None if self._left is None else self._left - 1
            if self._story.is_cut_in(self._step):
                self._cut_until_ns = end_ns + int(CUT_S * NS)
            if self._story.is_last_of(self._step):
                self._fail_rank(end_ns)
            self._step, self._end_ns = self._step + 1, end_ns
            self._forget_past()

    def _forget_past(self) -> None:
        reported = min(self._reported)
        # Rows that all have reported are needed by nobody.
        self._rows = [entry for entry in self._rows if entry[0] >= reported]

    def _fail_rank(self, now_ns: int) -> None:
        """Let one rank fail. The others wait for it in the next step, until all are restarted."""
        self._restart_ns = now_ns + int(RESTART_AFTER_S * NS)
        # The last node has the failing rank.
        node = self._nodes[-1]
        # What it has done is reported first: after its BYE nothing is expected.
        self._report_step(len(self._nodes) - 1, node, now_ns)
        stack = Stack("traceback", True, _FAILED)
        now_ns = node.host.clock_ns(now_ns)
        evidence = Evidence(now_ns, 0, self._step + 1, Phase.FORWARD, 0, REASON, (), (stack,), ())
        node.offer_message(self._story.failing_rank, evidence)
        node.offer_message(self._story.failing_rank, Bye(now_ns, "OutOfMemoryError"))

    def _living_ranks(self, node: Node) -> list[int]:
        dead = self._story.failing_rank if self._restart_ns is not None else -1
        return [rank for rank in node.ranks if rank != dead]

    def _report_step(self, place: int, node: Node, now_ns: int) -> None:
        node.report_host(now_ns)
        entries = [entry for entry in self._rows if entry[0] >= self._reported[place]]
        for begin in range(0, len(entries), MOST_ROWS):
            self._offer_steps(node, entries[begin : begin + MOST_ROWS])
        if entries:
            self._reported[place] = entries[-1][0] + 1
        self._reports += 1
        # In turn, so that heartbeats of all ranks do not come in the same round.
        if not entries or self._reports // len(self._nodes) % BEAT_EVERY == place % BEAT_EVERY:
            for rank in self._living_ranks(node):
                node.send_heartbeat(rank, self._make_progress(node.host.clock_ns(now_ns)))

    @staticmethod
    def _offer_steps(node: Node, entries: list[tuple[int, int, list[StepRow]]]) -> None:
        first = entries[0][0]
        times_ns = [node.host.clock_ns(begin_ns) for _, begin_ns, _ in entries]
        base_ns = times_ns[0]
        begins = [(begin_ns - base_ns) // 1000 for begin_ns in times_ns]
        for rank in node.ranks:
            rows = tuple(
                entry[2][rank]._replace(begin_us=begin) for entry, begin in zip(entries, begins, strict=True)
            )
            node.offer_message(rank, Steps(1, first, base_ns, rows))

    def _make_progress(self, now_ns: int) -> Progress:
        every = self._story.detail_every
        us = self._story.step_us
        sequence = 4 * self._step + 4
        return Progress(now_ns, self._step, Phase.BACKWARD, 0, sequence, every, 0.003 * us, 0.3, 0)

    def _answer_asks(self, node: Node, now_ns: int) -> None:
        t_ns = node.host.clock_ns(now_ns)
        stacks = (Stack("MainThread", True, _STUCK),)
        sequence = 4 * self._step + 4
        groups = (GroupState("0", "nccl", self._story.world, sequence, sequence - 1),)
        for rank in self._living_ranks(node):
            node.offer_message(
                rank, Evidence(t_ns, node.asked, self._step, Phase.BACKWARD, 0, "", groups, stacks, ())
            )
