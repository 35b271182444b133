"""Ranks that these tests spawn are forked with torch imported."""

from __future__ import annotations

from multiprocessing import util

import pytest

from tests import warm


@pytest.fixture(autouse=True)
def spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "spawnv_passfds", util.spawnv_passfds)
    warm.begin()
    warm.spawn_warm()
