"""What torch's own analyser finds in made-up dumps, in our words; and nothing where there is nothing."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ddptop.host.folders import RunDirectoryError, open_private
from ddptop.training.evidence.flight_analysis import (
    NUMBER,
    analyse_dumps,
    dump_name,
    format_ranks,
    keep_dumps,
    read_dumps,
    under_way,
)
from ddptop.training.evidence.flight_recorder import MAX_BYTES, NEWEST_DUMPED, pack_fitting

NAMES = {"0": "default_pg", "5": "metrics"}


def entry(sequence: int, name: str = "all_reduce", size: int = 8, **more: Any) -> dict[str, Any]:
    """One of NCCL's, completed unless it is said not to be. Torch's analyser takes gloo's from 2.13 on."""
    group = more.pop("group", "0")
    return {
        "record_id": sequence - 1,
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "process_group": (group, NAMES[group]),
        "profiling_name": f"nccl:{name}",
        "input_sizes": [[size]],
        "output_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": True,
        "is_p2p": False,
        "time_created_ns": sequence,
    } | more


def waits(sequence: int, name: str = "all_reduce", size: int = 8, **more: Any) -> dict[str, Any]:
    return entry(sequence, name, size, retired=False, **more)


def dumps(*ranks: Sequence[dict[str, Any]], members: str = "") -> dict[int, dict[str, Any]]:
    """By rank; group 5 has the `members`."""
    world = str(list(range(len(ranks))))
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": world},
        "5": {"name": "5", "desc": "metrics", "ranks": members or world},
    }
    return {
        rank: {"version": "2.10", "pg_config": config, "entries": list(entries), NUMBER: 7}
        for rank, entries in enumerate(ranks)
    }


@pytest.fixture
def analyser() -> None:
    pytest.importorskip("torch.distributed.flight_recorder.components.builder")


DONE = [entry(1), entry(2)]


@pytest.mark.usefixtures("analyser")
@pytest.mark.parametrize(
    ("ranks", "lines"),
    [
        ([DONE, DONE], []),
        ([[*DONE, waits(3)], [*DONE, waits(3)]], []),
        ([[*DONE, waits(3)], DONE], ["rank 1 has not joined all_reduce: sequence 3"]),
        ([[*DONE, waits(3)], []], ["rank 1 has not joined all_reduce: sequence 1"]),
        ([DONE, [*DONE, waits(3)], DONE], ["ranks 0 2 have not joined all_reduce: sequence 3"]),
        (
            [[*DONE, waits(3)], [*DONE, waits(3, "barrier")], [*DONE, waits(3)], [*DONE, waits(3)]],
            ["rank 1 calls barrier, ranks 0 2 3 all_reduce: sequence 3"],
        ),
        (
            [[*DONE, waits(3)], [*DONE, waits(3, size=9)], [*DONE, waits(3, size=9)]],
            ["ranks 1 2 call all_reduce of [[9]], rank 0 of [[8]]: sequence 3"],
        ),
        (
            [
                [*DONE, waits(3, input_dtypes=["Half"], output_dtypes=["Half"])],
                [*DONE, waits(3)],
            ],
            ["rank 1 calls all_reduce with other data types than rank 0: sequence 3"],
        ),
        (
            [[*DONE, waits(3, state="started")], [*DONE, waits(3)]],
            ["all_reduce is scheduled on rank 1, started on rank 0: sequence 3"],
        ),
        # A consequence is not told after its cause, in the same group.
        ([[*DONE, waits(3), waits(4), waits(5)], DONE], ["rank 1 has not joined all_reduce: sequence 3"]),
        (
            [[*DONE, waits(1, group="5", record_id=2)], [*DONE, waits(3)]],
            [
                "rank 1 has not joined all_reduce: sequence 1 of group 5 (metrics)",
                "rank 0 has not joined all_reduce: sequence 3",
            ],
        ),
    ],
)  # fmt: skip
def test_missing_ranks_and_unlike_calls_are_told(ranks: list[Any], lines: list[str]) -> None:
    assert analyse_dumps(dumps(*ranks)) == lines


