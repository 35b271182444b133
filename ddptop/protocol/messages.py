"""The messages of a run, as frozen dataclasses. The same ones are on the wire and in a recording.

Clocks: `*_ns` is CLOCK_MONOTONIC of the host where it was read, in integer nanoseconds.
Durations and offsets inside a step are integer microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Literal, NamedTuple, TypeAlias, overload

from ddptop.protocol import limits
from ddptop.protocol.arrivals import Arrivals
from ddptop.protocol.evidence import Ask, Evidence, StackSamples
from ddptop.protocol.hosts import About, Host, HostUsage
from ddptop.protocol.machine import Disk, Gpu, Memory, OwnCost, Usage
from ddptop.protocol.ranges import (
    ActivityNumber,
    BucketNumber,
    Count,
    CountOrNone,
    Drift,
    ExitCode,
    Identifier,
    Int64,
    Interval,
    MostItems,
    Nanoseconds,
    Offset,
    PhaseNumber,
    ProcessId,
    Quantity,
    RankNumber,
    RankOrGroup,
    Size,
    Text,
    Texts,
    Version,
    WorldSize,
)
from ddptop.protocol.ranges import Scalar as Scalar
from ddptop.protocol.ranges import Scalars as Scalars
from ddptop.protocol.vocabulary import RunOutcome


class Phase(IntEnum):
    """What a rank's training thread is in at this moment."""

    # The numbers are in recordings: none may change its meaning.
    OTHER = 0
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    EVALUATE = 5
    """Batches or forwards without gradients go on while the step does not change."""


class Activity(IntEnum):
    """What a rank's training thread does at this moment, beside its `Phase`.

    Numbers from WAIT on: it waits in a collective.
    """

    TRAINING = 0
    """It is in a phase, or nothing is known."""
    EVALUATE = 1
    """Since the last training forward it has fetched batches, run forwards without gradients, or put its
    model in evaluation mode."""
    SAVE = 2
    """It is in `torch.save`, or in a save of `torch.distributed.checkpoint`."""
    BEFORE_FORWARD = 3
    BEFORE_BACKWARD = 4
    BEFORE_OPTIMIZER = 5
    AFTER_OPTIMIZER = 6
    # 7 to 15 are left free: whoever reads a number from 16 on knows that the rank waits, also one it does not
    # know.
    WAIT = 16
    """In a collective whose name is not known."""
    ALL_REDUCE = 17
    BARRIER = 18
    BROADCAST = 19
    ALL_GATHER = 20
    REDUCE = 21
    GATHER = 22
    SCATTER = 23
    REDUCE_SCATTER = 24
    ALL_TO_ALL = 25
    RECV = 26


STACK_READ_NS = 200_000_000
"""In a step of which only the end is seen, a rank reads its stack for the phase and the collective of its
heartbeats once the step has lasted so long. Before version 6 of the ledger's sums: after 1 s."""


class Flag(IntEnum):
    """Bits of `StepRow.flags`."""

    DETAIL = 1
    """Every bucket all-reduce of the step is in `cells`."""
    JOINED = 2
    """The rank had run out of inputs under `join()` and only shadowed the others' collectives."""
    LOSS_LOGGED = 4
    """The loss was given by `ddptop.log`, not read from `backward()`."""
    SHADOW = 8
    """The recorder stood aside, to measure or to limit what it costs: only begin and end are known."""
    LATE_NO_SYNC = 16
    """A backward inside `no_sync()`, whose forward was outside, all-reduced: DDP decides in forward."""
    LOSS_UNDIVIDED = 32
    """The script divides each loss by the number of micro-steps: the loss is multiplied by it."""
    WAITS_UNSEEN = 64
    """Its forward and backward may have waited in collectives that were not timed: FSDP on a GPU."""
    FIRST_BATCH = 128
    """The rank fetched the first batch of a pass over its DataLoader."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank introduces itself: first on every connection, so that a restarted collector recognises it."""

    version: Version
    run_id: Text
    session: Identifier
    """Random 63-bit number of this process's recorder: a restarted rank has another one."""
    rank: RankNumber
    world_size: WorldSize
    local_rank: RankNumber
    incarnation: Count
    """Elastic restarts before this process: TORCHELASTIC_RESTART_COUNT, or the number of the rendezvous where
    that is larger, as hosts count restarts each by itself."""
    host: Text
    pid: ProcessId
    device: Text
    backend: Text
    """Backend of the process group: `gloo`, `nccl`."""
    timing_path: Text
    """How bucket all-reduces are timed: `hook` (timed comm hook) or `reducer` (recorder below it)."""
    monotonic_ns: Nanoseconds
    unix_ns: Nanoseconds
    """CLOCK_REALTIME at the moment of `monotonic_ns`."""
    budget_pct: Quantity


