"""Lightning's `strategy="ddp"`, unmodified: started by plain Python, and by a launcher."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from tests.trainers.pairs import SCRIPTS, Pair, assert_same_weights, assert_seen, by_itself, by_torchrun

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("lightning") is None, reason="pip install 'ddptop[trainers]'"),
]
STEPS = 20


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return by_itself(tmp_path_factory.mktemp("alone"), [sys.executable, str(SCRIPTS / "lightning_ddp.py")])


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return by_torchrun(tmp_path_factory.mktemp("launched"), "lightning_ddp.py")


def test_ranks_that_lightning_starts_itself_train_alike_and_are_seen(alone: Pair) -> None:
    alone.assert_alike()
    assert_seen(alone.shown(), STEPS)


def test_so_do_those_of_the_launcher(launched: Pair) -> None:
    launched.assert_alike()
    assert_seen(launched.shown(), STEPS)


def test_the_launcher_makes_no_difference_to_the_weights(alone: Pair, launched: Pair) -> None:
    assert_same_weights(alone.plain.weights(), launched.watched.weights())
