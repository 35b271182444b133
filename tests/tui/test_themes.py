"""The colours: text can be read on every ground, and neighbouring phases differ in lightness."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from ddptop.render.colours import THEMES_OF_ROLES
from ddptop.render.line import Ground, Role, combine_roles
from ddptop.render.milestones import STAGES
from ddptop.render.phases import PARTS, draw_parts_bar, is_parted
from ddptop.tui.svg import is_dotted, is_drawn
from ddptop.tui.theme import THEMES, Palette, contrast
from ddptop.tui.views.curve import STACK, choose_looks
from tests.tui.gallery import PAGES, lines_of

TEXT: tuple[Role, ...] = ("text", "strong", "dim", "accent", "good", "warn", "bad")
OURS = pytest.mark.parametrize("name", THEMES_OF_ROLES)


def between(name: str, one: str, other: str) -> float:
    roles = THEMES_OF_ROLES[name]
    return contrast(Color.parse(roles[one]), Color.parse(roles[other]))


@OURS
def test_text_can_be_read(name: str) -> None:
    """WCAG 2, success criterion 1.4.3."""
    for role in TEXT:
        assert between(name, role, "background") >= 4.5, role
        assert between(name, role, "cursor") >= 4.5, role
    assert between(name, "faint", "background") >= 4.5
    assert between(name, "banner", "background") >= 4.5, "letters of a banner have the ground's colour"
    assert between(name, "accent", "background") >= 4.5, "those of the view that is open, too"
    assert between(name, "text", "word") >= 7.0, "what a key does"


EVERY_WORLD = ("straggler", "stall", "with a bill", "waiting", "start held up", "without DDP")


@pytest.fixture(scope="module")
def drawn() -> set[tuple[str, Role, Ground]]:
    """Every sign of every view in some states, with its role and the ground of its line."""
    pages = [(world, view, "80x24") for world in EVERY_WORLD for view in PAGES]
    pages += [("with a bill", view, "160x50") for view in PAGES]
    return {
        (sign, role, line.ground)
        for page in pages
        for line in lines_of(*page)
        for text, role in line.pieces
        for sign in text
    }


@OURS
def test_what_is_written_on_any_page_can_be_read(name: str, drawn: set[tuple[str, Role, Ground]]) -> None:
    """Also on areas and in the line under the cursor. Lines of panels and axes are seen, no more."""
    palette = Palette(next(theme for theme in THEMES if theme.name == name))
    faint = {}
    for sign, role, ground in drawn:
        front, _, behind = role.partition("/")
        if sign == " " or front == behind or (is_drawn(sign) and not is_dotted(sign)):
            continue
        style = palette.style(role, ground)
        assert style.color is not None and style.bgcolor is not None
        ratio = contrast(*(Color.from_rich_color(colour) for colour in (style.color, style.bgcolor)))
        least = 1.2 if front == "rule" else 3.0 if is_drawn(sign) else 4.5
        if ratio < least:
            faint[role, ground, sign] = round(ratio, 2)
    assert not faint
    assert between(name, "rule", "background") >= 2.0, "the borders of panels, and axes"
    assert between(name, "edge", "rule") >= 3.0, "how full a bar is"


@OURS
def test_a_key_and_its_word_are_told_apart(name: str) -> None:
    """By their grounds, by hue and by weight; without colours the key is in reverse video."""
    key, word = combine_roles("accent", "key"), combine_roles("text", "word")
    palette = Palette(next(theme for theme in THEMES if theme.name == name))
    assert palette.style(key).bgcolor != palette.style(word).bgcolor
    assert palette.style(key).bold and not palette.style(word).bold
    assert between(name, "word", "background") >= 1.2
    plain = Palette(THEMES[0], plain=True)
    assert plain.style(key).reverse and not plain.style(word).reverse


@OURS
def test_phases_differ_from_the_ground_and_from_their_neighbours_by_lightness(name: str) -> None:
    """WCAG 2, success criterion 1.4.11: shapes."""
    for part in PARTS:
        assert between(name, part.role, "background") >= 3.0, part.name
    for one, other in itertools.pairwise(PARTS):
        assert between(name, one.role, other.role) >= 3.0, (one.name, other.name)
    stages = [*STAGES.values()]
    for one, other in itertools.pairwise(stages):
        # An odd number lies between the first batch and forward, so one pair differs by its hue alone.
        if (one.name, other.name) != ("first batch", "script"):
            assert between(name, one.role, other.role) >= 3.0, (one.name, other.name)
    assert between(name, "edge", "background") >= 4.5, "an area has its upper edge: the area itself is quiet"
    assert between(name, "edge", "area") >= 3.0
    assert between(name, "area", "wait") >= 2.5
    assert between(name, "work", "background") >= 3.0, "the bar of the cost has no edge"
    assert between(name, "work", "wait") >= 3.0
    roles = THEMES_OF_ROLES[name]
    hue, edge = (Color.parse(roles[role]).hsl for role in ("forward", "edge"))
    assert edge.s < hue.s / 2, "grey beside the phases: the edge of a chart is none of them"


COLOUR_BLIND = {
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881),
    ),
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039),
    ),
}  # fmt: skip
"""What linear RGB looks like: Machado, Oliveira and Fernandes (2009), severity 1."""

WHITE, TO_XYZ = (
    (0.95047, 1.0, 1.08883),
    ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)),
)
"""Of sRGB, with the white of D65."""


def as_lab(colour: str, kind: str) -> np.ndarray:
    """CIE L*a*b* of a colour, as eyes of this kind see it."""
    srgb = np.array(Color.parse(colour).normalized)
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(COLOUR_BLIND[kind]) @ linear, 0.0, 1.0)
    x, y, z = np.cbrt(np.array(TO_XYZ) @ seen / np.array(WHITE))  # no colour of ours is near black
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@OURS
def test_neighbours_in_the_stacked_chart_are_told_apart(name: str) -> None:
    """By lightness; one pair by a hue that colour-blind eyes keep apart: a difference of 2.3 is just seen."""
    roles = THEMES_OF_ROLES[name]
    for one, other in itertools.pairwise(STACK):
        if (one, other) != ("backward", "other"):
            assert between(name, one, other) >= 3.0, (one, other)
            continue
        for kind in COLOUR_BLIND:
            apart = np.linalg.norm(as_lab(roles[one], kind) - as_lab(roles[other], kind))
            assert apart >= 15.0, (kind, apart)
    for ascii_only in (False, True):
        signs = [sign for sign, _ in choose_looks(ascii_only)]
        assert len(set(signs)) == len(STACK), "without colours"


@OURS
def test_any_two_parts_of_a_bar_are_parted_by_lightness_or_by_a_letter(name: str) -> None:
    """Where nothing waited, backward lies beside transfer."""
    for one, other in itertools.permutations(PARTS, 2):
        by_lightness = between(name, one.role, other.role) >= 3.0
        assert is_parted(one.role, other.role) is by_lightness
        bar = draw_parts_bar(np.array([0.0, 2.5, 4.0]), (one, other), ((), ()), ascii_only=False)
        letters = [text for text, role in bar.pieces if role == combine_roles("ink", other.role)]
        assert letters == ([] if by_lightness else [other.plain]), (one.name, other.name)


def test_the_bar_in_the_line_of_the_cursor_lies_on_the_ground_of_the_others() -> None:
    """There the ends of dark parts differ from the ground by less than 3:1."""
    lines = [line for line in lines_of("straggler", "overview", "80x24") if "┃" in str(line)]
    chosen = next(line for line in lines if str(line).startswith("▸"))
    edge = next(index for index, (text, _) in enumerate(chosen.pieces) if "┃" in text)
    assert chosen.ground == "" and chosen.pieces[1][1].endswith("/cursor")
    assert not any(role.endswith("/cursor") for _, role in chosen.pieces[edge:])


@OURS
def test_letters_in_a_bar_can_be_read(name: str) -> None:
    palette = Palette(next(theme for theme in THEMES if theme.name == name))
    for part in PARTS:
        style = palette.style(combine_roles("ink", part.role))
        assert style.color is not None and style.bgcolor is not None
        letters, ground = (Color.from_rich_color(colour) for colour in (style.color, style.bgcolor))
        assert contrast(letters, ground) >= 4.5, part.name


@OURS
def test_a_theme_has_a_colour_for_every_role(name: str) -> None:
    grounds = {"background", "cursor", "banner", "word"}
    assert {*THEMES_OF_ROLES[name]} == {*get_args(Role), *grounds} - {"badge", "match", "ink"}


def test_the_high_contrast_theme_has_text_of_seven_to_one() -> None:
    for role in (*TEXT, "faint"):
        assert between("ddptop-contrast", role, "background") >= 7.0, role


@pytest.mark.parametrize("theme", [name for name in BUILTIN_THEMES if not name.startswith("ansi-")])
def test_in_a_theme_of_textual_waiting_is_seen_beside_work(theme: str) -> None:
    palette = Palette(BUILTIN_THEMES[theme])
    wait = palette.style("wait").color
    assert wait is not None
    assert all(palette.style(role).color != wait for role in ("data", "forward", "backward", "transfer"))
    assert palette.style("data").color != palette.style("transfer").color, "also where accent is warning"


def test_without_colours_a_cell_of_two_parts_has_the_sign_of_the_larger() -> None:
    palette = Palette(THEMES[0], plain=True)
    assert palette.letters("▂▅▎▊", combine_roles("data", "wait")) == "▒▪▒▪"
    assert palette.letters("▂▅", combine_roles("area", "wait")) == "▒█"
    for text, role in (
        ("▂", "data"),
        ("█", combine_roles("data", "data")),
        ("⡀", combine_roles("dim", "wait")),
    ):
        assert palette.letters(text, role) == text
    assert palette.letters("  ", combine_roles("transfer", "transfer")) == "≈≈"
    assert Palette(THEMES[0]).letters("▂", combine_roles("data", "wait")) == "▂"


def test_without_colours_the_further_lines_of_a_bar_have_its_letters_in_ascii() -> None:
    palette = Palette(THEMES[0], plain=True)
    solid = {combine_roles(part.role, part.role) for part in PARTS}
    pieces = [piece for line in lines_of("straggler", "overview", "160x50", True) for piece in line.pieces]
    bars = "".join(palette.letters(text, role) for text, role in pieces if role in solid)
    assert set(bars) == {part.plain for part in PARTS if part.name != "sync"}


def test_without_colours_the_signs_of_the_phases_tell_them_apart() -> None:
    palette = Palette(THEMES[0], plain=True)
    styles = [palette.style(combine_roles(part.role, part.role)) for part in PARTS]
    assert all(style.color is None and style.bgcolor is None for style in styles)
    assert len({part.glyph for part in PARTS}) == len(PARTS)


def test_with_sixteen_colours_neighbouring_phases_have_other_colours() -> None:
    palette = Palette(THEMES[0], basic=True)
    for one, other in itertools.pairwise(PARTS):
        assert palette.style(one.role).color != palette.style(other.role).color
