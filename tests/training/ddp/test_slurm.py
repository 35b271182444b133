"""Slurm's lists of hosts and tasks, as `srun` writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddptop.training.ddp.placement import expand_hosts, tasks_per_node


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu5", ["gpu5"]),
        ("a,b", ["a", "b"]),
        ("node[01-03,07],gpu5", ["node01", "node02", "node03", "node07", "gpu5"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("node[098-101]x", ["node098x", "node099x", "node100x", "node101x"]),
        ("rack[1-2]n[3-4]", ["rack1n3", "rack1n4", "rack2n3", "rack2n4"]),
        ("c-1.example.org,10.0.0.[1-2]", ["c-1.example.org", "10.0.0.1", "10.0.0.2"]),
    ],
)
def test_a_node_list_is_its_hosts_in_order(text: str, expected: list[str]) -> None:
    assert expand_hosts(text) == expected


@pytest.mark.parametrize("text", ["", "a,,b", "n[1-", "n]1[", "n[]", "n[a-b]", "n[3-1]", "n[1-2-3]", "n[1,]"])
def test_what_is_no_node_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|node list"):
        expand_hosts(text)


@pytest.mark.parametrize("text", ["n[0-99999999999]", "n[0-999][0-999][0-999]"])
def test_a_list_of_more_hosts_than_any_cluster_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        expand_hosts(text)


numbers = st.integers(0, 120)


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z][a-z.-]{0,5}", fullmatch=True),
            st.integers(1, 4),
            st.lists(st.tuples(numbers, st.integers(0, 9)), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_ranges_stand_for_what_was_folded_into_them(
    groups: list[tuple[str, int, list[tuple[int, int]]]],
) -> None:
    words, expected = [], []
    for name, width, ranges in groups:
        inside = []
        for start, length in ranges:
            first, last = str(start).zfill(width), str(start + length).zfill(width)
            inside.append(first if length == 0 else f"{first}-{last}")
            expected += [f"{name}{str(n).zfill(width)}" for n in range(start, start + length + 1)]
        words.append(f"{name}[{','.join(inside)}]")
    assert expand_hosts(",".join(words)) == expected


@given(st.text(alphabet="n1-9[],x ", max_size=20))
def test_any_text_gives_hosts_or_a_value_error(text: str) -> None:
    try:
        found = expand_hosts(text)
    except ValueError:
        return
    assert found
    assert not any(mark in host for host in found for mark in "[],")


def test_tasks_per_node_are_unfolded() -> None:
    assert tasks_per_node("4(x2),3") == [4, 4, 3]
    assert tasks_per_node("2") == [2]
    for wrong in ("", "4(x", "x2", "4,,3"):
        with pytest.raises(ValueError, match="tasks per node"):
            tasks_per_node(wrong)