@dataclass(frozen=True, slots=True)
class Card:
    """Facts that do not change during a run: versions, script, DDP's options as torch reports them."""

    entries: Scalars


class Bucket(NamedTuple):
    """One gradient bucket; its place in `Layout.buckets` is the bucket number in `StepRow.cells`."""

    model: BucketNumber
    """Which DDP model of the process, from 0 in order of construction."""
    index: BucketNumber  # type: ignore[assignment]  # the established name; tuple.index is not used
    """Bucket index inside that model."""
    bytes: Size
    """Size of the flat gradient buffer."""
    wire_bytes: Size | None
    """Bytes each rank gives to the all-reduce, after compression; None where a hook hides it."""
    parameters: Count | None
    dtype: Text
    hook: Text
    """Name of the communication hook, empty for DDP's own all-reduce."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The buckets of all DDP models of a rank. DDP rebuilds them: each layout is a new generation."""

    generation: Count
    buckets: Annotated[tuple[Bucket, ...], MostItems(limits.MAX_BUCKETS)]


class OwnTime(NamedTuple):
    """What divides one rank's step into its own time and time in which it waited for others. Microseconds.

    Own time of a step: wall time - exposed communication - what it waited in other collectives.
    """

    exposed: int
    """Exposed communication: from the last gradient to the end of backward, where backward waits for the
    all-reduces; summed over the synchronising backwards of the step. -1: not known in one of them."""
    before_forward: int
    """Neither fetching data nor in a phase, before a forward (moving the batch to the device, ...). This and
    the next two without what was waited in collectives; the rest of `other` lies after the optimizer."""
    before_backward: int
    """Between forward and backward: the loss."""
    before_optimizer: int
    """Between backward and optimizer: clipping, logging."""
    waited_data: int
    """Waited in collectives of the script's own (a barrier, a metric) while fetching data; likewise below."""
    waited_forward: int
    waited_backward: int
    waited_optimizer: int
    waited_other: int
    cpu_wait: int = -1
    """How long the training thread could have run but had no CPU (run delay of
    /proc/PID/task/TID/schedstat), without exposed communication. -1: not known."""
    gc: int = -1
    """Pauses of the training thread for Python's garbage collection, in whatever place. -1: not known."""
    elements: int = -1
    """No time: elements of the tensors that the step's forwards were given, or tokens that the script logs.
    -1: not known."""
    first_optimizer: int = -1
    """No time: which optimizer of the rank stepped first in it, from 0 in the order in which they first
    stepped. -1: not known."""
    buffers: int = -1
    """The part of what was waited in collectives (`waited_...`) that was in DDP's broadcasts of buffers. -1:
    not known."""


MEASURED_TOGETHER = 9
"""The first fields of `OwnTime`: where one after `exposed` is not known, none of them is."""

UNKNOWN_OWN_TIME = OwnTime._make([-1] * len(OwnTime._fields))
"""Nothing is known: ddptop 0.1.0 measures only the phases."""


class StepRow(NamedTuple):
    """One optimizer step of one rank.

    `begin_us` counts from `Steps.base_ns`; every other time counts from the step's begin.
    `cells` holds three integers for each bucket all-reduce, in order of launch:
    bucket number in the layout, ready, end - ready (-1: the end is not known).
    """

    begin_us: int
    wall_us: int
    data_us: int
    forward_us: int
    backward_us: int
    optimizer_us: int
    forward_at_us: int
    """Start of the first DDP forward."""
    backward_at_us: int
    """Start of the last backward, the one that synchronises."""
    optimizer_at_us: int
    """Start of the first optimizer step; -1 where there was none."""
    micro_steps: int
    """Backward passes in this step: 1 without gradient accumulation."""
    flags: int
    cost_us: int
    """Time spent in ddptop's own code on the training threads during this step."""
    loss: float | None
    cells: tuple[int, ...]
    own: OwnTime = UNKNOWN_OWN_TIME


