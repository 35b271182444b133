"""The flight recorder's dump as a file of the run's folder, such as torch's own analyser reads.

`flight/ddptop_<backend>_rank_<rank>`, a pickle; each ASK's replaces the one before. By hand, on the copies
that are kept beside the recording (`collector/flight_analyser.py`): `torchfrtrace --allow-incomplete-ranks
FOLDER`, and where there are dumps of gloo and of NCCL, one after the other with `--prefix ddptop_gloo_rank_`
and `--prefix ddptop_nccl_rank_`. It unpickles what it finds, and a pickle can run any code: give it a folder
only where nobody else can have written in it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddptop.runtime.flight_analysis import MAX_BYTES, NUMBER, dump_name
from ddptop.transport.private import open_private, write_private
from ddptop.transport.rundir import flight_folder

NEWEST = 2000
"""Entries of one backend: torch's own default. A larger buffer is cut, as if it had been this one."""

Dump = dict[str, Any]


def write(run_directory: Path, dumps: Iterable[Dump], number: int) -> None:
    """Write them in this rank's name; nothing where torch has recorded nothing.

    Raises OSError, and RunDirectoryError where the run's folder is not this user's alone.
    """
    if not dist.is_initialized():
        return
    rank = dist.get_rank()
    for dump in dumps:
        for backend, entries in _by_backend(dump.get("entries", ())).items():
            _write(run_directory, dump_name(backend, rank), fitted(readable(dump, entries, number)))


def readable(dump: Dump, entries: list[Dump], number: int) -> Dump:
    """The dump as torch's analyser takes it, with the groups of this process in it.

    gloo (torch 2.13) names one group without a name and without ranks. Entries of groups that are destroyed
    are left out: the analyser ends at them.
    """
    config = dict(dump.get("pg_config", {}))
    config.pop("", None)
    for group, name in list(distributed_c10d._world.pg_names.items()):
        ranks = sorted(distributed_c10d._world.pg_group_ranks[group])
        config[str(name)] = {"name": str(name), "desc": group.group_desc, "ranks": str(ranks)}
    entries = [entry for entry in entries if entry["process_group"][0] in config]
    return {**dump, "pg_config": config, "entries": entries, NUMBER: number}


def fitted(dump: Dump) -> bytes:
    """The pickle, without the oldest entries where it would be too large."""
    dump = {**dump, "entries": dump["entries"][-NEWEST:]}
    while len(packed := pickle.dumps(dump)) > MAX_BYTES and dump["entries"]:
        dump["entries"] = dump["entries"][(len(dump["entries"]) + 1) // 2 :]
    return packed


def _by_backend(entries: Iterable[Dump]) -> dict[str, list[Dump]]:
    """`gloo` and `nccl` count the collectives of one group apart."""
    found: dict[str, list[Dump]] = {}
    for entry in entries:
        found.setdefault(str(entry["profiling_name"]).partition(":")[0], []).append(entry)
    return {backend: own for backend, own in found.items() if backend.isidentifier()}


def _write(run_directory: Path, name: str, packed: bytes) -> None:
    with (
        open_private(run_directory) as run,
        open_private(flight_folder(run_directory).name, create=True, inside=run) as folder,
    ):
        write_private(folder, name, packed)
