"""Ray Train's TorchTrainer, unmodified, on a local Ray, whose workers inherit the run from it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.trainers.pairs import SCRIPTS, assert_same_weights, assert_seen, by_itself

pytest.importorskip("ray.train.torch", reason="pip install 'ray[train]'", exc_type=ImportError)
pytestmark = pytest.mark.slow
STEPS = 20


@pytest.mark.timeout(400)  # a Ray takes half a minute to start and to stop, and there are two
def test_ray_train_trains_alike_and_is_seen(tmp_path: Path) -> None:
    pair = by_itself(tmp_path, [sys.executable, str(SCRIPTS / "ray_torch.py")])
    assert_same_weights(pair.plain.weights(), pair.watched.weights())
    assert_seen(pair.shown(STEPS - 1), STEPS)
    # Ray kills its workers once they have left their group.
    assert [rank["state"] for rank in pair.shown()["ranks"]] == ["finished"] * 2