class AlikeRows(Sequence[StepRow]):
    """Rows that differ only in their begin and length, and have no cells."""

    def __init__(self, row: StepRow, begins_us: Sequence[int], walls_us: Sequence[int]) -> None:
        self.row, self.begins_us, self.walls_us = row, begins_us, walls_us

    def __len__(self) -> int:
        return len(self.begins_us)

    @overload
    def __getitem__(self, index: int) -> StepRow: ...
    @overload
    def __getitem__(self, index: slice) -> AlikeRows: ...
    def __getitem__(self, index: int | slice) -> StepRow | AlikeRows:
        if isinstance(index, slice):
            return AlikeRows(self.row, self.begins_us[index], self.walls_us[index])
        return self.row._replace(begin_us=self.begins_us[index], wall_us=self.walls_us[index])


@dataclass(frozen=True, slots=True)
class Steps:
    """A batch of consecutive steps of one layout generation. A gap between two batches is a loss."""

    generation: Count
    first_step: Count
    base_ns: Nanoseconds
    rows: Sequence[StepRow]
    """A tuple, `AlikeRows`, or part of the columns in which many messages were decoded together."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened once: `milestone`, `exit`, `lost_rank`, `recording`, ..."""

    kind: Text
    t_ns: Nanoseconds
    rank: RankOrGroup
    """-1: the group as a whole."""
    step: CountOrNone
    """-1: outside any step."""
    fields: Scalars = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """A heartbeat, read by the publisher thread at no cost to training. Only the newest one counts."""

    t_ns: Nanoseconds
    step: Count
    """The step that the training thread is in."""
    phase: PhaseNumber
    """A `Phase`."""
    bucket: CountOrNone
    """All-reduces launched in this step so far; -1 in a step without bucket detail."""
    sequence: CountOrNone
    """Sequence number of the process group; -1 where the backend has none."""
    detail_every: Interval
    """Bucket detail is taken in one of so many steps."""
    cost_us: Quantity
    """Own cost per step: training threads and publisher CPU, over the last seconds; 0: not known yet."""
    cost_pct: Quantity
    """`cost_us` as a share of the step time, in %."""
    failures: Count
    """Exceptions of our own that were caught at the training boundary."""
    activity: ActivityNumber = 0
    """An `Activity`; a later version may have more."""
    since_ns: Nanoseconds = 0
    """Since when it is in this phase or activity, by the clock of `t_ns`; 0: not known."""
    epoch: CountOrNone = -1
    """Which pass over its DataLoader the rank trains on, from 0; -1: it trains on no DataLoader."""
    batch: CountOrNone = -1
    """Batches of this pass that the script has taken."""
    batches: CountOrNone = -1
    """Batches that this pass has; -1: not known. A message has at most 15 elements: this is the last."""


@dataclass(frozen=True, slots=True)
class Logged:
    """The newest values that a script logged with `ddptop.log`. Only the newest of each name counts."""

    step: Count
    """The step in which the newest of them was logged."""
    values: Scalars
    """Finite numbers; None for NaN or Inf."""


@dataclass(frozen=True, slots=True)
class Bye:
    """The rank's process ends in an orderly way: after this, silence is no alarm."""

    t_ns: Nanoseconds
    reason: Text
    """`finished`, or the name of the exception that ends the process."""
    sequence: CountOrNone = -1
    """Sequence number of the process group, which the others may be ahead of; -1: there is none any more."""


@dataclass(frozen=True, slots=True)
class Replica:
    """Checksums of some pieces of a rank's parameters, after a step. Equal replicas have equal ones."""

    step: Count
    """The step after which the parameters were read."""
    model: BucketNumber
    pieces: Count
    """Into how many pieces the parameters are divided."""
    first: Count
    """Number of the first piece; they wrap around after the last."""
    values: Annotated[tuple[Int64, ...], MostItems(limits.MAX_CHECKSUMS)]


