"""Figures are written by the functions of `ddptop/frames/numbers.py`: one rule for their decimals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.shape import PACKAGE

RULES = PACKAGE / "frames" / "numbers.py"

ELSEWHERE = {
    "report/pictures.py",  # coordinates in an SVG
    "frames/snapshot.py",  # a number of the JSON, which is rounded and not written
}

OTHER_END = {"training", "protocol", "host", "transport", "agent", "recording", "export"}
"""Packages below `frames`, and forms for other tools: what they write is no figure of a screen."""

CHOSEN = re.compile(r"\.(\d+|\*)[feg%]")
"""Decimals in a format."""

DIGITS = {
    "fixed": (1, (0, 1)),
    "signed": (1, (0, 1)),
    "percent": (1, (0, 1)),
    "significant": (1, (2, 3, 4)),
}
"""Functions of the rule that take a number of decimals, or of digits: its place among the arguments, and the
numbers that others may give. Without one they choose it themselves; `RATIO` is a name."""

SOURCES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != RULES
    and str(path.relative_to(PACKAGE)) not in ELSEWHERE
    and path.relative_to(PACKAGE).parts[0] not in OTHER_END
]


def own_decimals(source: str) -> Iterator[int]:
    """Lines that choose decimals themselves: in a format, by `%`, by `round` in a text, or as a number that
    is given to a function of the rule."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            spec = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "*" for part in _parts(node)
            )
            if CHOSEN.search(spec):
                yield node.lineno
        elif isinstance(node, ast.FormattedValue) and _calls(node.value, "round") == 2:
            yield node.lineno
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            text = node.left.value if isinstance(node.left, ast.Constant) else None
            if isinstance(text, str) and re.search(r"%[\d,]*\.\d[feg]", text):
                yield node.lineno
        elif isinstance(node, ast.Call) and _chooses(node):
            yield node.lineno


def _chooses(call: ast.Call) -> bool:
    """Whether a call formats with decimals of its own, or gives such a number to a function of the rule."""
    name = _name(call.func)
    if name == "format":  # the built-in function, or the method of a text
        template = call.func.value if isinstance(call.func, ast.Attribute) else None
        texts = [template] if template is not None else call.args[1:2]
        return any(isinstance(one, ast.Constant) and CHOSEN.search(str(one.value)) for one in texts)
    place, allowed = DIGITS.get(name, (0, ()))
    if not place:
        return False
    given = [one.value for one in call.keywords if one.arg == "digits"] or call.args[place : place + 1]
    return any(isinstance(one, ast.Constant) and one.value not in allowed for one in given)


def _parts(node: ast.FormattedValue) -> list[ast.expr]:
    return node.format_spec.values if isinstance(node.format_spec, ast.JoinedStr) else []


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _calls(node: ast.expr, name: str) -> int:
    """The number of arguments of a call of this function; 0: it is none."""
    return len(node.args) if isinstance(node, ast.Call) and _name(node.func) == name else 0


def test_no_other_module_chooses_decimals() -> None:
    assert len(SOURCES) > 200
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in SOURCES
        if (lines := list(own_decimals(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "f'{ms:.1f} ms'",
        "f'{ms:>8,.2f}'",
        "f'{ms:.{digits}f}'",
        "f'{share:.0%}'",
        "f'{round(ms, 1)} ms'",
        "'%.1f ms' % ms",
        "fixed(ms, 3)",
        "numbers.signed(ms, 2)",
        "fixed(ms, digits=3)",
        "percent(share, 3)",
        "significant(ms, 9)",
        "'{:.2f}'.format(ms)",
        "format(ms, '.2f')",
    ],
)
def test_decimals_of_its_own_are_noticed(line: str) -> None:
    assert list(own_decimals(line)) == [1]


@pytest.mark.parametrize(
    "line",
    [
        "f'{step:,}'",
        "f'{name:<8}'",
        "f'{limit_s:g} s'",
        "fixed(ms, RATIO)",
        "percent(share, 0)",
        "bounded(ms, bound)",
    ],
)
def test_other_formats_are_not(line: str) -> None:
    assert list(own_decimals(line)) == []


GOLDEN = PACKAGE.parent / "tests" / "tui" / "golden"

FIGURE = re.compile(
    r"(?<![\d.,:±≤>=])(?P<whole>\d{1,3}(?:,\d{3})*|\d+)(?P<decimals>\.\d+)?(?P<unit> ms|%)(?!\w| budget)"
)
"""Not the bounds of a legend's classes, and no budget, which is written as it was set."""

AXIS = re.compile(r"^ *\d+(?: +\d+)+ ms")

OF_HUNDREDTHS = re.compile(r"clock|round trip|wait \S+ \+ transfer|bucket")
"""What has two decimals where it is in ms (`RATIO`)."""


def of_the_rule(line: str) -> Iterator[str]:
    """Figures of a line that break the rule."""
    for figure in FIGURE.finditer(AXIS.sub("", line)):
        whole, decimals = int(figure["whole"].replace(",", "")), len(figure["decimals"] or ".") - 1
        if figure["unit"] == "%":
            allowed = {0} if whole >= 5 else {1} if whole or decimals else {0, 1}
        else:
            allowed = {1, 2} if OF_HUNDREDTHS.search(line) else {1}
        if decimals not in allowed:
            yield figure[0]


def test_pictures_have_one_decimal_for_ms_and_small_shares() -> None:
    lines = {line for path in GOLDEN.glob("*.txt") for line in path.read_text(encoding="utf-8").splitlines()}
    assert len(lines) > 1_000
    assert {line.strip(): broken for line in lines if (broken := list(of_the_rule(line)))} == {}
    assert list(of_the_rule("12 ms, 4% and 41.3% of 1.25 ms")) == ["12 ms", "4%", "41.3%", "1.25 ms"]
