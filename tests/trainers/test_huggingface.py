"""Accelerate's loop and transformers' Trainer, unmodified."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainers.pairs import assert_seen, by_torchrun

pytestmark = pytest.mark.slow

STEPS = 20


def test_accelerate_trains_alike_and_is_seen(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="pip install 'ddptop[trainers]'")
    pair = by_torchrun(tmp_path, "accelerate_ddp.py")
    pair.assert_alike()
    assert_seen(pair.shown(), STEPS)
    assert any(line.startswith("DistributedType.MULTI_CPU last loss") for line in pair.plain.lines)


def test_transformers_trainer_trains_alike_and_is_seen(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'ddptop[trainers]'")
    pair = by_torchrun(tmp_path, "transformers_ddp.py")
    pair.assert_alike()
    assert_seen(pair.shown(), STEPS)
    assert any("'train_loss'" in line for line in pair.plain.lines)
