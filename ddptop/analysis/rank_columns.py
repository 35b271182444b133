"""All ranks as columns: what their HELLOs say, and what they have reported by now.

A frame reads these.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.rank_table import UNKNOWN
from ddptop.analysis.ranks import PHASE_NAMES
from ddptop.frames.figures import RANK_FIGURES
from ddptop.frames.reasons import Beside
from ddptop.protocol.machine import Usage
from ddptop.protocol.message_run import RANK_READINGS
from ddptop.protocol.messages import NAMES, Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.rank_table import RankTable
    from ddptop.frames.columns import Column, Indices
    from ddptop.protocol.messages import Hello
    from ddptop.protocol.vocabulary import RankPhase

READING_COLUMNS = {
    name: (kind, np.float64 if RANK_FIGURES[name].as_float64 else np.float32)
    for kind in RANK_READINGS
    if kind is not Progress  # its figures hold under conditions, see `reported_columns`
    for name in NAMES[kind]
    if name in RANK_FIGURES
}
"""By name, figures that are fields of a reading: of which one, and the type of their columns."""

_HELLO = attrgetter("hello")
_PHASES = np.array(["", *map(PHASE_NAMES.__getitem__, range(len(PHASE_NAMES))), ""], object)
"""By number of the phase and one: first that of no heartbeat, last that of a number of a later version."""


class HelloColumns(NamedTuple):
    """What the HELLOs of all ranks say; empty or NaN for ranks that have sent none."""

    hellos: list[Hello | None]
    host: tuple[str, ...]
    device: tuple[str, ...]
    local_rank: Column
    pid: Column
    incarnation: Column
    budget_pct: float | None
    """The largest; None: no rank has sent HELLO."""
    of_hosts: dict[str, list[int]]
    """The ranks of each host, in order of the lowest rank."""
    members: Indices
    """(hosts, most ranks of one) the same as rows, filled up with each host's first rank."""
    counts: Indices
    """(hosts,) how many ranks each host has."""
    host_at: Indices
    """(ranks,) place of each rank's host in `of_hosts`; -1: none."""
    gpus: Indices
    """(GPUs,) the last rank on each CUDA device of each host."""


def hello_columns(ranks: Sequence[object], before: HelloColumns | None) -> HelloColumns:
    """The HELLOs of these ranks; `before` itself where they are the same."""
    hellos: list[Hello | None] = [*map(_HELLO, ranks)]
    if before is not None and hellos == before.hellos:  # the same objects, which is quick to see
        return before
    of_hosts: dict[str, list[int]] = {}
    gpus: dict[tuple[str, str], int] = {}
    for rank, hello in enumerate(hellos):
        if hello is not None:
            of_hosts.setdefault(hello.host, []).append(rank)
            if hello.device.startswith("cuda"):
                gpus[hello.host, hello.device] = rank
    most = max(map(len, of_hosts.values()), default=0)
    places = {name: place for place, name in enumerate(of_hosts)}
    rows = [
        ranks_of_host + ranks_of_host[:1] * (most - len(ranks_of_host)) for ranks_of_host in of_hosts.values()
    ]

    def numbers(name: str) -> Column:
        return np.array([None if hello is None else getattr(hello, name) for hello in hellos], np.float64)

    return HelloColumns(
        hellos,
        tuple("" if hello is None else hello.host for hello in hellos),
        tuple("" if hello is None else hello.device for hello in hellos),
        numbers("local_rank"),
        numbers("pid"),
        numbers("incarnation"),
        max((hello.budget_pct for hello in hellos if hello is not None), default=None),
        of_hosts,
        np.array(rows, np.int64).reshape(len(rows), most),
        np.array([*map(len, of_hosts.values())], np.int64),
        np.array([-1 if hello is None else places[hello.host] for hello in hellos], np.int64),
        np.array([*gpus.values()], np.int64),
    )


def phase_names(table: RankTable) -> tuple[RankPhase, ...]:
    """The phase of each rank, by its newest heartbeat; empty: none has come."""
    numbers = np.nan_to_num(table.newest_values(Progress, "phase"), nan=-1).astype(np.int64) + 1
    return tuple(_PHASES.take(numbers, mode="clip").tolist())


def reported_columns(table: RankTable, hellos: HelloColumns, now_ns: int) -> dict[str, Column]:
    """Columns of a frame that are no figures over steps, but what the ranks have reported by `now_ns`."""
    introduced = ~np.isnan(hellos.pid)
    step = table.step.astype(np.float64)
    age_ms = np.maximum(now_ns - table.heard_ns, 0) / 1e6
    of_beats = partial(table.newest_values, Progress)
    bucket, sequence = of_beats("bucket"), of_beats("sequence")
    in_this_step = (bucket >= 0) & (of_beats("step") == step)
    joined = np.where(introduced, table.joined.astype(np.float64), np.nan)
    micro_steps = np.where(table.micro_steps == UNKNOWN, np.nan, table.micro_steps)
    return {
        "age_ms": np.where(introduced, age_ms, np.nan),
        "step": np.where(introduced, step, np.nan),
        "bucket": np.where(in_this_step, bucket, np.nan),
        "sequence": np.where(sequence >= 0, sequence, np.nan),
        "records": table.records.astype(np.float64),
        "lost_records": table.lost_records.astype(np.float64),
        **{
            name: table.newest_values(kind, name).astype(dtype)
            for name, (kind, dtype) in READING_COLUMNS.items()
        },
        "joined": joined.astype(np.float32),
        "micro_steps": micro_steps.astype(np.float32),
    }


def usage_beside(table: RankTable, rank: int, late: Sequence[int], name: str) -> Beside:
    """A number of the reading of a rank's process beside those of the ranks that are not `late`."""
    column = table.newest_values(Usage, name)
    other_values = np.delete(column, late)
    least = float(np.fmin.reduce(other_values, initial=np.nan))
    return Beside(float(column[rank]), float(np.fmax.reduce(other_values, initial=0.0)), least)
