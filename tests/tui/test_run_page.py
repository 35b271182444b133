"""The run page as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptop.tui.views.run_page import ENVIRONMENT, OPTIONS, VERSIONS, card_facts
from tests.tui import fake_views
from tests.tui.fake import CASES, straggler
from tests.tui.gallery import WORLDS
from tests.tui.pages import SIZES, TINY, page, place_at
from tests.tui.screens import check

ALL = SIZES | TINY


@pytest.mark.parametrize("size", ALL)
def test_a_run_of_which_all_is_known(size: str) -> None:
    check(f"facts-told-{size}", page(fake_views.told(), place_at("run"), ALL[size]))


@pytest.mark.parametrize("case", ["waiting", "lost", "replay", "unknowns", "many"])
def test_whatever_the_run_is_like(case: str) -> None:
    check(f"facts-{case}-80x24", page(CASES[case](), place_at("run"), SIZES["80x24"]))


@pytest.mark.parametrize("world", sorted(set(WORLDS) - {"replay"}))
def test_its_state_is_the_one_of_the_first_line(world: str) -> None:
    first, *text = page(WORLDS[world](), place_at("run"), (80, 24)).splitlines()
    state = next(row for row in text if row.startswith(" state")).split()[1].rstrip(",")
    assert state.upper() in first


def test_it_scrolls_to_its_end() -> None:
    place = place_at("run")
    first = page(fake_views.told(), place, (80, 24))
    place.scroll.cursor = 10_000
    last = page(fake_views.told(), place, (80, 24))
    assert "below" in first.splitlines()[1] and "below" not in last.splitlines()[1]
    assert "seed" in last


def test_ascii() -> None:
    assert page(fake_views.told(), place_at("run"), (120, 60), plain=True).isascii()


def test_a_rank_that_lost_records_is_named() -> None:
    frame = straggler()
    lost = frame.ranks.lost_records.copy()
    lost[2] = 17
    frame = replace(frame, ranks=replace(frame.ranks, lost_records=lost), lost_records=17)
    assert "17 of 49,937 records of steps are missing · rank 2: 17" in page(frame, place_at("run"), (80, 24))


def test_the_card_is_sorted_into_sections_and_what_is_not_set_is_left_out() -> None:
    card = {
        "ddp.bucket_cap_bytes": 1_048_576, "ddp.find_unused_parameters": 1, "ddp.nccl_socket_ifname": "eth0",
        "ddp.device_ids": "", "ddp.gloo_socket_ifname": "N/A", "ddp1.static_graph": True, "python": "3.11.7",
        "threads": 4, "seed": 123_456, "ddp.world_size": 4,
    }  # fmt: skip
    facts = card_facts(card)
    assert {title: [fact[:2] for fact in told] for title, told in facts.items()} == {
        OPTIONS: [("bucket_cap_bytes", "1 MiB"), ("find_unused_parameters", "yes")],
        f"{OPTIONS} of model 1": [("static_graph", "yes")],
        ENVIRONMENT: [("nccl_socket_ifname", "eth0"), ("threads", "4")],
        VERSIONS: [("python", "3.11.7")],
        "": [("seed", "123456")],
    }
    loud = [fact.name for told in facts.values() for fact in told if fact.role == "strong"]
    assert loud == ["bucket_cap_bytes", "find_unused_parameters", "static_graph"]
