"""Recorded traces: what the ranks reported of each step without bucket detail, and the script's stamps.

A file holds a line of JSON and an array of int32, (columns, steps, ranks), byte by byte, under LZMA.
`throttled` in the line has the readings in which a rank's CPU quota was used up: rank, ms since the run's
first step began, percent of periods.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import OwnTime, Received, StepRow, Steps
from ddptop.recording.reader import Recording
from tests.made_up_run import hello, run_message
from tests.truth.judge import Stamps
from tests.truth.rows import BY_NAME, Row, cause_of

KEPT = ("wall_us", "data_us", "forward_us", "backward_us", "optimizer_us")
COLUMNS = (*KEPT, *OwnTime._fields)
"""Before the stamps. Where phases begin follows from these; the script's own wall time is the rank's."""

FIRST_OWN_FIELDS = 9
"""Fields of `OwnTime` in the first traces."""

STAMPS = ("late", "backward")
"""Of the script. The first traces have only the one."""

BATCH = 10
"""Steps of a message."""


def write(path: Path, row: Row, folder: Path, windows: int = 5) -> None:
    """Pack the first windows of a recording and its stamps. Every rank must have own times in every step."""
    stamps = Stamps.read(folder)
    ranks, steps = stamps.wall.shape[1], min(len(stamps.wall), windows * stamps.size)
    table = np.zeros((len(COLUMNS) + len(STAMPS), steps, ranks), "<i4")
    for at, name in enumerate(STAMPS, len(COLUMNS)):
        table[at] = np.round(1000 * getattr(stamps, name)[:steps])
    missing = np.ones((steps, ranks), bool)
    begin_ns, throttled = 0, []
    with Recording.open(folder / "run.ddptop") as recording:
        for received in recording.records():
            message = received.message
            if isinstance(message, Usage) and message.throttled_pct:
                pct = round(message.throttled_pct)
                throttled.append((received.rank, (received.t_ns - begin_ns) // 10**6, pct))
            if not isinstance(message, Steps):
                continue
            begin_ns = begin_ns or message.base_ns + 1000 * message.rows[0].begin_us
            for step, one in enumerate(message.rows, message.first_step):
                if step < steps:
                    table[: len(COLUMNS), step, received.rank] = [
                        *(getattr(one, name) for name in KEPT),
                        *one.own,
                    ]
                    missing[step, received.rank] = False
    if missing.any():
        raise ValueError(f"{path.name}: {missing.sum()} steps have no own times")
    stamps.header |= {"row": row.name, "throttled": throttled}
    path.parent.mkdir(parents=True, exist_ok=True)
    planes = table.view(np.uint8).reshape(*table.shape, 4).transpose(3, 0, 2, 1)
    shape = {"steps": steps, "ranks": ranks, "columns": len(COLUMNS), "stamps": STAMPS}
    head = json.dumps(stamps.header | shape).encode()
    path.write_bytes(lzma.compress(head + b"\n" + planes.tobytes(), preset=9 | lzma.PRESET_EXTREME))


def read(path: Path) -> tuple[Row, Stamps, Iterator[Received]]:
    """The row, the stamps, and the messages of a run that has these steps."""
    head, _, data = lzma.decompress(path.read_bytes()).partition(b"\n")
    header = json.loads(head)
    steps, ranks = header["steps"], header["ranks"]
    columns = header.get("columns", len(KEPT) + FIRST_OWN_FIELDS)
    stamped = header.get("stamps", STAMPS[:1])
    planes = np.frombuffer(data, np.uint8).reshape(4, columns + len(stamped), ranks, steps)
    table = np.ascontiguousarray(planes.transpose(1, 3, 2, 0)).view("<i4")[..., 0]
    stamps = Stamps(header, table[0] / 1000, *table[columns:] / 1000)
    row = BY_NAME[header["row"]]
    if row.cause == "gc" and columns <= COLUMNS.index("gc"):  # an earlier version knows only the phase
        row = replace(row, cause=cause_of(row.place))
    if row.kind == "quota" and "throttled" not in header:  # likewise
        row = replace(row, cause=None)
    return row, stamps, _messages(table[:columns], ranks, header.get("throttled", []))


def _messages(table: Any, ranks: int, throttled: list[list[int]]) -> Iterator[Received]:
    yield Received(0, -1, 0, 0, run_message(monotonic_ns=0, unix_ns=10**18))
    for rank in range(ranks):
        message = hello(rank, ranks, session=rank + 1, monotonic_ns=0, unix_ns=10**18)
        yield Received(0, rank, rank + 1, 0, message)
    begins = np.cumsum(table[0], axis=0, dtype=np.int64) - table[0]
    readings = [Received(ms * 10**6, rank, rank + 1, 0, _usage(ms, pct)) for rank, ms, pct in throttled]
    for first in range(0, table.shape[1], BATCH):
        due = [one for one in readings if one.t_ns <= 1000 * int(begins[first, 0])]
        yield from due
        del readings[: len(due)]
        for rank in range(ranks):
            part, base = table[:, first : first + BATCH, rank].T.tolist(), int(begins[first, rank])
            rows = tuple(_row(int(begins[first + i, rank]) - base, values) for i, values in enumerate(part))
            message = Steps(0, first, 1000 * base, rows)
            end_ns = 1000 * (base + rows[-1].begin_us + rows[-1].wall_us)
            yield Received(end_ns + rank, rank, rank + 1, first // BATCH + 1, message)


def _usage(ms: int, throttled_pct: int) -> Usage:
    return Usage(ms * 10**6, 10**9, 100.0, float(throttled_pct))


def _row(begin_us: int, values: list[int]) -> StepRow:
    phases, own = values[: len(KEPT)], OwnTime(*values[len(KEPT) :])
    wall, _, forward, backward, optimizer = phases
    backward_at = wall - optimizer - own.before_optimizer - backward
    forward_at = backward_at - own.before_backward - forward
    at = (max(0, forward_at), max(0, backward_at), wall - optimizer)
    return StepRow(begin_us, *phases, *at, 1, 0, 0, None, (), own)
