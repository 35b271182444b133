"""The moving picture: one SVG that loads nothing, in which each picture is shown for its time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from ddptop.render.line import Line
from ddptop.tui.theme import THEMES, Palette
from tests.tui.film import PICTURE, Shot, moving_svg

MOST_BYTES = 1_500_000


def moves(text: str) -> tuple[float, list[tuple[float, int]]]:
    """Seconds of the whole; percent of it and left edge of each picture."""
    length = re.search(r"animation:s ([\d.]+)s steps\(1,end\) infinite", text)
    assert length is not None
    found = re.findall(r"([\d.]+)%{transform:translateX\((-?\d+)px\)}", text)
    return float(length[1]), [(float(share), int(left)) for share, left in found]


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_pictures_follow_one_another_and_share_their_lines(theme) -> None:
    same, other = Line("the same <line>", "strong"), Line("another", ground="cursor")
    shots = [Shot((same,), 1.0, "one & all"), Shot((Line(), same, other), 3.0, "two", "w")]
    text = moving_svg(shots, Palette(theme))
    root = ElementTree.fromstring(text)
    width = int(root.get("viewBox", "").split()[2])
    assert moves(text) == (4.0, [(0.0, 0), (25.0, -width)])
    assert text.count("the same &lt;line&gt;") == 1 and text.count('<use href="#r0"') == 2
    assert f'transform="translate({-width} 0)"' in text, "without motion: the picture after the key"
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]


def test_the_picture_in_the_readme_has_its_scenes_its_length_and_its_size() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    seconds, shown = moves(text)
    assert 12 <= seconds <= 15 and shown == sorted(shown, key=lambda move: move[0])
    assert len(text.encode()) <= MOST_BYTES
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    for words in ("rank 3", "data loading", "costs", "STALLED", "train.py:", "lock_cache"):
        assert words in text
