"""torch's own analysis of a stall: `python -m ddptop.training.evidence.flight_analysis`.

Arguments: FOLDER NUMBER [KEPT].

Reads the dumps that ranks wrote for the ASK of this number, copies them to the folder whose inherited
descriptor is KEPT, and prints JSON: `{"lines": [...]}`. Started by the collector, in a process of its own: it
imports torch, and torch's analyser (2.10 and later; with an older one there are no lines) fails at what it
does not know. Each of its results is one line.
"""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ddptop.host.folders import check_private, open_private, open_regular, write_private
from ddptop.host.processes import InputEnd

NAMED = 8
"""Ranks that a line lists one by one."""

SIZES_CHARACTERS = 60
"""Characters of the sizes of one side's inputs."""


def describe_collective(collective: Any) -> str:
    """A `Collective` of torch's analyser as text; empty where nothing is wrong with it."""
    missing, mismatches = set(collective.missing_ranks or ()), collective.mismatch_collectives or {}
    parts = []
    if missing:
        has = "has" if len(missing) == 1 else "have"
        parts.append(f"{format_ranks(missing)} {has} not joined {_call_name(collective)}")
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, differing in sorted(mismatches.items()):
        call = _call_name(differing), str(differing.input_sizes), str(differing.collective_state)
        alike.setdefault(call, []).append(rank)
    agreeing = set(collective.expected_ranks) - set(mismatches) - missing
    for ranks in alike.values():
        parts.append(
            _describe_difference(
                mismatches[ranks[0]], format_ranks(ranks), collective, format_ranks(agreeing)
            )
        )
    # The default group is `0`, and is not named.
    group, _, description = str(collective.pg_desc).partition(":")
    where = "" if group == "0" else f" of group {group}" + (f" ({description})" if description else "")
    return f"{', '.join(parts)}: sequence {collective.collective_seq_id:,}{where}" if parts else ""


def _describe_difference(differing: Any, whose: str, collective: Any, agreeing: str) -> str:
    """How the calls of some ranks differ from those of the others."""
    kind = differing.type_of_mismatch.state.name
    call = f"{whose} {'call' if whose.startswith('ranks') else 'calls'} {_call_name(differing)}"
    if kind == "COLLECTIVE_TYPE_MISMATCH":
        return f"{call}, {agreeing} {_call_name(collective)}"
    if kind == "COLLECTIVE_STATE_MISMATCH":
        states = f"is {differing.collective_state} on {whose}, {collective.collective_state} on {agreeing}"
        return f"{_call_name(differing)} {states}"
    if kind == "COLLECTIVE_DTYPE_MISMATCH":
        return f"{call} with other data types than {agreeing}"
    return f"{call} of {_input_sizes(differing)}, {agreeing} of {_input_sizes(collective)}"


def _call_name(collective: Any) -> str:
    # `nccl:all_reduce`: the backend stands before the name.
    return str(collective.collective_name).rpartition(":")[2]


def _input_sizes(collective: Any) -> str:
    return str(collective.input_sizes)[:SIZES_CHARACTERS]


