"""A stall of a GPU told from a stall of a host, on made-up evidence."""

from __future__ import annotations

from typing import Any

import pytest

from ddptop.analysis.stall.sentences import waits_for_device
from ddptop.frames.verdict import verdict
from ddptop.protocol.evidence import Stack, StackFrame
from ddptop.protocol.messages import Event, Phase, Received
from tests.analysis.stalling import NS, Stage, op, users, waits

IN_41 = {"step": 41, "bucket": 3, "sequence": 83}


@pytest.fixture
def stage(make_world):
    return Stage(make_world(4))


def device(stage: Stage, rank: int, state: str, **fields: Any) -> None:
    """The word of a rank's events, as its publisher sends it before its evidence."""
    step = fields.pop("step", 41)
    stage.say(rank, Event("device", stage.now_ns, rank, step, {"state": state, **fields}))


def all_launched(stage: Stage, **states: dict[str, Any]) -> None:
    """All four hosts have launched the same; `rank2={...}` is what the GPU of rank 2 says, else it waits."""
    stage.beat(17, {rank: dict(IN_41) for rank in range(4)})
    for rank in range(4):
        device(stage, rank, **{"state": "collective", "bucket": 2, **states.get(f"rank{rank}", {})})
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(82, done=True), op(83)))


def test_a_gpu_that_has_not_reached_what_its_host_has_launched_is_named(stage) -> None:
    all_launched(stage, rank2={"state": "compute", "phase": "backward", "bucket": 2})
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks, stall.waiting) == ("device", (2,), (0, 1, 3))
    assert stall.sentence == (
        "the GPU of rank 2 makes no progress in backward of step 41: "
        "all hosts have launched all_reduce of step 41"
    )
    assert stall.detail[-1] == (
        "its GPU makes no progress in backward of step 41 and has not reached all_reduce 3 of step 41: "
        "a kernel does not complete"
    )
    assert verdict(stage.frame()).sentence.endswith(
        "the GPU of rank 2 makes no progress in backward of step 41"
    )


def test_where_every_gpu_is_in_the_all_reduce_it_is_the_transport(stage) -> None:
    all_launched(stage)
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("transport", ())
    assert stall.sentence.endswith("none completes: every GPU is in it: transport")
    assert (
        "its GPU is in all_reduce 3 of step 41: its gradients are ready, the all-reduce does not complete"
        in (stall.detail)
    )


def test_hosts_that_run_ahead_of_their_gpus_do_not_hide_the_transport(stage) -> None:
    stage.beat(17, {0: {**IN_41, "step": 43, "sequence": 90}, **{rank: dict(IN_41) for rank in (1, 2, 3)}})
    for rank in range(4):
        device(stage, rank, "collective", bucket=0)
        stage.answer(rank, waits(), operations=(op(81),))
    assert stage.frame().stall.kind == "transport"


def test_without_bucket_detail_transport_and_device_are_not_told_apart(stage) -> None:
    either = {"state": "either", "phase": "backward", "bucket": -1}
    all_launched(stage, **{f"rank{rank}": either for rank in range(4)})
    stall = stage.frame().stall
    assert stall.kind == "transport"
    assert stall.sentence.endswith("none completes: transport or device")


def test_where_no_all_reduce_is_under_way_it_is_a_kernel(stage) -> None:
    stage.beat(17, {rank: dict(IN_41) for rank in range(4)})
    for rank in range(4):
        state = "either" if rank == 3 else "collective"
        device(stage, rank, state, phase="backward", bucket=-1 if rank == 3 else 0)
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(83, done=rank == 3),))
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("device", (3,))


def test_an_error_of_cuda_is_told_with_its_words(stage) -> None:
    all_launched(stage, rank0={"state": "error", "error": "CUDA error: an illegal memory access"})
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("device", (0,))
    assert stall.sentence.startswith("the GPU of rank 0 reports an error")
    assert stall.detail[-1] == "its GPU reports an error: CUDA error: an illegal memory access"


def missing(stage: Stage, state: str, code: str, **fields: Any) -> tuple[str, ...]:
    """Rank 1 has launched less than the others, its main thread is at `code`; the lines about it."""
    ranks = {rank: dict(IN_41) for rank in (0, 2, 3)}
    stage.beat(17, {**ranks, 1: {"step": 41, "bucket": 0, "sequence": 80, "phase": Phase.FORWARD}})
    device(stage, 1, state, **fields)
    own = StackFrame("/home/me/train.py", 90, "step", code)
    stage.answer(1, (Stack("MainThread", True, (own,)),), groups={"0": 80})
    for rank in (0, 2, 3):
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(83),))
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("missing", (1,))
    return stall.detail


def test_a_host_that_waits_for_a_kernel_is_told_from_a_host_that_does_not_enqueue(make_world) -> None:
    on_device = missing(Stage(make_world(4)), "compute", "print(loss.item())", phase="forward", bucket=-1)
    assert on_device[-2:] == (
        "its GPU makes no progress in forward of step 41: a kernel does not complete",
        "its host waits for the GPU in train.py:90 step",
    )
    on_host = missing(Stage(make_world(4)), "idle", "batch = self.tokenize(text)")
    assert on_host[-1] == "its GPU has finished all its work: the host is late"


def test_a_lone_rank_whose_gpu_is_stuck_is_no_rank_in_its_own_code(make_world) -> None:
    stage = Stage(make_world(1))
    stage.beat(17, {0: {"step": 41, "sequence": 83, "phase": Phase.OTHER}})
    device(stage, 0, "compute", phase="optimizer", bucket=-1)
    stage.answer(0, users("step", code="loss.item()"))
    stall = stage.frame().stall
    assert (stall.kind, stall.ranks) == ("device", (0,))
    assert stall.sentence == "the GPU of rank 0 makes no progress in optimizer of step 41"


def test_the_word_of_an_earlier_stall_counts_no_more(stage) -> None:
    early = Event("device", stage.last_ns - NS, 2, 3, {"state": "compute"})
    stage.feed(Received(stage.last_ns - NS, 2, stage.world.session(2), 1, early))
    stage.beat(17, {rank: dict(IN_41) for rank in range(4)})
    for rank in range(4):
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(83),))
    assert stage.frame().stall.kind == "transport"
    assert stage.said("device") == []


def test_where_a_stack_waits_for_the_device() -> None:
    synchronize = StackFrame(
        "/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", 1000, "synchronize", ""
    )
    own = StackFrame("/home/me/train.py", 7, "main", "torch.cuda.synchronize()")
    assert waits_for_device([Stack("MainThread", True, (synchronize, own))]) == (
        "its host waits for the GPU in train.py:7 main"
    )
    assert waits_for_device(users("tokenize")) == ""
    assert waits_for_device([]) == ""
