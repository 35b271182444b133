"""The closed sets of values in messages, frames and JSON, each spelled once.

They travel as the plain texts that they are; what arrives from another version may hold a value that is not
among these.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

RunOutcome: TypeAlias = Literal["live", "finished", "failed"]
"""`Run.state`: how the collector or the launcher sees the run as a whole."""

RankStatus: TypeAlias = Literal[
    "waiting", "live", "stale", "stalled", "unreachable", "lost", "finished", "failed"
]
"""State of a rank, and of the run on the screen. `waiting`: it has not reported yet; `unreachable`: nothing
arrives from its host, which comes before `lost`."""

HostState: TypeAlias = Literal["live", "unreachable", "lost", "finished"]
"""State of a host: `lost` after SILENT_S without a message from it."""

ENDED = frozenset({"finished", "failed"})
"""States of a run that has ended."""

FAILED_STATES = frozenset({"failed", "lost"})
"""States of a run that has ended badly, of a rank that is gone."""

NOT_ENDED = frozenset({"live", "stale", "stalled", "unreachable", "waiting"})
"""States of a run that goes on; a recording that ends in one of them has lost its end."""

RankPhase: TypeAlias = Literal["", "other", "data", "forward", "backward", "optimizer", "evaluate"]
"""What a rank was in at its last heartbeat, the names of `messages.Phase`; empty: unknown."""

StepPhase: TypeAlias = Literal["data", "forward", "backward", "optimizer", "other"]
"""The parts that a step's time is divided into."""

OwnPlace: TypeAlias = Literal[
    "data",
    "forward",
    "backward",
    "optimizer",
    "before_forward",
    "before_backward",
    "before_optimizer",
    "after_optimizer",
    "between_steps",
    "cpu",
    "gc",
    "uneven_work",
    "start",
    "first_batch",
    "evaluation",
    "compiling",
    "saving",
    "phase",
    "unknown",
]
"""The parts of a rank's own time: `other` is divided by its place. `before_backward`: between forward and
backward (the loss); `after_optimizer`: until the next batch is fetched. `cpu`: in whatever phase, its
training thread waited for a CPU, or `gc`: was paused by Python's garbage collection;
`uneven_work`: its batch was larger. In the ledger also `start`: it began its first step late, `first_batch`
of an epoch, `evaluation`, `compiling`: torch.compile, `saving`: a checkpoint, `phase`: one that the script
declares, and `unknown`: no place of its own is longer than the others'."""

LedgerClass: TypeAlias = Literal[
    "start",
    "data",
    "first_batch",
    "forward",
    "own_backward",
    "optimizer",
    "between",
    "gc",
    "transfer",
    "waiting",
    "evaluation",
    "compiling",
    "saving",
    "phase",
    "stalled",
    "restart",
    "end",
    "unknown",
]
"""The classes of the ledger, in the order of a run: every second of a rank lies in one of them."""

Basis: TypeAlias = Literal["every_step", "arrivals"]
"""What a verdict rests on: the own times of every step, or the arrivals of buckets in detailed steps."""

Pattern: TypeAlias = Literal["persistent", "intermittent", "rotating", "rare"]
"""How a straggler is late: in most steps, now and then, ranks in turn, or in few steps by very much."""

Severity: TypeAlias = Literal["info", "warning", "critical"]
"""How grave an alert or event is."""

Sign: TypeAlias = Literal["good", "busy", "doubt", "warning", "critical"]
"""How a verdict is marked. `good`: nothing to act on; `busy`: no result yet; `doubt`: inexact figures."""

DeviceState: TypeAlias = Literal["", "idle", "compute", "collective", "either", "error"]
"""What a rank's GPU is at. `either`: a kernel or an all-reduce; empty: unknown."""

TrainingKind: TypeAlias = Literal["ddp", "fsdp2", "fsdp", "deepspeed", "dtensor", "collectives", "alone"]
"""What a rank trains with. `collectives`: the script's own; `alone`: one process."""

SHARDED: frozenset[TrainingKind] = frozenset(("fsdp2", "fsdp", "deepspeed", "dtensor"))
"""Kinds whose forward and backward wait in collectives, not only what comes after them."""

FrameSource: TypeAlias = Literal["live", "replay", "simulated"]
"""Where a frame comes from."""

SpanName: TypeAlias = Literal[
    "data", "forward", "backward", "waiting", "moving", "optimizer", "other", "evaluation", "saving"
]
"""Pieces of a rank's step on the timeline; `waiting` and `moving` are exposed wait and exposed transfer."""

NAMES = (
    frozenset(("RunOutcome", "RankStatus", "HostState", "RankPhase", "StepPhase", "Pattern", "Severity"))
    | {"DeviceState", "FrameSource", "SpanName", "OwnPlace", "LedgerClass", "Basis"}
    | {"Sign", "TrainingKind"}
)
"""The sets by name, as annotations of dataclasses have them."""
