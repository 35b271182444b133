"""What DDP refuses or warns of: in torch's own words on stderr, as without ddptop, and seen on the screen."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ddptop.cli.main import main
from tests.processes import DDPTOP_RUN, environment, has_nccl, run
from tests.recording.replays import frame_at
from tests.trainers.pairs import SCRIPTS, TWO_RANKS, by_torchrun

CAUGHT = ("lazy?", "second_hook?", "bf16?", "unused?")
IN_ALL_BUILDS = (
    "Modules with uninitialized parameters can't be used with `DistributedDataParallel`",
    "register_comm_hook or register_builtin_comm_hook can only be called once",
    "Expected to have finished reduction in the prior iteration before starting a new one",
)
WITHOUT_NCCL = "BF16 all reduce communication hook required"
WARNED = ("strides", "static_graph", "needless_search")
SHAPES = (
    "RuntimeError: [1]: params[0] in this process with sizes [2, 3] appears not to match sizes of the same"
)


@pytest.mark.slow
def test_refusals_and_warnings_are_torchs_own_and_warnings_are_seen(tmp_path: Path) -> None:
    pair = by_torchrun(tmp_path, "refusals.py", *CAUGHT, *WARNED)
    if sys.version_info >= (3, 11):  # before, a frame of ours stays in tracebacks
        assert pair.watched.lines == pair.plain.lines
    text = "\n".join(pair.watched.lines)
    for words in IN_ALL_BUILDS if has_nccl() else (*IN_ALL_BUILDS, WITHOUT_NCCL):
        assert text.count(words) == 2, "once on each rank"

    told = [one for one in frame_at(pair.recording, None).events if one.kind == "warning"]
    assert {one.severity for one in told} == {"warning"}
    for words in (
        "2 ranks were warned: UserWarning: Grad strides do not match bucket view strides.",
        "2 ranks were warned: UserWarning: You passed find_unused_parameters=true to DistributedDataParallel",
        "2 ranks were warned: UserWarning: find_unused_parameters=True was specified in DDP constructor, but",
    ):
        assert [one.message.startswith(words) for one in told].count(True) == 1, told


def test_a_model_that_ddp_never_takes_is_a_death_with_torchs_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = str(tmp_path / "run.ddptop")
    words = [*TWO_RANKS, str(SCRIPTS / "refusals.py"), str(tmp_path), "shapes"]
    done = run([*DDPTOP_RUN, "--ddptop-record", recording, *words], environment(tmp_path), tmp_path)
    assert done.returncode != 0
    assert SHAPES in done.stderr

    assert main(["replay", recording, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["deaths"][0]
    assert first["rank"] == 1
    assert first["reason"].startswith(SHAPES)
    assert first["position"]["user_call"]["function"] == "shapes"
    assert main(["replay", recording, "--once"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "DIED" in shown and "rank 1 failed: RuntimeError: [1]: params[0] in this process" in shown