@dataclass(frozen=True, slots=True)
class Clock:
    """Offset between the clock of a host and the collector's, as the host's agent measured it."""

    t_ns: Nanoseconds
    """By the host's clock."""
    host: Text
    offset_ns: Offset
    """To be added to the host's CLOCK_MONOTONIC to get the collector's."""
    bound_ns: Nanoseconds
    """The offset is wrong by at most this, at `t_ns` and until the next CLOCK of the host."""
    drift_ppb: Drift = 0
    """How much faster the collector's clock runs, in parts per billion: at `t` the offset is
    `offset_ns + drift_ppb * (t - t_ns) / 1e9`."""
    round_trip_ns: Nanoseconds = 0
    """Round trip of the exchange that gave the offset; 0: no exchange (simulated hosts)."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The process group that a DDP model reduces its gradients in."""

    model: BucketNumber
    group: Text
    backend: Text
    ranks: Annotated[tuple[RankNumber, ...], MostItems(limits.MAX_MEMBERS)]
    """Global ranks, ascending; empty: all."""


@dataclass(frozen=True, slots=True)
class Run:
    """The collector's own first message in a recording, and again when the run's state changes."""

    version: Version
    run_id: Text
    name: Text
    script: Text
    argv: Texts
    unix_ns: Nanoseconds
    monotonic_ns: Nanoseconds
    state: RunOutcome
    exit_code: ExitCode | None
    simulated: bool


# Between the two ends of a link; not recorded.


@dataclass(frozen=True, slots=True)
class Ack:
    """Collector to rank: all up to `seq` is safe. `nack`: something after it is missing, send again."""

    epoch: Identifier
    """Random number of the collector process: a new one means that it restarted."""
    seq: Count
    nack: bool
    detail_every: Interval
    """The largest sampling interval of the group, for all ranks to share the same detailed steps."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Viewer to collector: room for one more frame.

    `cursor` is the number of history points the viewer already has, `epoch` whose history that is;
    `focus` is the rank whose single steps it requests as well, -1 for none. `want` requests one more part of
    the frame (`ddptop.frames.detail`), empty: none.
    """

    epoch: Identifier
    cursor: Count
    focus: RankOrGroup
    want: Text = ""


@dataclass(frozen=True, slots=True)
class State:
    """Collector to viewer: one frame of the group (`ddptop.frames.codec`)."""

    epoch: Identifier
    skipped: Count
    """Frames that were coalesced because the viewer had given no credit."""
    frame: bytes


Message: TypeAlias = (
    Hello | Steps | Event | Ack | Layout | Card | Progress | Bye | Run | Credit | State | Usage | Ask
    | Evidence | Replica | Clock | Membership | Gpu | Memory | Logged | Host | HostUsage | About
    | StackSamples | Arrivals | Disk | OwnCost
)  # fmt: skip


Sender: TypeAlias = Literal["rank", "agent", "about"]
"""`about`: the agent of a rank's host, in an ABOUT."""


class MessageTraits(NamedTuple):
    """How the messages of a class are sent and kept."""

    code: int
    """First element on the wire and in recordings. Codes are never reused; 64 and more belong to the frames
    of links that hold several messages (`ddptop.transport.bundles`)."""
    senders: tuple[Sender, ...] = ()
    """Empty: it is between collector and viewers, or to a rank."""
    is_numbered: bool = True
    """Whether it is acked; others introduce their sender, or only the newest of them counts."""
    is_reading: bool = False
    """Whether only the newest one counts: many are then taken as columns."""
    is_passing: bool = False
    """Whether it matters for a moment only; others are lasting: they hold until a later one replaces them."""
    is_essential: bool = False
    """Whether recorded messages that follow it cannot be read without it: it is stored twice."""


