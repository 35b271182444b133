"""Every example on gloo ranks: seen by ddptop with steps, loss and buckets, and as well without it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop.cli.main import main
from tests.examples.runs import HELD_STATES, Example, Runs, Snapshot, Watched, look
from tests.processes import environment, has_nccl, started

pytestmark = pytest.mark.slow  # every example is trained, some of them twice

EACH = [
    Example("plain_ddp.py", ("--epochs", "1"), steps=64, hold=30),
    Example("toy_spawn.py", ("--epochs", "30"), 60, 30, ("--ranks", "3"), ranks=3, spawns=True),
    Example("workflow.py", ("--folder", "work", "--epochs", "2"), 79, 30, ("--epochs", "1")),
    Example("images.py", ("--samples", "640", "--epochs", "3"), steps=15, hold=8, drawn=True),
    Example("collectives.py", ("--steps", "40"), steps=40, hold=20),
    # Held in a step that rank 1 alone comes to by itself: rank 0 has joined by then.
    Example(
        "uneven_join.py", ("--epochs", "2", "--batches", "20"), steps=60, hold=25, drawn=True, joined=(0,)
    ),
    Example("accumulation.py", ("--epochs", "1"), steps=64, hold=30, drawn=True),
    Example(
        "comm_hooks.py", ("--steps", "10", "--hooks", "fp16", "powersgd", "bf16"), 60, hold=25, with_nccl=30
    ),
    Example("trouble.py", ("straggler", "--steps", "50"), steps=50, hold=30),
]
HANG = Example("trouble.py", ("hang", "--steps", "120", "--seconds", "12"), steps=120, hold=0)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Of those examples only whose tests have been asked for."""
    names = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    wanted = [example for example in EACH if example.name in names]
    begun = Runs(tmp_path_factory.mktemp("examples"), wanted, enough)
    yield begun
    begun.end()


@pytest.fixture
def example(name: str) -> Example:
    return next(example for example in EACH if example.name == name)


@pytest.fixture
def watched(runs: Runs, example: Example) -> Watched:
    return runs.watched(example)