@pytest.mark.usefixtures("analyser")
def test_what_all_have_completed_and_what_a_full_buffer_forgot_accuses_nobody() -> None:
    oldest = [entry(n) for n in range(100, 120)]
    later = [entry(n) for n in range(105, 120)]
    assert analyse_dumps(dumps([*oldest, waits(120)], [*later, waits(120)])) == []
    # Rank 0 has had more to do in other groups, and torch's analyser compares places in the buffer.
    far = [{**one, "record_id": one["record_id"] + 500} for one in (*oldest, waits(120))]
    assert analyse_dumps(dumps(far, [*later, waits(120)])) == []
    # What torch's analyser ends at, and ends of sends that it does not put together.
    odd = [
        entry(118, "sparse_all_reduce", retired=False),
        entry(119, "send 0->1", is_p2p=True, retired=False),
    ]
    assert analyse_dumps(dumps([*odd, waits(120)], [waits(120)])) == []
    assert analyse_dumps(dumps([*odd, waits(120)], [*later])) == [
        "rank 1 has not joined all_reduce: sequence 120"
    ]


@pytest.mark.usefixtures("analyser")
def test_ranks_that_gave_no_dump_are_not_accused() -> None:
    told = dumps([*DONE, waits(3)], [*DONE, waits(3)], [*DONE])
    del told[2]
    assert analyse_dumps(told) == []
    assert analyse_dumps(dumps([*DONE, waits(1, group="5")], DONE, DONE, members="[0, 1]")) == [
        "rank 1 has not joined all_reduce: sequence 1 of group 5 (metrics)"
    ]


def test_only_what_is_under_way_is_looked_at() -> None:
    members = {"0": {0, 1}}
    kept = under_way({0: [*DONE, waits(3), waits(4)], 1: [*DONE, entry(3)], 2: []}, members)
    assert [e["collective_seq_id"] for e in kept[0]] == [3, 4]
    assert [(e["collective_seq_id"], e["record_id"]) for e in kept[1]] == [(3, 0)]
    assert under_way({0: [], 1: []}, members) == {0: [], 1: []}


def test_dumps_of_another_question_are_left_out_and_replaced_where_they_are_kept(tmp_path: Path) -> None:
    folder, kept = tmp_path / "flight", tmp_path / "run.ddptop.flight"
    folder.mkdir(mode=0o700)
    for rank, dump in dumps(DONE, DONE, DONE).items():
        path = folder / dump_name("gloo", rank)
        path.touch(mode=0o600)
        path.write_bytes(pack_fitting({**dump, NUMBER: 6 if rank == 1 else 7}))
    (folder / "notes.txt").write_text("the user's own")
    assert {name: set(ranks) for name, ranks in read_dumps(folder, 7).items()} == {"gloo": {0, 2}}
    with open_private(kept, create=True) as opened:
        keep_dumps(read_dumps(folder, 6), opened)
        assert sorted(path.name for path in kept.iterdir()) == ["ddptop_gloo_rank_1"]
        (kept / "model_rank_1").write_text("the user's own")
        keep_dumps(read_dumps(folder, 7), opened)
        keep_dumps({}, opened)
    assert (kept / "model_rank_1").read_text() == "the user's own"
    found = sorted(kept.glob("ddptop_*"))
    assert [path.name for path in found] == ["ddptop_gloo_rank_0", "ddptop_gloo_rank_2"]
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    assert read_dumps(kept, 7) == read_dumps(folder, 7)


@pytest.mark.parametrize("spoil", ["link", "open", "fifo"])
def test_a_dump_that_another_user_could_have_put_there_is_not_unpickled(tmp_path: Path, spoil: str) -> None:
    folder, path = tmp_path / "flight", tmp_path / "flight" / dump_name("gloo", 0)
    folder.mkdir(mode=0o700)
    if spoil == "link":
        (tmp_path / "elsewhere").write_bytes(pickle.dumps({NUMBER: 7}))
        path.symlink_to(tmp_path / "elsewhere")
    elif spoil == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.write_bytes(pickle.dumps({NUMBER: 7}))
        path.chmod(0o666)
    with pytest.raises((OSError, RunDirectoryError)):
        read_dumps(folder, 7)


def test_a_dump_that_is_too_large_keeps_its_newest_entries() -> None:
    (dump,) = dumps([entry(n) for n in range(1, NEWEST_DUMPED + 100)]).values()
    cut = pickle.loads(pack_fitting(dump))
    assert [e["collective_seq_id"] for e in cut["entries"]] == list(range(100, NEWEST_DUMPED + 100))
    wide = {**dump, "entries": [entry(n, input_sizes=[[n]] * 2000) for n in range(1, 1000)]}
    packed = pack_fitting(wide)
    assert len(packed) <= MAX_BYTES
    assert pickle.loads(packed)["entries"][-1] == wide["entries"][-1]


def test_many_ranks_are_named_in_short() -> None:
    assert format_ranks({3}) == "rank 3"
    assert format_ranks(range(12)) == "ranks 0 1 2 3 4 5 6 7 and 4 more"
