"""Frames of stalls and deaths, as the analysis hands them on, with figures that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddptop.frames.frame import Alert, Frame, LoggedEvent
from ddptop.frames.stall import Call, Death, RankPosition, Stall, Trace
from tests.tui.fake import ELAPSED_S, NOW, column, epoch, history, live, replay

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"

SENTENCE = "rank 1 is missing: it has not entered all_reduce 3 of step 12,481 (sequence 49,923)"

ASLEEP = (
    Call("/usr/lib/python3.11/threading.py", 320, "wait", "waiter.acquire()"),
    Call("/home/ada/lm/train.py", 88, "tokenize", "while True: self.lock.acquire()"),
    Call("/home/ada/lm/train.py", 41, "main", "batch = next(it)"),
    Call("/home/ada/lm/train.py", 120, "<module>", "main()"),
)

WAITING = (
    Call(
        f"{TORCH}/autograd/graph.py", 824, "_engine_run_backward", "return Variable._execution_engine.run_b"
    ),
    Call(f"{TORCH}/autograd/__init__.py", 353, "backward", "_engine_run_backward("),
    Call(f"{TORCH}/_tensor.py", 648, "backward", "torch.autograd.backward("),
    Call(f"{TORCH}/_compile.py", 53, "inner", "return disable_fn(*args, **kwargs)"),
    Call("/home/ada/lm/train.py", 57, "train_step", "loss.backward()"),
    Call("/home/ada/lm/train.py", 45, "main", "train_step(model, batch)"),
)

PIN = Trace("pin_memory", False, (Call("/usr/lib/python3.11/queue.py", 171, "get", "self.not_empty.wait()"),))


def rank_position(rank: int, calls: tuple[Call, ...], **changes: object) -> RankPosition:
    """A rank that has answered."""
    told = RankPosition(
        rank=rank,
        host=f"node{rank // 2}",
        pid=4_310 + rank,
        process="alive",
        step=12_481,
        bucket=2,
        sequence=49_923,
        group="0",
        operation="all_reduce of [[1000]] Float",
        user_call=next((call for call in calls if "ada" in call.file), None),
        traces=(Trace("MainThread", True, calls), PIN) if calls else (),
        at_s=NOW - 1,
    )
    return replace(told, **changes)  # type: ignore[arg-type]  # fields of RankPosition


def missing() -> Frame:
    """Rank 1 loops in a lock of its own, the others wait for it."""
    stall = Stall(
        kind="missing",
        since_s=NOW - 17,
        step=12_481,
        ranks=(1,),
        waiting=(0, 2, 3),
        sentence=SENTENCE,
        detail=("ranks 0, 2 and 3 wait there since 12:30:50", "rank 1's process is alive, 0% CPU"),
        positions=(
            rank_position(1, ASLEEP, sequence=49_922, operation=""),
            *(rank_position(rank, WAITING) for rank in (0, 2, 3)),
        ),
    )
    return _stalled(stall)


def mismatch() -> Frame:
    """Rank 2 broadcasts where the others reduce."""
    odd = (Call("/home/ada/lm/train.py", 61, "sync_scale", "dist.broadcast(scale, src=0)"), *ASLEEP[2:])
    stall = Stall(
        kind="mismatch",
        since_s=NOW - 17,
        step=12_481,
        ranks=(2,),
        waiting=(0, 1, 3),
        sentence="ranks wait in different collectives at sequence 49,923: rank 2 in broadcast, "
        "ranks 0, 1 and 3 in all_reduce",
        detail=(),
        positions=(
            rank_position(2, odd, operation="broadcast of [[1000]] Float"),
            *(rank_position(rank, WAITING) for rank in (0, 1, 3)),
        ),
    )
    return _stalled(stall)


def died() -> Frame:
    """Rank 2 raised an exception, and rank 0 lost its connection to it."""
    frame = live()
    raised = (
        Call("/home/ada/lm/data.py", 31, "read", 'raise ValueError("shard 7 is empty")'),
        Call(f"{TORCH}/utils/data/dataloader.py", 734, "__next__", "data = self._next_data()"),
        *ASLEEP[2:],
    )
    first = rank_position(
        2, raised, process="exit code 1", operation="", traces=(Trace("traceback", True, raised),)
    )
    after = rank_position(0, (), process="ended by SIGTERM", operation="", at_s=None)
    deaths = (
        Death(2, NOW - 12, 12_481, 1, None, "ValueError: shard 7 is empty", first),
        *(
            Death(rank, NOW - 11, 12_481, None, "SIGTERM", "", replace(after, rank=rank), follows=True)
            for rank in (0, 1, 3)
        ),
    )
    message = "rank 2 failed: ValueError: shard 7 is empty (data.py:31 read)"
    return replace(
        frame,
        run=replace(frame.run, state="failed", exit_code=1),
        progress=epoch(4, None),
        history=history(end_s=ELAPSED_S - 12),
        ranks=replace(
            frame.ranks,
            state=("failed",) * 4,
            step=np.full(4, 12_481.0),
            age_ms=column(11_000, 11_000, 12_300, 11_000),
        ),
        alerts=(Alert("failed_rank", "critical", 2, 12_481, NOW - 12, message),),
        events=(*frame.events, LoggedEvent(NOW - 12, "failed_rank", "critical", 2, 12_481, message)),
        deaths=deaths,
    )


def hostile() -> Frame:
    """What is foreign tries to break the screen."""
    frame = missing()
    assert frame.stall is not None
    evil = (
        Call("/tmp/[red]x[/]\x1b[2J.py", 1, "f\x1b]0;x\x07", "print('\x1b[31m')\r\n\t# 名前 ‮"),
        Call("", 0, "", ""),
        Call("C:\\Users\\ada\\train.py", 7, "main", "x" * 500),
    )
    told = rank_position(1, evil, host="a\x1b[31mb", process="\x1b[5malive", operation="all\x1b[1m_reduce")
    stall = replace(
        frame.stall, sentence="rank 1 \x1b[2Jis [b]missing[/b]", detail=("\x07 a",), positions=(told,)
    )
    return replace(frame, stall=stall)


def stalled_in_replay() -> Frame:
    """The same out of a recording."""
    return replace(missing(), source="replay", playback=replay(False).playback)


def drifting() -> Frame:
    """Several alerts at once, of which none stops the run."""
    frame = live()
    alerts = (
        Alert("nan", "critical", 2, 57, NOW - 250, "the loss of rank 2 is NaN or infinite since step 57"),
        Alert("replica_drift", "critical", 3, 80, NOW - 6_500, "rank 3's parameters differ from the others'"),
        Alert("loss_spread", "warning", 0, 12_400, NOW - 12, "loss of rank 0 is 4 times the median"),
    )
    return replace(frame, alerts=alerts)


def _stalled(stall: Stall) -> Frame:
    frame = live()
    call = stall.positions[0].user_call
    assert call is not None
    evidence = {"call": f"train.py:{call.line} {call.function}"}
    return replace(
        frame,
        run=replace(frame.run, state="stalled"),
        progress=epoch(4, None),
        history=history(end_s=ELAPSED_S - 17),
        ranks=replace(frame.ranks, state=("stalled",) * 4, step=np.full(4, 12_481.0)),
        alerts=(Alert("stall", "critical", stall.ranks[0], 12_481, NOW - 17, stall.sentence, evidence),),
        events=(
            *frame.events,
            LoggedEvent(NOW - 2, "stall", "critical", stall.ranks[0], 12_481, f"stall: {stall.sentence}"),
        ),
        stall=stall,
    )
