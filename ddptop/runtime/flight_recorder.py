"""torch's flight recorder: the newest collectives of this process, as the process itself remembers them.

Private interfaces of torch (2.6 to 2.13): `_dump_nccl_trace` for NCCL, `_dump_fr_trace` for gloo from 2.13
on. Both give a pickle of torch's own making. With stack traces the first dump takes over a second, so it is
taken without; a full buffer of 2000 collectives takes 25 to 70 ms on two busy cores, and holds the GIL.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from ddptop.protocol.evidence import Operation
from ddptop.runtime.device.events import ignore_captures

NEWEST = 128
"""Operations told: a rank runs ahead of another by the buckets of one backward, or by some broadcasts."""

SIZES_CHARACTERS = 200
"""Of the sizes of one operation's inputs: a coalesced one may have hundreds."""

_DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")


class Flight(NamedTuple):
    """What the flight recorder has."""

    completed: dict[str, int]
    """Last completed collective by name of the process group."""
    operations: tuple[Operation, ...]
    """The newest, oldest first."""
    dumps: tuple[dict[str, Any], ...] = ()
    """torch's own words, one dump of each kind."""


NOTHING = Flight({}, ())


def read(now_unix_ns: int) -> Flight:
    """Read it; NOTHING where torch keeps none. May raise what torch raises, and in theory block."""
    completed: dict[str, int] = {}
    entries: list[dict[str, Any]] = []
    dumps: list[dict[str, Any]] = []
    if torch.cuda.is_initialized():
        ignore_captures()  # a dump of NCCL's asks its events, in this thread
    for dump in _dumps():
        told = pickle.loads(dump(includeCollectives=True, includeStackTraces=False, onlyActive=False))
        dumps.append(told)
        entries += told.get("entries", ())
        completed |= _completed(told)
    return Flight(completed, _newest(entries, now_unix_ns), tuple(dumps))


def _dumps() -> Iterable[Callable[..., bytes]]:
    module = torch._C._distributed_c10d
    return [getattr(module, name) for name in _DUMPS if hasattr(module, name)]


def _completed(told: dict[str, Any]) -> dict[str, int]:
    # NCCL numbers the groups of a process in `pg_status`, gloo names them; entries have both.
    names = {str(entry["pg_id"]): str(entry["process_group"][0]) for entry in told.get("entries", ())}
    return {
        names.get(str(group), str(group)): int(status.get("last_completed_collective", -1))
        for group, status in told.get("pg_status", {}).items()
    }


def _newest(entries: list[dict[str, Any]], now_unix_ns: int) -> tuple[Operation, ...]:
    collectives = [entry for entry in entries if not entry.get("is_p2p")]
    collectives.sort(key=lambda entry: (entry["time_created_ns"], entry["record_id"]))
    return tuple(_operation(entry, now_unix_ns) for entry in collectives[-NEWEST:])


def _operation(entry: dict[str, Any], now_unix_ns: int) -> Operation:
    return Operation(
        group=str(entry["process_group"][0]),
        sequence=int(entry["collective_seq_id"]),
        name=str(entry["profiling_name"]).rsplit(":", 1)[-1],
        sizes=str(entry["input_sizes"])[:SIZES_CHARACTERS],
        dtype=", ".join(dict.fromkeys(map(str, entry.get("input_dtypes", ())))),
        # gloo never leaves the state `scheduled`, but retires what has completed.
        done=bool(entry["retired"]) or entry["state"] == "completed",
        age_ms=max(0, now_unix_ns - int(entry["time_created_ns"])) // 1_000_000,
    )
