"""A DDP model's end, a process group's, and the process's own are as they would be without ddptop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import DEADLINE_S
from tests.training.conftest import Ear, Ranks

SCRIPT = Path(__file__).parent / "scripts" / "outlived.py"


@pytest.mark.slow
def test_what_outlives_a_model_its_group_and_the_interpreter_does_no_harm(ear: Ear, ranks: Ranks) -> None:
    (rank,) = ranks.start(SCRIPT, world=1, env=ear.environment(), cold=True)  # frees all of torch at its end
    out, err = rank.communicate(timeout=DEADLINE_S)
    assert (rank.returncode, out, err) == (0, "0 None\n", "")