def format_ranks(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0 2 3`, `ranks 0 1 2 3 4 5 6 7 and 4 more`."""
    numbers = sorted(ranks)
    more_text = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return ("rank " if len(numbers) == 1 else "ranks ") + " ".join(map(str, numbers[:NAMED])) + more_text


NICENESS = 5
"""Above the collector's own: ranks that are not in the stall need their cores."""

MAX_LINES = 3
"""More process groups than this are stalled as the consequence of one that is."""

NUMBER = "ddptop_ask"
"""Key of the ASK's number in a dump: those of one ASK belong together. torch's reader ignores it."""

_FILE = re.compile(r"ddptop_(?P<backend>[A-Za-z]\w*?)_rank_(?P<rank>\d+)")
"""Names that no other program uses; torch's analyser takes any prefix before the number."""

MAX_BYTES = 1 << 20
"""Bytes of one file; an entry takes some 225 bytes, more where a collective has many inputs."""

Dump = dict[str, Any]
Entry = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Copy, analyse, print. Raises what torch's analyser raises."""
    os.nice(NICENESS)
    dumps = read_dumps(Path(arguments[0]), int(arguments[1]))
    if len(arguments) > 2:
        keep_dumps(dumps, int(arguments[2]))
    lines = [line for ranks in dumps.values() for line in analyse_dumps(ranks)]
    print(json.dumps({"lines": lines[:MAX_LINES]}))
    return 0


def read_dumps(folder: Path, number: int) -> dict[str, dict[int, Dump]]:
    """The dumps written for this ASK: backend -> rank -> dump."""
    dumps: dict[str, dict[int, Dump]] = {}
    with open_private(folder) as opened:
        names = sorted(os.listdir(opened))  # noqa: PTH208 - pathlib takes no descriptor
        for name in filter(None, map(_FILE.fullmatch, names)):
            dump = pickle.loads(_read_own(name[0], opened))
            if dump.get(NUMBER) == number:
                dumps.setdefault(name["backend"], {})[int(name["rank"])] = dump
    return dumps


def _read_own(name: str, folder: int) -> bytes:
    """The bytes of a file that this user alone can have written: unpickled, they may run anything.

    Raises OSError or RunDirectoryError for any other.
    """
    with os.fdopen(open_regular(name, inside=folder), "rb") as file:
        check_private(file.fileno(), name)
        return file.read(MAX_BYTES)


def keep_dumps(dumps: Mapping[str, Mapping[int, Dump]], folder: int) -> None:
    """Write these dumps to the opened folder, in place of others: those of two stalls do not fit together.

    The folder was made for them (`ddptop.collector.flight_analyser`).
    """
    if not dumps:
        return
    check_private(folder, "the folder of kept dumps")
    for name in filter(_FILE.fullmatch, os.listdir(folder)):
        os.unlink(name, dir_fd=folder)
    for backend, ranks in dumps.items():
        for rank, dump in ranks.items():
            write_private(folder, dump_name(backend, rank), pickle.dumps(dump))


def dump_name(backend: str, rank: int) -> str:
    """File name of a rank's dump of one backend."""
    return f"ddptop_{backend}_rank_{rank}"


def analyse_dumps(dumps: Mapping[int, Dump]) -> list[str]:
    """What torch's analyser finds in the dumps of one backend (by rank): of each process group the first."""
    try:
        from torch.distributed.flight_recorder.components.builder import build_db
        from torch.distributed.flight_recorder.components.config_manager import JobConfig
        from torch.distributed.flight_recorder.components.types import COLLECTIVES
    except ImportError:
        return []
    known_entries = {rank: _drop_unknown(dump["entries"], COLLECTIVES) for rank, dump in dumps.items()}
    entries = under_way(known_entries, _group_members(dumps))
    version = str(next(iter(dumps.values()))["version"])
    details = {
        str(rank): {**dump, "rank": rank, "entries": entries[rank]} for rank, dump in sorted(dumps.items())
    }
    # A rank that cannot answer leaves no dump.
    options = JobConfig().parse_args(["--allow-incomplete-ranks"])
    first: dict[str, str] = {}
    for collective in build_db(details, options, version).collectives:
        line = describe_collective(collective)
        if line:
            first.setdefault(str(collective.group_id), line)
    return list(first.values())


def _drop_unknown(entries: Iterable[Entry], collectives: Iterable[str]) -> list[Entry]:
    """The entries that the analyser can read: without collectives that it does not know (gloo's sparse
    all-reduce), and without point-to-point, whose two ends it does not take for one operation."""
    known_names = {*collectives, "coalesced"}
    return [
        entry
        for entry in entries
        if not entry["is_p2p"] and str(entry["profiling_name"]).partition(":")[2] in known_names
    ]


def _group_members(dumps: Mapping[int, Dump]) -> dict[str, set[int]]:
    """Ranks by name of the process group."""
    return {
        # torch writes the list as text.
        str(name): set(ast.literal_eval(config["ranks"]))
        for dump in dumps.values()
        for name, config in dump["pg_config"].items()
    }


def under_way(
    entries: Mapping[int, list[Entry]], members: Mapping[str, Collection[int]]
) -> dict[int, list[Entry]]:
    """Each rank's entries from the first on, group by group, that some rank has not completed or not begun.

    No rank waits for what all have completed, and the older end of the ranks' buffers is never the same; the
    analyser would take the difference for missing ranks. Its own remedy, to begin where the last buffer
    begins, counts the entries of all groups together: they are numbered anew.
    """
    begins: dict[str, int] = {}
    for group in {_group_name(entry) for rank_entries in entries.values() for entry in rank_entries}:
        progress, cuts = [], [0]
        for rank in entries.keys() & set(members[group]):
            of_group = [entry for entry in entries[rank] if _group_name(entry) == group]
            reached = _sequence_number(of_group[-1]) if of_group else 0
            waiting = [_sequence_number(entry) for entry in of_group if not is_done(entry)]
            progress.append(min(waiting, default=reached + 1))
            # Its buffer has dropped older entries: what is missing before this one says nothing.
            if of_group and entries[rank][0]["record_id"] > 0:
                cuts.append(_sequence_number(of_group[0]))
        begins[group] = max(min(progress), *cuts)
    return {
        rank: [
            {**entry, "record_id": number}
            for number, entry in enumerate(
                e for e in rank_entries if _sequence_number(e) >= begins[_group_name(e)]
            )
        ]
        for rank, rank_entries in entries.items()
    }


def _group_name(entry: Entry) -> str:
    return str(entry["process_group"][0])


def _sequence_number(entry: Entry) -> int:
    return int(entry["collective_seq_id"])


def is_done(entry: Entry) -> bool:
    # gloo never leaves the state `scheduled`, but retires what has completed.
    return bool(entry["retired"]) or entry["state"] == "completed"


if __name__ == "__main__":
    InputEnd(lambda: os._exit(1))  # the collector has been killed
    sys.exit(main(sys.argv[1:]))
