"""Every example on gloo ranks: seen by ddptop with steps, loss and buckets, and as well without it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddptop.cli.main import main
from tests.examples.runs import Ended, Example, Runs, seen_to_stall

EACH = [
    Example("plain_ddp.py", ("--epochs", "1"), steps=64, torchrun=True),
    Example("toy_spawn.py", ("--epochs", "30"), 60, ("--ranks", "3"), ranks=3, spawns=True),
    Example("workflow.py", ("--folder", "work", "--epochs", "2"), 79, ("--epochs", "1")),
    Example("images.py", ("--samples", "640", "--epochs", "3"), steps=15),
    Example("collectives.py", ("--steps", "40"), steps=40),
    Example("uneven_join.py", ("--epochs", "2", "--batches", "20"), steps=60),
    Example("accumulation.py", ("--epochs", "1"), steps=64),
    Example("comm_hooks.py", ("--steps", "10", "--hooks", "fp16", "powersgd", "bf16"), steps=60),
    Example("trouble.py", ("straggler", "--steps", "50"), steps=50),
]
HANG = Example("trouble.py", ("hang", "--steps", "120", "--seconds", "12"), steps=120)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Of those examples only whose tests have been asked for."""
    names = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    begun = Runs(tmp_path_factory.mktemp("examples"), [example for example in EACH if example.name in names])
    yield begun
    begun.end()


@pytest.fixture
def example(name: str) -> Example:
    return next(example for example in EACH if example.name == name)


@pytest.fixture
def ended(runs: Runs, example: Example) -> Ended:
    return runs.of(example)


def of_each(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", names or [example.name for example in EACH])


def check(snapshot: dict[str, Any], ranks: int) -> None:
    """All ranks, their steps and loss, and buckets with times."""
    assert [rank["rank"] for rank in snapshot["ranks"]] == list(range(ranks))
    for rank in snapshot["ranks"]:
        assert rank["step"] >= 1
        assert rank["loss"] is not None
        assert rank["lost_records"] == 0
    assert snapshot["group"]["step_ms"]["p50"] > 0
    assert snapshot["group"]["loss"]["mean"] > 0
    assert any(bucket["collective_ms"] for bucket in snapshot["buckets"])
    assert all(bucket["transfer_ms"] is not None for bucket in snapshot["buckets"] if bucket["collective_ms"])


def replayed(ended: Ended, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["replay", str(ended.recording), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_hang_is_seen_live_and_ends_by_itself(runs: Runs, tmp_path: Path) -> None:
    """First, and with `runs`: it mostly sleeps, while the others are under way."""
    snapshot, ended = seen_to_stall(tmp_path, HANG)
    check(snapshot, 2)
    assert snapshot["run"]["state"] == "stalled"
    assert [alert["rank"] for alert in snapshot["alerts"] if alert["kind"] == "stall"] == [1]
    assert ended.returncode == 0, ended.stderr
    assert "rank 1 stands still for 12 s" in ended.stdout
    assert ended.stdout.endswith("120 steps done\n")


@of_each()
def test_it_is_seen_while_it_runs_and_ends_well(
    ended: Ended, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended.watched.returncode == 0, ended.watched.stderr
    running = replayed(ended, capsys, "--at", str(example.steps - 5))
    assert running["run"]["state"] == "live"
    check(running, example.ranks)
    end = replayed(ended, capsys)
    assert end["run"]["state"] == "finished"
    assert end["group"]["step"] == example.steps - 1
    assert [alert["kind"] for alert in end["alerts"] if alert["severity"] == "critical"] == []


@of_each()
def test_without_ddptop_it_runs_just_as_well(ended: Ended) -> None:
    assert ended.plain.returncode == 0, ended.plain.stderr
    assert "Traceback" not in ended.plain.stderr


@of_each(*[example.name for example in EACH if example.name != "plain_ddp"])
def test_it_says_once_how_to_watch_it(ended: Ended) -> None:
    for done in (ended.watched, ended.plain):
        assert done.stdout.startswith("To watch: start by ddptop-run, then type `ddptop`")
        assert done.stdout.count("To watch") == 1


@of_each("toy_spawn")
def test_ten_samples_are_dealt_to_three_ranks_as_torch_does_and_each_is_counted_once(ended: Ended) -> None:
    told = [line for line in ended.watched.stdout.splitlines() if line.startswith("[rank")]
    assert told == [
        "[rank 0] samples [0, 3, 6, 9], of which the last 0 are duplicates",
        "[rank 1] samples [1, 4, 7, 0], of which the last 1 are duplicates",
        "[rank 2] samples [2, 5, 8, 1], of which the last 1 are duplicates",
    ]
    assert ended.watched.stdout.endswith(" over 10 samples\n")
    assert "[rank 1] samples [1, 3, 5, 7, 9], of which the last 0" in ended.plain.stdout, "two ranks there"
    assert ended.plain.stdout.endswith(" over 10 samples\n")


@of_each("workflow")
def test_the_workflow_goes_on_from_its_checkpoint_and_evaluates_every_sample_once(ended: Ended) -> None:
    assert "from epoch 0, step 0\n" in ended.watched.stdout
    assert "from epoch 1, step 79\n" in ended.plain.stdout, "on one rank now"
    assert "epoch 0:" not in ended.plain.stdout
    for done in (ended.watched, ended.plain):
        counts = re.search(r"1001 samples evaluated, predicted classes \[(\d+), (\d+), (\d+)\]", done.stdout)
        assert counts, done.stdout
        assert sum(map(int, counts.groups())) == 1001


@of_each("images")
def test_images_say_that_torch_has_no_sync_batchnorm_on_the_cpu(ended: Ended) -> None:
    assert ended.plain.stderr.count("torch has no SyncBatchNorm on the CPU") == 1


@of_each("collectives")
def test_collectives_show_what_each_rank_gets(ended: Ended) -> None:
    told = ended.watched.stdout.splitlines()
    assert "[rank 0] broadcast: all have what the last rank had: [1.0, 1.0]" in told
    assert "[rank 1] scatter: each has its row of rank 0's: [10.0, 10.0]" in told
    assert "[rank 1] all_to_all_single: each has one number of everyone: [1, 11]" in told
    assert "[rank 0] group.mean: 0.6666666666666666" in told
    assert "[rank 1] DDP: gradients are equal on all ranks: True" in told


@of_each("comm_hooks")
def test_hooks_are_compared_by_what_they_send(ended: Ended) -> None:
    parameters = 64 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 + 1
    rows = {line.split()[0]: line.split()[1:] for line in ended.watched.stdout.splitlines() if line}
    assert rows["fp16"][0] == f"{2 * parameters / 1e6:.2f}"
    assert float(rows["powersgd"][0]) < 0.1 * float(rows["fp16"][0])
    assert rows["bf16"][0] == "torch:", "in torch's own words, that gloo has none"


@of_each("uneven_join")
def test_ranks_with_fewer_batches_join(ended: Ended) -> None:
    told = ended.watched.stdout.splitlines()
    assert told[-2:] == ["[rank 0] 20 batches an epoch", "[rank 1] 30 batches an epoch"]


@of_each("accumulation")
def test_four_batches_make_one_optimizer_step(ended: Ended) -> None:
    assert ended.watched.stdout.endswith("256 batches in 64 optimizer steps\n")


@of_each("trouble")
def test_the_straggler_is_named_with_its_cause(ended: Ended, capsys: pytest.CaptureFixture[str]) -> None:
    straggler = replayed(ended, capsys)["straggler"]
    assert (straggler["rank"], straggler["cause"]) == (1, "data")