def of_each(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", names or [example.name for example in EACH])


LAUNCHED = [example.name for example in EACH if not example.spawns]
OWN_RUNTIME = [example.name for example in EACH if example.name != "plain_ddp"]


def enough(snapshot: Snapshot, example: Example) -> bool:
    """All ranks with steps and loss, the joined ones as such, and buckets with times."""
    ranks, group = snapshot["ranks"], snapshot["group"]
    return (
        [rank["rank"] for rank in ranks] == list(range(example.ranks))
        and all(rank["step"] and rank["loss"] is not None for rank in ranks)
        and all(rank["records"] and not rank["lost_records"] for rank in ranks)
        and all(ranks[rank]["joined"] for rank in example.joined)
        and bool(group["step"] and group["step_ms"]["p50"] and group["loss"]["mean"])
        and any(
            bucket["collective_ms"] and bucket["transfer_ms"] is not None for bucket in snapshot["buckets"]
        )
    )


def replayed(watched: Watched, capsys: pytest.CaptureFixture[str]) -> Snapshot:
    assert main(["replay", str(watched.recording), "--json"]) == 0
    shown: Snapshot = json.loads(capsys.readouterr().out)
    return shown


def test_the_hang_is_seen_live_and_ends_by_itself(runs: Runs, tmp_path: Path) -> None:
    """First, and with `runs`: it mostly sleeps, while the others are under way."""

    def stalled(snapshot: Snapshot, example: Example) -> bool:
        found = [alert for alert in snapshot["alerts"] if alert["kind"] == "stall"]
        # On a busy machine a step may take a second, too.
        return enough(snapshot, example) and [alert["rank"] for alert in found] == [1]

    env = environment(tmp_path)
    with started(HANG.watched("--ddptop-stall", "1"), env, tmp_path) as process:
        snapshot = look(tmp_path, HANG, env, stalled)
        out, err = process.communicate(timeout=120)
    assert snapshot["run"]["state"] == "stalled"
    assert [alert["rank"] for alert in snapshot["alerts"] if alert["kind"] == "stall"] == [1]
    assert process.returncode == 0, err
    assert "rank 1 stands still for 12 s" in out
    assert out.endswith("120 steps done\n")


@of_each()
def test_it_is_seen_while_it_runs_and_ends_well(
    watched: Watched, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watched.done.returncode == 0, watched.done.stderr
    assert watched.live["run"]["state"] == "live"
    assert enough(watched.live, example)
    headers = tuple(f"ddptop {example.name}   {state}" for state in HELD_STATES)
    assert not example.drawn or watched.picture.startswith(headers)
    end = replayed(watched, capsys)
    assert end["run"]["state"] == "finished"
    assert end["group"]["step"] == example.steps + example.with_nccl * has_nccl() - 1
    assert [alert["kind"] for alert in end["alerts"] if alert["severity"] == "critical"] == []


@of_each(*LAUNCHED)
def test_under_torchrun_it_runs_just_as_well(runs: Runs, example: Example) -> None:
    assert "Traceback" not in runs.by_torchrun(example).err


@of_each(*OWN_RUNTIME)
def test_it_says_once_how_to_watch_it(runs: Runs, watched: Watched, example: Example) -> None:
    told = [watched.done.stdout]
    told += [] if example.spawns else [runs.by_torchrun(example).out]
    for out in told:
        assert out.startswith("To watch: type `ddptop`")
        assert out.count("To watch") == 1


@of_each("workflow")
def test_the_seed_is_on_the_runs_card(watched: Watched) -> None:
    assert watched.live["run"]["card"]["seed"] == 0


@of_each("toy_spawn")
def test_ten_samples_are_dealt_to_three_ranks_as_torch_does_and_each_is_counted_once(
    runs: Runs, watched: Watched, example: Example
) -> None:
    told = [line for line in watched.done.stdout.splitlines() if line.startswith("[rank")]
    assert told == [
        "[rank 0] samples [0, 3, 6, 9], of which the last 0 are duplicates",
        "[rank 1] samples [1, 4, 7, 0], of which the last 1 are duplicates",
        "[rank 2] samples [2, 5, 8, 1], of which the last 1 are duplicates",
    ]
    assert watched.done.stdout.endswith(" over 10 samples\n")
    plain = runs.by_python(example)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "[rank 1] samples [1, 3, 5, 7, 9], of which the last 0" in plain.stdout, "two ranks there"
    assert plain.stdout.endswith(" over 10 samples\n")


@of_each("workflow")
def test_the_workflow_goes_on_from_its_checkpoint_and_evaluates_every_sample_once(
    runs: Runs, watched: Watched, example: Example
) -> None:
    assert "from epoch 0, step 0\n" in watched.done.stdout
    plain = runs.by_python(example)
    assert plain.returncode == 0, plain.stderr
    assert "from epoch 1, step 79\n" in plain.stdout, "on one rank now"
    assert "epoch 0:" not in plain.stdout
    for out in (watched.done.stdout, runs.by_torchrun(example).out, plain.stdout):
        counts = re.search(r"1001 samples evaluated, predicted classes \[(\d+), (\d+), (\d+)\]", out)
        assert counts, out
        assert sum(map(int, counts.groups())) == 1001


@of_each("images")
def test_images_say_that_torch_has_no_sync_batchnorm_on_the_cpu(
    runs: Runs, watched: Watched, example: Example
) -> None:
    words = "torch has no SyncBatchNorm on the CPU"
    assert watched.done.stderr.count(words) == runs.by_torchrun(example).err.count(words) == 1
    assert f"rank 0 was warned: UserWarning: {words}" in watched.picture


@of_each("collectives")
def test_collectives_show_what_each_rank_gets(watched: Watched) -> None:
    told = watched.done.stdout.splitlines()
    assert "[rank 0] broadcast: all have what the last rank had: [1.0, 1.0]" in told
    assert "[rank 1] scatter: each has its row of rank 0's: [10.0, 10.0]" in told
    assert "[rank 1] all_to_all_single: each has one number of everyone: [1, 11]" in told
    assert "[rank 0] group.mean: 0.6666666666666666" in told
    assert "[rank 1] DDP: gradients are equal on all ranks: True" in told


@of_each("comm_hooks")
def test_hooks_are_compared_by_what_they_send(watched: Watched) -> None:
    parameters = 64 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 + 1
    rows = {line.split()[0]: line.split()[1:] for line in watched.done.stdout.splitlines() if line}
    assert rows["fp16"][0] == f"{2 * parameters / 1e6:.2f}"
    assert float(rows["powersgd"][0]) < 0.1 * float(rows["fp16"][0])
    # Without NCCL in torch's own words that there is none.
    assert rows["bf16"][0] == (rows["fp16"][0] if has_nccl() else "torch:")


@of_each("uneven_join")
def test_ranks_with_fewer_batches_join_and_are_seen_to(watched: Watched) -> None:
    told = watched.done.stdout.splitlines()
    assert told[-2:] == ["[rank 0] 20 batches an epoch", "[rank 1] 30 batches an epoch"]
    assert [rank["joined"] for rank in watched.live["ranks"]] == [True, False]
    # Rank 1 is the one that is held.
    states = re.findall(r"^ *(\d) .*(joined|live|busy)", watched.picture, re.M)
    assert states in ([("0", "joined"), ("1", "live")], [("0", "joined"), ("1", "busy")])


@of_each("accumulation")
def test_four_batches_make_one_optimizer_step_and_are_seen_as_micro_steps(watched: Watched) -> None:
    assert watched.done.stdout.endswith("256 batches in 64 optimizer steps\n")
    assert [rank["micro_steps"] for rank in watched.live["ranks"]] == [4, 4]
    assert " micro " in watched.picture


@of_each("trouble")
def test_the_straggler_is_named_with_its_cause(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    straggler = replayed(watched, capsys)["straggler"]
    assert (straggler["rank"], straggler["cause"]) == (1, "data")
