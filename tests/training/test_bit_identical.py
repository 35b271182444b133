"""Training under `ddptop-run` ends with the weights of torchrun, bit for bit, whatever DDP is asked to do."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
import torch

from ddptop.training.shadow import LENGTH, PERIOD
from tests.processes import DDPTOP_RUN, TORCHRUN, environment, free_port, run, run_plain
from tests.training.scripts.variants import SHADOW_STEPS

SCRIPTS = Path(__file__).parent / "scripts"
VARIANTS = (
    "default",
    "bucket_view",
    "bucket_view_kept",
    "unused",
    "static_graph",
    "no_sync",
    "accumulated",
    "join_initial",
    "join_effective",
    "fp16_hook",
    "builtin_fp16",
    "power_sgd",
    "custom_hook",
    "bfloat16",
    "checkpoint",
    "checkpoint_reentrant",
    "lbfgs",
    "two_models",
    "subgroup",
)


class Trained:
    """Runs each script once per launcher and world size, and keeps the folders of final weights."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @functools.cache  # noqa: B019 - lives as long as the test session
    def variants(self, launcher: str, world: int, *names: str) -> Path:
        folder = self.home / "-".join((launcher, str(world), *names))
        folder.mkdir()
        options = ["--standalone", "--nproc-per-node", str(world), str(SCRIPTS / "variants.py"), str(folder)]
        options += names
        # Full detail: the recorder is in the way in every step of every variant.
        words = (
            [*TORCHRUN, *options]
            if launcher == "torchrun"
            else [*DDPTOP_RUN, "--ddptop-detail", "full", *options]
        )
        done = (run_plain if launcher == "torchrun" else run)(words, environment(self.home), self.home)
        assert done.returncode == 0, done.stderr
        return folder

    @functools.cache  # noqa: B019
    def spawned(self, launcher: str, world: int) -> Path:
        folder = self.home / f"spawn-{launcher}-{world}"
        folder.mkdir()
        script = [sys.executable, str(SCRIPTS / "spawned.py"), str(folder), str(world), str(free_port())]
        words = script if launcher == "plain" else [*DDPTOP_RUN, "--ddptop-exec", *script]
        done = (run_plain if launcher == "plain" else run)(words, environment(self.home), self.home)
        assert done.returncode == 0, done.stderr
        if launcher != "plain":
            assert "10 steps" in done.stderr, "the children of mp.spawn are recorded"
        return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("bits"))


def assert_same_weights(expected: Path, actual: Path, name: str, world: int) -> None:
    for rank in range(world):
        plain = torch.load(expected / f"{name}-{rank}.pt")
        watched = torch.load(actual / f"{name}-{rank}.pt")
        assert plain.keys() == watched.keys()
        different = [key for key in plain if not torch.equal(plain[key], watched[key])]
        assert not different, f"rank {rank}: {different}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_are_those_of_torchrun(trained: Trained, variant: str) -> None:
    assert_same_weights(trained.variants("torchrun", 3), trained.variants("ddptop-run", 3), variant, 3)


@pytest.mark.slow
def test_weights_are_the_same_after_a_shadow_block(trained: Trained) -> None:
    assert PERIOD + LENGTH < SHADOW_STEPS
    plain, watched = (trained.variants(launcher, 2, "shadow") for launcher in ("torchrun", "ddptop-run"))
    assert_same_weights(plain, watched, "shadow", 2)


def test_weights_of_an_mp_spawn_script_are_the_same(trained: Trained) -> None:
    assert_same_weights(trained.spawned("plain", 2), trained.spawned("ddptop-run", 2), "spawn", 2)


def test_the_comparison_can_fail(trained: Trained) -> None:
    folder = trained.variants("torchrun", 3)
    with pytest.raises(AssertionError):
        other = trained.home / "other"
        other.mkdir()
        for rank in range(3):
            state = torch.load(folder / f"default-{rank}.pt")
            state["last.bias"][0] += 1e-7
            torch.save(state, other / f"default-{rank}.pt")
        assert_same_weights(folder, other, "default", 3)
