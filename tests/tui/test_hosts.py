"""Many hosts: the table by host, folding, the view of hosts, names that fit, states of hosts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.frame import LoggedEvent
from ddptop.frames.hosts import presumed_hosts, short_names
from ddptop.frames.phrases import host_total
from ddptop.frames.snapshot import snapshot
from ddptop.render.host_table import SORTS
from ddptop.render.hosts import figures_by_trouble
from ddptop.render.plain import draw_frame, watch_line
from ddptop.render.text import text_width
from ddptop.tui.scene import Place, Scene, host_of
from ddptop.tui.views.hosts import make_host_filter
from ddptop.tui.views.rank_order import filter_ranks, order_rows
from tests.tui.drive import Sketch, sketch
from tests.tui.fake import NOW, FakeSource, straggler, unknown_ranks, waiting
from tests.tui.fake_hosts import SLOW, gathering, healthy, names_of, placed, silent, slow_rank, with_state
from tests.tui.fake_start import held_up
from tests.tui.fake_views import WantedSource, clock_free
from tests.tui.screens import check

SIZES = {"80x24": (80, 24), "160x50": (160, 50), "50x24": (50, 24), "67x19": (67, 19), "30x6": (30, 6)}

SMALL = ("80x24", "50x24", "67x19", "30x6")

RUNS = {"3x4": (3, 4), "64x8": (64, 8)}


def shown(frame, size, *keys: str, ascii_only: bool = False) -> str:
    """The screen after some keys; of a source that gives what is requested."""
    person = Sketch(WantedSource(frame), SIZES[size], ascii_only)
    return person.press(*keys)


@pytest.mark.parametrize("size", SMALL)
@pytest.mark.parametrize("run", RUNS)
def test_hosts_with_trouble_on_every_terminal(run: str, size: str) -> None:
    frame = silent(*RUNS[run])
    text = f"overview\n{shown(frame, size)}\nhosts\n{shown(frame, size, '8')}"
    check(f"hosts-{run}-{size}", text)


def test_hosts_on_a_large_terminal_and_in_ascii() -> None:
    frame = silent(64, 8)
    check("hosts-64x8-160x50", f"overview\n{shown(frame, '160x50')}\nhosts\n{shown(frame, '160x50', '8')}")
    plain = shown(frame, "80x24", ascii_only=True) + shown(frame, "80x24", "8", ascii_only=True)
    assert plain.isascii()
    check("hosts-ascii-80x24", plain)


@pytest.mark.parametrize("run", [(64, 8), (512, 8)])
def test_80x24_answers_for_many_hosts_without_a_key(run: tuple[int, int]) -> None:
    hosts, each = run
    slow = SLOW[run]
    text = sketch(FakeSource(slow_rank(hosts, each)), (80, 24))
    lines = text.splitlines()
    assert "● LIVE" in lines[0] and "21.4/s" in lines[0]
    assert f"rank {slow}" in text and "data loading" in text and "costs 43%" in text
    row = lines[next(at for at, line in enumerate(lines) if "ranks  rank" in line) + 1]
    assert f"gpu-{slow // each:03}" in row and f" {slow} " in row and "20.3" in row, "the worst host is first"
    assert f"of {hosts} hosts · {hosts * each:,} ranks" in text


def test_one_host_is_never_grouped() -> None:
    frame = healthy(1, 64)
    person = Sketch(FakeSource(frame), (80, 24))
    assert not person.place.table.grouped
    assert "all ranks are on one host" in person.press("v")
    assert not person.place.table.grouped


def test_ranks_that_fit_are_not_grouped_but_a_key_does_it() -> None:
    person = Sketch(FakeSource(healthy(3, 4)), (160, 50))
    assert not person.place.table.grouped
    person.press("v")
    assert person.place.table.grouped and len(person.place.table.rows) == 3
    person.press("v")
    assert not person.place.table.grouped


def test_a_host_in_trouble_is_unfolded_where_its_ranks_fit() -> None:
    person = Sketch(FakeSource(slow_rank(3, 4)), (80, 24))
    table = person.place.table
    assert [host_of(row) for row in table.rows[:1]] == [1]
    assert table.rows[1:5] == (6, 4, 5, 7), "the worst rank is the first of its host"
    assert table.folded == {0, 2}
    assert Sketch(FakeSource(healthy(3, 4)), (80, 24)).place.table.folded == {0, 1, 2}, "all is calm"


def test_keys_fold_and_unfold() -> None:
    person = Sketch(FakeSource(slow_rank(64, 8)), (80, 24))
    assert len(person.place.table.rows) == 64
    person.press("enter")
    assert len(person.place.table.rows) == 72, "Enter on a host unfolds it"
    person.press("down")
    assert person.place.rank == 137 and not person.place.on_host
    assert " rank 137" in person.press("enter"), "Enter on a rank opens its page"
    person.press("escape", "z")
    assert len(person.place.table.rows) == 64 and person.place.on_host
    person.press("Z")
    assert len(person.place.table.rows) == 64 + 512
    person.press("Z")
    assert len(person.place.table.rows) == 64


def test_the_cursor_begins_on_the_worst_host_and_stays_in_the_line_that_a_key_chose() -> None:
    frame = slow_rank(64, 8)
    source = FakeSource(frame)
    person = Sketch(source, (80, 24))
    assert person.place.rank == 137
    source.frame = silent(64, 8)
    person.text()
    assert person.place.rank == 496, "the lost host is worse, and no key has moved the cursor"
    source.frame = frame
    person.text()
    person.press("down", "down")
    table = person.place.table
    assert person.place.rank == table.rank(table.rows[2])
    source.frame = silent(64, 8)
    person.text()
    assert table != person.place.table and person.place.rank == person.place.table.rank(
        person.place.table.rows[2]
    )


def test_order_of_hosts_is_calm_while_ranks_are_even() -> None:
    frame = healthy(64, 8)
    noise = np.random.default_rng(0).normal(0, 0.1, 512)
    noisy = replace(frame, ranks=replace(frame.ranks, excess_ms=noise))
    for one in (frame, noisy):
        rows = order_rows(Scene(one, Place()), 10).rows
        assert [host_of(row) for row in rows] == list(range(64))


def test_a_sorted_table_shows_the_first_rank_of_each_host_in_that_order() -> None:
    frame = slow_rank(64, 8)
    column = frame.ranks.rss_bytes.copy()
    column[77] = 9e9
    frame = replace(frame, ranks=replace(frame.ranks, rss_bytes=column), straggler=None)
    table = order_rows(Scene(frame, Place(sort="mem")), 10)
    assert host_of(table.rows[0]) == 77 // 8 and table.leads[77 // 8] == 77
    table = order_rows(Scene(frame, Place(sort="host", inverted=True)), 10)
    assert host_of(table.rows[0]) == 63


def test_a_filter_of_a_host_shows_its_ranks() -> None:
    person = Sketch(FakeSource(slow_rank(64, 8)), (80, 24))
    person.press("slash", *"gpu-01", "enter")
    assert person.place.table.grouped and len(person.place.table.rows) == 10
    person.press("escape", "slash", *"gpu-017", "enter")
    assert person.place.table.rows == (137, 136, *range(138, 144)), "8 ranks fit, so they are not grouped"


def test_enter_on_a_host_shows_its_ranks_alone() -> None:
    person = Sketch(WantedSource(silent(64, 8)), (80, 24))
    page = person.press("8", "down", "down", "enter")
    assert person.place.view == "overview" and set(person.place.order) == set(range(136, 144))
    assert "8 of 512 ranks" in page
    assert len(person.press("escape") and person.place.order) == 512


@pytest.mark.parametrize("name", ["node1", "17", "8-15", "!odd", "a/b", "node[1]", "10.0.0.1"])
def test_a_filter_for_one_host_lets_no_other_pass(name: str) -> None:
    others = (name, f"{name}0", f"x{name}", "node10", "other")
    frame = healthy(len(others), 2)
    ranks = replace(frame.ranks, host=tuple(others[rank // 2] for rank in range(2 * len(others))))
    assert filter_ranks(ranks, make_host_filter(others, name)) == [0, 1]


@pytest.mark.parametrize("column", SORTS)
def test_hosts_are_sorted_by_every_column_both_ways(column: str) -> None:
    person = Sketch(FakeSource(silent(64, 8)), (160, 50))
    person.press("8")
    person.action_sort_by(column)
    forth = person.place.hosts.order
    person.press("I")
    assert len(forth) == len(person.place.hosts.order) == 64
    if column == "excess":
        assert forth[0] == names_of(64)[17]


def test_hosts_are_sorted_by_trouble_and_filtered() -> None:
    person = Sketch(FakeSource(silent(64, 8)), (160, 50))
    person.press("8")
    names = names_of(64)
    assert person.place.hosts.order[:4] == (names[62], names[63], names[17], names[5])
    person.press("slash", *"records", "space", *"locally", "enter")
    assert person.place.hosts.order == (names[5],)
    page = person.press("escape", "slash", *"unreachable", "enter")
    assert person.place.hosts.order == (names[63],)
    assert "in step 12,479" in page, "its last position"
    assert "no host matches" in person.press("escape", "slash", *"nothing", "enter")


def test_what_agents_do_is_said_where_it_matters() -> None:
    frame = silent(64, 8)
    overview = sketch(FakeSource(frame), (200, 50))
    assert "1 host unreachable · 1 lost · 1 recording locally · 1 leaving out bucket detail" in overview
    person = Sketch(FakeSource(frame), (200, 50))
    page = person.press("8", "slash", *"gpu-005", "enter")
    assert "records locally to /root/.local/state/ddptop/train-k7qf-gpu-005.ddptop" in page
    assert "keeps 4,096 messages for the collector" in page
    assert "bucket detail left out of 1,204 rows" in person.press("escape", "slash", *"gpu-006", "enter")


def test_before_any_host_has_reported_the_page_says_so() -> None:
    nobody = replace(waiting(), ranks=unknown_ranks(0))
    assert "no host has reported yet" in sketch(FakeSource(nobody), (80, 24), "8")


def test_of_a_run_on_one_host_the_page_says_that_it_compares_hosts() -> None:
    assert "all ranks run on one host" in sketch(FakeSource(straggler(2)), (80, 24), "8")


def test_hosts_that_have_no_rank_yet_are_listed() -> None:
    frame = healthy(3, 4)
    empty = replace(frame.hosts[0], name="spare", ranks=0, running=0, worst_rank=None, excess_ms=None)
    person = Sketch(FakeSource(replace(frame, hosts=(*frame.hosts, empty))), (80, 24))
    assert "spare" in person.press("8")
    assert "no rank runs on this host" in person.press("end", "enter")


@pytest.mark.parametrize("make", [healthy, silent])
@pytest.mark.parametrize("keys", [("8",), ("Z",), ("4", "v"), ("6",), ("2",)])
def test_every_size_holds_512_hosts(make, keys: tuple[str, ...]) -> None:
    frame = make(512, 8)
    for columns, rows in ((80, 24), (20, 5), (1, 1)):
        lines = Sketch(WantedSource(frame), (columns, rows)).press(*keys).splitlines()
        assert len(lines) == rows
        assert max(map(text_width, lines)) <= columns


def test_figures_of_hosts_survive_the_link() -> None:
    frame = silent(64, 8)
    assert FrameDecoder().decode(encode_frame(frame)).hosts == frame.hosts
    assert next(host.name for host in figures_by_trouble(Scene(frame, Place()))) == names_of(64)[62]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (("node0", "node1"), ("node0", "node1")),
        (("gpu-017.a.b", "gpu-018.a.b"), ("gpu-017", "gpu-018")),
        (("train-llama-worker-7.jobs.svc", "train-llama-worker-12.jobs.svc"), ("worker-7", "worker-12")),
        (("dgx-a100-rack03-node1", "dgx-a100-rack04-node1"), ("rack03-node1", "rack04-node1")),
        (("ip-10-0-3-170", "ip-10-0-3-18"), ("ip-10-0-3-170", "ip-10-0-3-18")),
        (("compute-cluster-login", "compute-cluster-7"), ("cluster-login", "cluster-7")),
        (("a-very-long-name", ""), ("a-very-long-name", "")),
        (("node01-of-the-cluster", "node02-of-the-cluster"), ("node01", "node02")),
        (("10.100.200.15", "10.101.200.15"), ("10.100.200.15", "10.101.200.15")),
    ],
)
def test_names_are_cut_where_they_stay_names(names: tuple[str, ...], short: tuple[str, ...]) -> None:
    assert short_names(names) == short


def test_the_plain_picture_shows_the_worst_hosts_and_counts_the_rest() -> None:
    text = draw_frame(silent(64, 8), 100)
    hosts = [line.split()[0] for line in text.splitlines() if line.startswith("gpu-")]
    assert len(hosts) == 16 and hosts[:4] == ["gpu-062", "gpu-063", "gpu-017", "gpu-005"]
    assert "and 48 more hosts, 0 of them not live (--json has all)" in text
    rows = [line.split() for line in text.splitlines() if line.strip() and line.split()[0].isdecimal()]
    assert ["137", "gpu-017", "live"] in [row[:3] for row in rows], "the worst rank of each host"
    assert "and 496 more ranks, 14 of them not live" in text
    assert len(text.splitlines()) < 65
    assert "rtt ms" not in draw_frame(healthy(1, 8), 100), "one host has no table of hosts"


def test_a_line_a_second_names_hosts() -> None:
    line = watch_line(silent(64, 8))
    assert "LOST · host gpu-062.cluster.local is lost" in line and "slowest" not in line
    assert "1 of 64 hosts unreachable (gpu-063.cluster.local)" in line
    assert "1 host recording locally" in line
    assert "hosts" not in watch_line(healthy(3, 4))


def test_the_snapshot_has_the_hosts() -> None:
    hosts = snapshot(silent(64, 8))["hosts"]
    assert [host["name"] for host in hosts] == names_of(64)
    assert hosts[63]["state"] == "unreachable" and hosts[63]["kept"] == 312
    assert hosts[0]["clock_offset_ms"] is None and hosts[0]["collector"] is True


def test_why_arrivals_are_not_drawn_is_said_with_the_host() -> None:
    frame = silent(64, 8)
    reason = "the clocks' bound of ±6.2 ms is wider than the skew of 1.2 ms"
    frame = replace(frame, group=replace(frame.group, clock_free=True, clock_reason=reason))
    page = Sketch(WantedSource(frame), (110, 200)).press("6")  # in one column
    assert f"{reason} (gpu-006.cluster.local: ±6.20 ms): arrivals are not drawn" in " ".join(page.split())
    frame = replace(frame, timeline=clock_free(512))
    for size in ((160, 50), (110, 10)):  # also where only the main clause is left of the sentence
        assert f"{reason} (gpu-006.cluster.local: ±6.20 ms)" in sketch(FakeSource(frame), size, "2")


def test_events_of_hosts_lead_to_the_hosts() -> None:
    frame = silent(64, 8)
    event = LoggedEvent(NOW, "host_unreachable", "warning", None, None, "host gpu-063 is unreachable")
    person = Sketch(FakeSource(replace(frame, alerts=(), events=(event,))), (80, 24))
    person.press("5", "enter")
    assert person.place.view == "hosts"


def test_the_stall_page_names_hosts_that_are_silent() -> None:
    page = sketch(FakeSource(silent(64, 8)), (80, 24), "7")
    assert "✖ host gpu-062.cluster.local is lost: last message 17 s ago" in page
    assert "◇ host gpu-063.cluster.local is unreachable: last message 4.3 s ago" in page


def test_a_host_shows_the_state_of_its_worst_rank() -> None:
    frame = with_state(healthy(64, 8), 5, 8, "stale", 9_000.0)
    lines = sketch(FakeSource(frame), (80, 24), "8").splitlines()
    assert "gpu-005" in lines[3] and "◌ stale 9s" in lines[3]


def test_an_order_in_which_no_host_is_worse_is_not_called_so() -> None:
    assert "worst first" not in sketch(FakeSource(healthy(64, 8)), (80, 24))
    assert "worst first" in sketch(FakeSource(slow_rank(64, 8)), (80, 24))


def test_hosts_with_missing_ranks_come_first_and_the_others_are_not_stale() -> None:
    text = shown(gathering(), "80x24")
    check("overview-gathering-80x24", text)
    assert "5 ranks missing, 59 of 64 are here" in text and "stale" not in text
    assert "waiting for ranks 18, 23, 40, 41, ... (gpu-002, gpu-005)" in text
    for size, *keys in (("80x24",), ("160x50",), ("160x50", "8")):
        lines = shown(gathering(), size, *keys).splitlines()
        rows = [line for line in lines if "gpu-" in line and "/8 " in line]
        assert "gpu-002" in rows[0] and "6/8" in rows[0], rows[0]
        assert "gpu-005" in rows[1] and "5/8" in rows[1], rows[1]
        assert all("8/8" in row for row in rows[2:8])


def test_a_missing_rank_is_presumed_on_the_host_of_its_neighbours() -> None:
    nan = float("nan")
    local = np.array([0, nan, 2, nan, nan, nan, nan, 1, 2])
    hosts = ("a", "", "a", "", "", "", "", "c", "c")
    assert presumed_hosts(hosts, local) == ("a", "a", "a", "", "", "", "c", "c", "c")
    assert presumed_hosts(("", ""), np.array([nan, nan])) == ("", "")
    # Without local ranks of the launcher every rank reports its rank: of whose host nothing follows.
    unknown = np.array([0, 1, nan, 3, 4, 5, nan, 7])
    hosts = ("a", "a", "", "a", "b", "b", "", "b")
    assert presumed_hosts(hosts, unknown) == hosts


def test_hosts_are_counted_alike_on_every_page_with_their_unit() -> None:
    """Of 512 hosts all are lost, one has no rank that has reported, so that the launcher knows of 511."""
    frame = slow_rank(512, 8)
    names = tuple("" if rank < 8 else host for rank, host in enumerate(frame.ranks.host))
    gone = tuple(replace(host, state="lost") for host in frame.hosts)
    frame = replace(
        frame, run=replace(frame.run, nodes=511), ranks=replace(frame.ranks, host=names), hosts=gone
    )
    assert host_total(frame) == 512
    for keys in ((), ("8",)):
        text = shown(frame, "160x50", *keys)
        assert "512 hosts lost" in text, keys
        assert not re.search(r"51[13]|\b512 (?!hosts)", text.partition("gpu-")[0]), keys
    assert "512 hosts" in shown(frame, "160x50", "6")


@pytest.mark.parametrize("size", [(80, 24), (67, 19), (50, 24), (160, 50)])
def test_the_only_host_shows_its_ranks_and_says_what_is_not_known(size: tuple[int, int]) -> None:
    text = sketch(FakeSource(placed(straggler())), size, "8")
    assert "1 host" in text and "worst first" not in text
    assert "CPU, memory, network: with several hosts only" in text
    assert "ranks of node0" in text and re.search(r"▲ +1 ", text)
    assert size[0] < 160 or "rank 1, its worst, beside the other ranks" in text


def test_the_ranks_of_a_host_begin_in_the_same_line_for_every_host() -> None:
    person, found = Sketch(FakeSource(slow_rank(3, 4)), (80, 24)), set()
    for keys in (("8",), ("down",), ("down",)):
        lines = person.press(*keys).splitlines()
        found.add(next(row for row, line in enumerate(lines) if "ranks of gpu-" in line))
    assert len(found) == 1


def test_before_the_first_step_a_host_shows_the_start() -> None:
    text = sketch(FakeSource(placed(held_up())), (160, 50), "8")
    assert "No step is complete yet." in text and "model 27 s" in text and "nothing to draw" not in text
