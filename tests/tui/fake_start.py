"""Frames of runs on their way to the first step, with times that are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddptop.frames.frame import Alert, Frame
from ddptop.frames.stall import Call, RankPosition, Stall, Trace
from ddptop.frames.start import MILESTONES, RankStart, StartStatus
from tests.tui.fake import NOW, waiting
from tests.tui.troubles import TORCH, rank_position

LAUNCHED_S = NOW - 31.0

PREPARING = (
    Call("/home/ada/lm/train.py", 6, "preprocess_dataset", "time.sleep(60)"),
    Call("/home/ada/lm/train.py", 41, "main", "data = preprocess_dataset(args)"),
    Call("/home/ada/lm/train.py", 120, "<module>", "main()"),
)
IN_DDP = (
    Call(f"{TORCH}/distributed/utils.py", 285, "_verify_param_shape_across_processes", "return dist._verify"),
    Call(f"{TORCH}/nn/parallel/distributed.py", 861, "__init__", "_verify_param_shape_across_processes("),
    Call("/home/ada/lm/train.py", 52, "main", "model = DistributedDataParallel(model)"),
)
SENTENCE = (
    "rank 1 is in train.py:6 preprocess_dataset; ranks 0, 2 and 3 wait for it in "
    "DistributedDataParallel() (parameter check)"
)
SECONDS = {"process_s": 0.4, "torch_s": 2.1, "init_s": 2.4, "group_s": 3.0, "ddp_s": 4.2,
           "model_s": 5.0, "batch_s": 9.1}  # fmt: skip
"""After the launch."""


def rank_start(rank: int, milestone: str, at: str = "", **times: float) -> RankStart:
    """A rank that has passed all milestones up to this one."""
    order = tuple(MILESTONES)
    times = {
        name: seconds + rank % 4 / 10
        for name, seconds in SECONDS.items()
        if milestone and (name == "process_s" or order.index(name[:-2]) <= order.index(milestone))
    } | times
    since_s = LAUNCHED_S + max(times.values()) if times else None
    return RankStart(rank, milestone, since_s, at, **times)


def starting(ranks: tuple[RankStart, ...], behind: tuple[int, ...] = (), **changes: Any) -> Frame:
    """Ranks of which not all have finished a step."""
    frame, order = waiting(len(ranks)), tuple(MILESTONES)
    least = min((one.milestone for one in ranks), key=order.index)
    newest_s = max(one.since_s or 0.0 for one in ranks)
    return replace(
        frame,
        run=replace(
            frame.run,
            started_at=LAUNCHED_S,
            elapsed_s=31.0,
            state="live" if all(one.milestone for one in ranks) else "waiting",
        ),
        ranks=replace(
            frame.ranks,
            state=tuple("live" if one.milestone else "waiting" for one in ranks),
            host=tuple(f"node{one.rank // 2}" if one.milestone else "" for one in ranks),
        ),
        start=StartStatus(least, behind, newest_s, ranks),
        **changes,
    )


def held_up(world: int = 4) -> Frame:
    """Rank 1 prepares its data, the others wait in DDP's constructor and say so."""
    others = [rank for rank in range(world) if rank != 1]
    ranks = tuple(
        rank_start(rank, "group", "train.py:6 preprocess_dataset")
        if rank == 1
        else rank_start(rank, "ddp", "train.py:52 main")
        for rank in range(world)
    )
    frame = starting(ranks, (1,))
    sentence = (
        SENTENCE if world == 4 else SENTENCE.replace("ranks 0, 2 and 3", f"{world - 1} of {world} ranks")
    )
    stall = Stall(
        kind="missing",
        since_s=NOW - 26,
        step=None,
        ranks=(1,),
        waiting=tuple(others),
        sentence=sentence,
        detail=(),
        positions=(position(1, PREPARING), *(position(rank, IN_DDP) for rank in others[:7])),
        start="code",
    )
    alert = Alert("stall", "critical", 1, None, NOW - 26, sentence)
    states = replace(frame.ranks, state=("stalled",) * world)
    return replace(frame, run=replace(frame.run, state="stalled"), ranks=states, alerts=(alert,), stall=stall)


def position(rank: int, calls: tuple[Call, ...]) -> RankPosition:
    """A rank that has answered."""
    told = rank_position(rank, calls, step=None, bucket=None, sequence=None, operation="")
    return replace(told, traces=(Trace("MainThread", True, calls),))


def on_their_way(world: int = 4) -> Frame:
    """All go on: one compiles, two are in their first forward, one has not reported."""
    milestones = ("forward", "forward", "model", "")
    return starting(
        tuple(
            rank_start(rank, milestones[rank % 4], **({"forward_s": 9.5} if rank % 4 < 2 else {}))
            for rank in range(world)
        )
    )