TRAITS: dict[type[Message], MessageTraits] = {
    Hello: MessageTraits(1, ("rank",), is_numbered=False, is_essential=True),
    Steps: MessageTraits(2, ("rank",), is_passing=True),
    Event: MessageTraits(3, ("rank", "agent", "about")),
    Ack: MessageTraits(4),
    Layout: MessageTraits(5, ("rank",), is_essential=True),
    Card: MessageTraits(6, ("rank",), is_essential=True),
    Progress: MessageTraits(7, ("rank",), is_numbered=False, is_reading=True, is_passing=True),
    Bye: MessageTraits(8, ("rank",)),
    Run: MessageTraits(9, is_essential=True),
    Credit: MessageTraits(10),
    State: MessageTraits(11),
    Usage: MessageTraits(12, ("about",), is_reading=True, is_passing=True),
    Ask: MessageTraits(13),
    Evidence: MessageTraits(14, ("rank", "about")),
    Replica: MessageTraits(15, ("rank",), is_passing=True),
    Clock: MessageTraits(16, ("agent",), is_reading=True),
    Membership: MessageTraits(17, ("rank",), is_essential=True),
    Gpu: MessageTraits(18, ("about",), is_reading=True, is_passing=True),
    Memory: MessageTraits(19, ("rank",), is_reading=True, is_passing=True),
    Logged: MessageTraits(20, ("rank",), is_passing=True),
    Host: MessageTraits(21, ("agent",), is_numbered=False),
    HostUsage: MessageTraits(22, ("agent",), is_numbered=False, is_reading=True, is_passing=True),
    About: MessageTraits(23, ("agent",)),
    StackSamples: MessageTraits(24, ("rank",)),
    Arrivals: MessageTraits(25, ("rank",), is_passing=True),
    Disk: MessageTraits(26, ("rank",), is_reading=True, is_passing=True),
    OwnCost: MessageTraits(27, ("rank",), is_reading=True, is_passing=True),
}
"""What is true of each class of messages. To add one: a class, its line in `Message` and here, what sends it,
and what takes it (`analysis/reducer.py`; readings are taken by themselves)."""


def select_kinds(applies: Callable[[MessageTraits], bool]) -> tuple[type[Message], ...]:
    """The classes whose traits are so."""
    return tuple(kind for kind, traits in TRAITS.items() if applies(traits))


CODES: dict[type[Message], int] = {kind: traits.code for kind, traits in TRAITS.items()}
KINDS: dict[int, type[Message]] = {code: kind for kind, code in CODES.items()}
"""By the first element of a message, its class."""
NAMES: dict[type[Message], tuple[str, ...]] = {kind: tuple(kind.__dataclass_fields__) for kind in CODES}
"""The fields of a message, in their order on the wire."""


def message_code(body: bytes) -> int:
    """Type of a message without decoding it: an array of at most 15 elements, the type and 14 fields, begins
    with one byte of length. 0 for HELLO, which has 15 fields: it is never looked for by its type."""
    # 0 is no code: bytes that are no message are equal to none.
    return body[1] if len(body) > 1 and body[0] & 0xF0 == 0x90 else 0


def count_rows(message: Message) -> int:
    """How many steps a message reports; 0 for all but STEPS."""
    return len(message.rows) if isinstance(message, Steps) else 0


class Received(NamedTuple):
    """A message as the collector received it, and as a recording keeps it."""

    t_ns: int
    """Collector's CLOCK_MONOTONIC on arrival."""
    rank: int
    """-1: the collector itself, or an agent."""
    session: int
    """0: the collector itself; else of the rank's process, or of the agent."""
    seq: int
    """Number on the acked link; 0 for what is not acked (HELLO, PROGRESS, the collector's own)."""
    message: Message


FINISHED = "finished"
"""Reason of a BYE: its process ends by itself. The exit code shows whether that is a failure."""

LEFT = "left its group"
"""Reason of a BYE: its script has destroyed its process groups, and the training with it. What started the
process may kill it from now on (Ray does, once its train function has returned): that is no failure."""

LAUNCHER_SIGNAL = "launcher_signal"
"""Kind of an event: the launcher of a host has received a signal that ends its ranks."""

BATCH_SIZE = "batch_size"
"""Entry of a CARD: how many samples a full batch of the rank's DataLoader has."""

REACH = "reach"
"""Name of the milestone with which a rank in `init_process_group` says, anew where it changes, whether it
reaches the address of the store."""

MILESTONE = "milestone"
"""Kind of an event: a rank has come to a place on the way to its first step, `name` in its fields."""

RECORDED = "recorded"
"""Name of the milestone from which on a rank's steps are recorded: what its HELLO has left open is in the
fields of the event."""

BAD_WEIGHTS = "bad_weights"
"""Kind of an event: at the end of its training, weights of a rank are NaN."""

IN_INITIALIZATION = "in_initialization"
"""Kind of an event: after a restart, ranks of a host have been in `init_process_group` for some time."""

UNRECORDED = "unrecorded"
"""Kind of an event: step records of a rank that had arrived are not in the recording: its disk was full."""

RECORDING_STOPPED = "recording stopped"
"""How the note of a recording begins whose disk takes nothing any more."""

ORDERLY_REASONS = frozenset({FINISHED, LEFT})
"""Reasons of a BYE that are no failure."""
