"""torch's flight recorder: the newest collectives of this process, and its dumps as files in the run folder.

torch's own analyser reads the files, `flight/ddptop_<backend>_rank_<rank>`; those of an ASK replace those of
the one before. It can be run by hand on the copies that are kept beside the recording
(`collector/flight_analyser.py`): `torchfrtrace --allow-incomplete-ranks FOLDER`, and where there are dumps of
gloo and of NCCL, one after the other with `--prefix ddptop_gloo_rank_` and `--prefix ddptop_nccl_rank_`. It
unpickles what it finds, and a pickle can run any code: give it a folder only where no other user can have
written.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ddptop.host.folders import open_private, write_private
from ddptop.host.runs import flight_folder
from ddptop.protocol.evidence import Operation
from ddptop.training.device.events import ignore_captures
from ddptop.training.evidence.flight_analysis import MAX_BYTES, NUMBER, dump_name, is_done
from ddptop.training.torch_compat.process_groups import flight_dumps, group_configs

NEWEST = 128
"""Operations sent: a rank runs ahead of another by the buckets of one backward, or by some broadcasts."""

SIZES_CHARACTERS = 200
"""Characters of the sizes of one operation's inputs: a coalesced one may have hundreds."""


class Flight(NamedTuple):
    """The contents of the flight recorder."""

    completed: dict[str, int]
    """Last completed collective by name of the process group."""
    operations: tuple[Operation, ...]
    """The newest, oldest first."""
    dumps: tuple[dict[str, Any], ...] = ()
    """torch's own dumps, one for each backend's recorder."""


NOTHING = Flight({}, ())


def read_flight(now_unix_ns: int) -> Flight:
    """Read it; NOTHING where torch keeps none. May raise what torch raises, and in theory block."""
    completed: dict[str, int] = {}
    entries: list[dict[str, Any]] = []
    dumps: list[dict[str, Any]] = []
    if torch.cuda.is_initialized():
        ignore_captures()  # a dump of NCCL's queries its events, in this thread
    for dump in flight_dumps():
        dumps.append(dump)
        entries += dump.get("entries", ())
        completed |= _completed_by_group(dump)
    return Flight(completed, _newest_operations(entries, now_unix_ns), tuple(dumps))


def _completed_by_group(dump: dict[str, Any]) -> dict[str, int]:
    """Last completed collective by group: from the recorder's status or from its entries, whichever is later.

    gloo completes collectives in several threads, and each writes its own number into the status: a thread
    that is late leaves an older number there.
    """
    # NCCL numbers the groups of a process in `pg_status`, gloo names them; entries have both.
    entries = dump.get("entries", ())
    names = {str(entry["pg_id"]): str(entry["process_group"][0]) for entry in entries}
    completed = {
        names.get(str(group), str(group)): int(status.get("last_completed_collective", -1))
        for group, status in dump.get("pg_status", {}).items()
    }
    for group in set(names.values()) & completed.keys():
        # Point-to-point operations are numbered apart.
        group_entries = [e for e in entries if str(e["process_group"][0]) == group and not e.get("is_p2p")]
        pending = [int(e["collective_seq_id"]) - 1 for e in group_entries if not is_done(e)]
        shown = (
            min(pending) if pending else max((int(e["collective_seq_id"]) for e in group_entries), default=-1)
        )
        completed[group] = max(completed[group], shown)
    return completed


def _newest_operations(entries: list[dict[str, Any]], now_unix_ns: int) -> tuple[Operation, ...]:
    collectives = [entry for entry in entries if not entry.get("is_p2p")]
    # In order of time first: each backend's buffer has numbers of its own.
    collectives.sort(key=lambda entry: (entry["time_created_ns"], entry["record_id"]))
    return tuple(_make_operation(entry, now_unix_ns) for entry in collectives[-NEWEST:])


def _make_operation(entry: dict[str, Any], now_unix_ns: int) -> Operation:
    return Operation(
        group=str(entry["process_group"][0]),
        sequence=int(entry["collective_seq_id"]),
        name=str(entry["profiling_name"]).rsplit(":", 1)[-1],
        sizes=str(entry["input_sizes"])[:SIZES_CHARACTERS],
        dtype=", ".join(dict.fromkeys(map(str, entry.get("input_dtypes", ())))),
        done=is_done(entry),
        age_ms=max(0, now_unix_ns - int(entry["time_created_ns"])) // 1_000_000,
    )


NEWEST_DUMPED = 2000
"""Entries of one backend: torch's own default. A larger buffer is cut, as if it had been this one."""

Dump = dict[str, Any]


def write_dumps(run_directory: Path, dumps: Iterable[Dump], number: int) -> None:
    """Write the dumps as files of this rank; none where torch has recorded nothing.

    Raises OSError, and RunDirectoryError where the run's folder is not this user's alone.
    """
    if not dist.is_initialized():
        return
    rank = dist.get_rank()
    for dump in dumps:
        for backend, entries in _by_backend(dump.get("entries", ())).items():
            _write_dump(
                run_directory, dump_name(backend, rank), pack_fitting(make_readable(dump, entries, number))
            )


def make_readable(dump: Dump, entries: list[Dump], number: int) -> Dump:
    """The dump as torch's analyser takes it, with the groups of this process in it.

    gloo (torch 2.13) names one group without a name and without ranks. Entries of groups that are destroyed
    are left out: the analyser fails at them.
    """
    config = dict(dump.get("pg_config", {}))
    config.pop("", None)
    config |= group_configs()
    entries = [entry for entry in entries if entry["process_group"][0] in config]
    return {**dump, "pg_config": config, "entries": entries, NUMBER: number}


def pack_fitting(dump: Dump) -> bytes:
    """The pickle, without the oldest entries where it would be too large."""
    dump = {**dump, "entries": dump["entries"][-NEWEST_DUMPED:]}
    while len(packed := pickle.dumps(dump)) > MAX_BYTES and dump["entries"]:
        dump["entries"] = dump["entries"][(len(dump["entries"]) + 1) // 2 :]
    return packed


def _by_backend(entries: Iterable[Dump]) -> dict[str, list[Dump]]:
    """`gloo` and `nccl` count the collectives of one group apart."""
    backends: dict[str, list[Dump]] = {}
    for entry in entries:
        backends.setdefault(str(entry["profiling_name"]).partition(":")[0], []).append(entry)
    # The name becomes a part of a file's name.
    return {backend: its_entries for backend, its_entries in backends.items() if backend.isidentifier()}


def _write_dump(run_directory: Path, name: str, packed: bytes) -> None:
    with (
        open_private(run_directory) as run,
        open_private(flight_folder(run_directory).name, create=True, inside=run) as folder,
    ):
        write_private(folder, name, packed)
