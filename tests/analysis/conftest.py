from __future__ import annotations

import pytest

from tests.made_up_run import World


@pytest.fixture
def make_world() -> type[World]:
    return World
