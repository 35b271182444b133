"""torch's own ways beside the plain loop: torch.compile, ZeroRedundancyOptimizer, AMP with a GradScaler."""

from __future__ import annotations

import re

import pytest

from tests.trainers.pairs import Pair, Ran, assert_same_weights, assert_seen, by_torchrun

pytestmark = pytest.mark.slow  # DDP in twelve ways, each trained twice

STEPS = 10
"""Of each way."""

WAYS = ("zero", "amp", "compiled", "compiled_inside")


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return by_torchrun(tmp_path_factory.mktemp("ways"), "torch_ways.py", *WAYS)


def last_loss(ran: Ran, way: str) -> float:
    """The mean of what the ranks have printed for the last step."""
    found = [re.fullmatch(rf"{way} rank \d step {STEPS - 1} loss (\S+)", line) for line in ran.lines]
    losses = [float(match[1]) for match in found if match]
    assert len(losses) == 2
    return sum(losses) / 2


@pytest.mark.parametrize(("number", "way"), list(enumerate(WAYS, 1)))
def test_weights_are_the_same_and_each_way_is_seen(ways: Pair, number: int, way: str) -> None:
    assert_same_weights(ways.plain.weights(way), ways.watched.weights(way))
    shown = ways.shown(number * STEPS - 1)
    shown["buckets"] = [bucket for bucket in shown["buckets"] if bucket["model"] == number - 1]
    assert_seen(shown, number * STEPS)
    # Under a GradScaler, of the loss before it was scaled.
    assert shown["group"]["loss"]["mean"] == pytest.approx(last_loss(ways.plain, way), rel=1e-5)


def test_the_lines_are_the_same_and_so_are_the_compiled_graphs_and_their_breaks(ways: Pair) -> None:
    assert ways.watched.lines == ways.plain.lines
    for way in ("compiled", "compiled_inside"):
        assert any(
            re.fullmatch(rf"{way} rank 0 .*'unique_graphs': [1-9].*", line) for line in ways.plain.lines
        )
