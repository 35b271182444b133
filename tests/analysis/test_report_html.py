"""The report as one HTML page: whole, safe, small, and with the words of the page of text."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ddptop.recording.reader import Recording
from ddptop.report.build import read_report
from ddptop.report.html import html_page
from ddptop.report.text import text_page
from tests.made_up_run import report_from_messages

if TYPE_CHECKING:
    from ddptop.report.content import Report
    from tests.made_up_run import World

DATA = Path(__file__).parents[1] / "recording" / "data"
HOSTILE = '"><script src="http://x.test/a.js"></script><img src=x onerror=alert(1)>\x1b[2J\u202e'
EMPTY = frozenset({"meta", "link", "br"})
MOST_BYTES = 300_000

TITLES = {
    "Ranks, worst first",
    "Why",
    "Hosts",
    "Communication",
    "Stalls, deaths, wrong numbers",
    "What to try",
}


class Page(HTMLParser):
    """Reads a page: its text, its attributes, and whether every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def recorded(name: str) -> Report:
    with Recording.open(DATA / f"{name}.ddptop") as recording:
        return read_report(recording)


@pytest.mark.parametrize("name", ["straggler", "stall", "columns"])
def test_it_says_what_the_page_of_text_says(name: str) -> None:
    content = recorded(name)
    html = Page(html_page(content))
    assert not html.open
    said = " ".join(" ".join(html.words).split())
    for finding in content.verdict:
        assert finding.sentence in said
    for suggestion in content.advice:
        assert suggestion.action in said and suggestion.because in said
    titles = {line for line in text_page(content, 10_000).splitlines() if line in TITLES}
    assert titles == {word for word in html.words if word in TITLES}
    for stall in content.stalls:
        for position in stall.positions:
            call = position.user_call
            assert call is None or " ".join(call.code.split()) in said


def test_every_picture_has_a_text_alternative_and_every_part_of_it_a_figure() -> None:
    tags = Page(html_page(recorded("straggler"))).tags
    pictures = [attributes for tag, attributes in tags if tag == "svg"]
    assert pictures
    for attributes in pictures:
        assert attributes.get("aria-hidden") or (attributes["role"] == "img" and attributes["aria-label"])
    text = html_page(recorded("straggler"))
    assert re.search(r"<title>steps? [\d, to]+: [\d.]+ ms, wait [\d.]+%, transfer [\d.]+%</title>", text)
    assert re.search(r"<title>rank 1: data [\d.]+ ms</title>", text)


def test_text_of_the_users_program_is_text() -> None:
    content = recorded("stall")
    run = replace(content.run, name=HOSTILE, script=HOSTILE, argv=(HOSTILE,), recording=HOSTILE)
    verdict = tuple(replace(finding, sentence=HOSTILE, detail=(HOSTILE,)) for finding in content.verdict)
    ranks = tuple(replace(rank, host=HOSTILE) for rank in content.ranks)
    stalls = tuple(
        replace(stall, sentence=HOSTILE, positions=tuple(replace(p, host=HOSTILE) for p in stall.positions))
        for stall in content.stalls
    )
    text = html_page(replace(content, run=run, verdict=verdict, ranks=ranks, stalls=stalls))
    html = Page(text)
    assert not html.open
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in html.tags}
    assert not {name for _, attributes in html.tags for name in attributes if name.startswith("on")}
    assert "\x1b" not in text and "\u202e" not in text


def test_nothing_is_requested_from_anywhere() -> None:
    text = html_page(recorded("straggler"))
    assert not re.search(r"url\(|@import|https?:", text)
    for tag, attributes in Page(text).tags:
        assert not attributes.get("src")
        assert attributes.get("href", "data:,") == "data:,", tag
    assert "default-src 'none'" in text


def test_a_long_run_of_many_ranks_stays_small(make_world: type[World]) -> None:
    world = make_world(64, delays={(40, "data"): 8_000})
    messages = [world.run(), *world.introduce(), *world.steps(120), world.run("finished", 0)]
    content = report_from_messages(messages)
    content = replace(content, spans=content.spans * (60 // max(1, len(content.spans)) + 1))
    text = html_page(content)
    assert len(text.encode()) < MOST_BYTES
    assert text.count('<div class="rank"><span>rank') == 64
    many = replace(content, ranks=content.ranks * 64)
    assert len(html_page(many).encode()) < MOST_BYTES
    assert "and 4,032 more ranks" in html_page(many)


def test_a_run_without_a_step_has_a_page() -> None:
    content = replace(recorded("straggler"), spans=(), ranks=(), buckets=(), stragglers=(), advice=())
    assert not Page(html_page(content)).open


def test_the_ledger_the_verdict_and_what_to_try_come_first() -> None:
    text = html_page(recorded("straggler"))
    places = [
        text.index(part)
        for part in ('aria-label="', '<div class="finding', "<h2>What to try", "<h2>The run over time")
    ]
    assert places == sorted(places)
    assert "rank-seconds" in text[: places[1]], "the bar is the ledger's"


def test_bars_have_gaps_between_their_parts_and_empty_cells_of_a_phone_no_label() -> None:
    page = html_page(recorded("straggler"))
    assert ".bar rect{stroke:var(--cursor);vector-effect:non-scaling-stroke}" in page
    assert "td:empty{display:none}" in page.partition("@media(max-width:40rem)")[2]
