"""The screen as an SVG: whole without a network, each letter and each shape in its cell."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from ddptop.render.line import Line
from ddptop.tui.svg import CELL_HEIGHT, CELL_WIDTH, MARGIN, draw_svg, is_drawn, path_of
from ddptop.tui.theme import THEMES, Palette

PALETTE = Palette(THEMES[0])
TEXT = "{http://www.w3.org/2000/svg}text"


def drawn(*lines: Line, columns: int = 20) -> ElementTree.Element:
    return ElementTree.fromstring(draw_svg(lines, columns, PALETTE, "a <b> & c"))


def letters(root: ElementTree.Element) -> dict[str, tuple[float, float]]:
    return {one.text or "": (float(one.get("x", "")), float(one.get("y", ""))) for one in root.iter(TEXT)}


def test_words_stand_where_they_stand_on_the_screen() -> None:
    line = Line("own  ").add("cost", "strong").add(" 名", "dim").add("x<y")
    found = letters(drawn(Line(), line))
    assert {word: (x - MARGIN) / CELL_WIDTH for word, (x, _) in found.items()} == {
        "own": 0, "cost": 5, "名": 11, "x<y": 12,
    }  # fmt: skip
    assert {(y - MARGIN) // CELL_HEIGHT for _, y in found.values()} == {1}


def test_letters_from_right_to_left_keep_the_order_of_their_cells() -> None:
    found = letters(drawn(Line("שלום 7")))
    assert sorted(found, key=lambda letter: found[letter]) == [*"שלום", "7"]


def test_rows_of_blocks_are_one_rectangle_and_braille_is_dots() -> None:
    assert path_of("█", 3, 10, 20) == "M10 20h24v16h-24z"
    assert path_of("⣿", 2, 0, 0).count("h0") == 16
    assert not is_drawn("⠀"), "nothing to draw"
    for letter in "█▓▒░▁▂▃▄▅▆▇▐▪·─━╌┄│┃┊├┤┬┴┼‖":
        numbers = [int(n) for n in re.findall(r"M(\d+) (\d+)", path_of(letter, 1, 0, 0))[0]]
        assert 0 <= numbers[0] < CELL_WIDTH
        assert 0 <= numbers[1] < CELL_HEIGHT


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_it_needs_no_network_and_stays_on_its_ground(theme) -> None:
    text = draw_svg([Line("▲ 1", "warn", ground="cursor"), Line(" PAUSED ", "badge")], 20, Palette(theme))
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert "url(" not in text
    assert f'fill="{theme.background}"' in text
    assert text.count("<rect") == 3
