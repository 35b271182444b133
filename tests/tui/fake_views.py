"""Made-up parts of frames that only some views want: timelines, heat maps, and runs with much to tell."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ddptop.frames.columns import fold, folds
from ddptop.frames.detail import (
    Heat,
    HeatRequest,
    Lane,
    LaneSpan,
    Reduce,
    Timeline,
    TimelineRequest,
    count_map_steps,
    parse_request,
)
from ddptop.frames.frame import Clocks
from tests.tui.fake import FakeSource, several

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame
    from ddptop.protocol.vocabulary import StepPhase

NAN = float("nan")


class WantedSource(FakeSource):
    """Gives what is wanted at once, as a collector would with its next frame."""

    def request(self, text: str) -> None:
        self.asked.append(("want", text))
        assert self.frame is not None
        self.frame = with_wanted(self.frame, text)


def with_wanted(frame: Frame, text: str) -> Frame:
    """The frame with the made-up part that `text` asks for."""
    want, newest, late = parse_request(text), frame.group.step, frame.straggler
    if newest is None:
        return frame
    world, slow = len(frame.ranks.state), () if late is None else (late.ranks or (late.rank,))
    if isinstance(want, TimelineRequest):
        if not frame.buckets:
            return replace(frame, timeline=untimed(world, "forward"))
        return replace(frame, timeline=timeline(world, want, slow=slow, newest=newest))
    if isinstance(want, HeatRequest):
        one = slow[0] if late is not None and not late.group else None
        return replace(frame, heat=heat(world, want, one, newest))
    return frame


def timeline(
    world: int = 4,
    want: TimelineRequest | None = None,
    buckets: int = 2,
    *,
    slow: tuple[int, ...] = (1,),
    newest: int = 12_480,
    **changes: Any,
) -> Timeline:
    """A step to which some ranks come 20 ms late with their data; `slow` empty: an even one."""
    want = want or TimelineRequest()
    kept = tuple(range(max(newest % 4, newest - 252), newest + 1, 4))
    step = want.step if want.step in kept else kept[-1]
    first = max(0, min(want.rank - 7, world - 15)) if world > 16 else 0
    ranks = list(range(first, min(world, first + 16)))
    if world > 16 and slow and slow[0] not in ranks:
        ranks = [slow[0], *ranks[:15]]
    sizes = [8_392_704, *[25_165_824] * (buckets - 1)]
    delay = LATE_MS if slow else 0.1
    shown = Timeline(
        step=step or newest,
        kept=kept,
        picked=want.step in kept,
        detailed=True,
        clock_free=False,
        micro_steps=1,
        step_ms=26.5 + delay,
        span_ms=26.5 + delay,
        exposed_ms=18.4 if slow else 3.1,
        overlap_pct=22.0 if slow else 40.0,
        bound_ms=0.1,
        last=slow[0] if slow else 1,
        skew_ms=delay,
        kept_every=1,
        reduces=tuple(Reduce(0, i, sizes[i], "0") for i in range(buckets)),
        lanes=tuple(lane(rank, LATE_MS if rank in slow else 0.0, buckets, delay) for rank in ranks),
    )
    return replace(shown, **changes)


LATE_MS = 20.3
"""How late a slow rank is."""


def lane(rank: int, late: float, buckets: int = 2, delay: float = LATE_MS, place: StepPhase = "data") -> Lane:
    """1.2 ms of data, 7.1 of forward, 14 of backward with the buckets ready at even distances; `late` ms more
    in `place`. The last rank comes `delay` ms late."""
    begin = 0.1 * (rank % 3) if delay == LATE_MS else 0.02 * (rank % 3)
    data = begin + 1.2 + (late if place == "data" else 0.0)
    forward = begin + 8.4 + late
    ready = forward + 14.0 * np.arange(1, buckets + 1) / buckets
    arrival = begin + 8.4 + delay + 14.0 * np.arange(1, buckets + 1) / buckets
    arrival = np.maximum(arrival, ready)
    end = arrival + np.where(np.arange(buckets) == 0, 1.9, 3.0)
    spans = [
        LaneSpan("data", begin, data),
        LaneSpan("other", data, data + 0.1),
        LaneSpan("forward", data + 0.1, forward),
    ]
    spans.append(LaneSpan("backward", forward, float(ready[-1])))
    spans.append(LaneSpan("waiting", float(ready[-1]), float(arrival[-1])))
    spans.append(LaneSpan("moving", float(arrival[-1]), float(end[-1])))
    step = 26.5 + delay
    spans += [LaneSpan("optimizer", float(end[-1]), step - 0.3), LaneSpan("other", step - 0.3, step)]
    last = np.full(buckets, 1.0 if late else 0.0)
    spans = [span for span in spans if span.end_ms > span.begin_ms]
    return Lane(rank, tuple(spans), np.arange(float(buckets)), ready, ready, arrival, end, last)


def untimed(world: int = 4, place: StepPhase = "data") -> Timeline:
    """A step without bucket detail, in which rank 1 is late in one of its phases."""
    shown = timeline(world, exposed_ms=None, overlap_pct=None, detailed=False, last=None, skew_ms=None)
    nothing = np.zeros(0)
    lanes = []
    for one in shown.lanes:
        spans = [
            LaneSpan("backward" if s.name in ("waiting", "moving") else s.name, s.begin_ms, s.end_ms)
            for s in lane(one.rank, LATE_MS if one.rank == 1 else 0.0, place=place).spans
        ]
        lanes.append(replace(one, spans=tuple(spans), reduces=nothing, ready_ms=nothing, start_ms=nothing,
                             arrival_ms=nothing, end_ms=nothing, last=nothing))  # fmt: skip
    return replace(shown, reduces=(), lanes=tuple(lanes))


def clock_free(world: int = 4) -> Timeline:
    """Ranks whose clocks cannot be compared."""
    shown = timeline(world, clock_free=True, last=None, skew_ms=None, bound_ms=None)
    lanes = tuple(replace(one, last=np.full(len(one.last), NAN)) for one in shown.lanes)
    return replace(shown, lanes=lanes)


def values(world: int, figure: str, steps: int, slow: int | None) -> Any:
    """(ranks, steps): one rank slow in its data, one rank slower every tenth step, one not known."""
    base = {"step": 46.8, "data": 1.2, "excess": 0.1, "wait": 20.2, "loss": 0.41}.get(figure, 3.0)
    rank, step = np.arange(world)[:, None], np.arange(steps)[None, :]
    found = base * (1 + 0.004 * ((rank * 7 + step * 3) % 5))
    if figure in ("data", "excess"):
        if slow is not None:
            found = np.where(rank == slow, base + 20.3 + 0.1 * (step % 3), found)
        found = np.where((rank == world - 2) & (step % 10 == 0), 9.0, found)
    return np.where((rank == world - 1) & (step < steps // 3), NAN, found)


def heat(world: int, want: HeatRequest, slow: int | None = 1, newest: int = 12_480) -> Heat:
    """As the reducer makes it."""
    count = min(want.count or world, world - want.first)
    steps = min(want.columns, count_map_steps(world, 100))
    cells = values(world, want.figure, steps, slow)[want.first : want.first + count]
    edges = folds(count, want.rows)
    value, rank = fold(cells, edges)
    return Heat(
        figure=want.figure,
        first=want.first,
        count=count,
        rows=tuple((edges + want.first).tolist()),
        steps=tuple(range(newest + 1 - steps, newest + 1)),
        low=float(np.nanmin(cells)),
        middle=float(np.nanmedian(cells)),
        high=float(np.nanmax(cells)),
        value=value.ravel(),
        rank=(rank + want.first).ravel(),
    )


def odd() -> Timeline:
    """Two models in groups of their own, a bucket that queues, one whose end nobody saw."""
    shown = timeline(2, reduces=(Reduce(0, 0, None, "0"), Reduce(1, 0, 25_165_824, "expert 1")))
    changed = []
    for one in shown.lanes:
        start = np.array([one.ready_ms[0], one.ready_ms[1] + 2.0])
        end = np.array([NAN, one.end_ms[1]])
        changed.append(replace(one, start_ms=start, end_ms=end, last=np.array([NAN, one.last[1]])))
    return replace(shown, lanes=tuple(changed))


def on_hosts(frame: Frame, of: int) -> Frame:
    """The same ranks, so many to a host."""
    world = len(frame.ranks.host)
    ranks = replace(
        frame.ranks,
        host=tuple(f"gpu-a{rank // of:03}" for rank in range(world)),
        local_rank=np.arange(world) % float(of),
    )
    return replace(frame, ranks=ranks)


def told() -> Frame:
    """A run on two hosts, two models in groups of their own, of which much is known."""
    frame = several()
    card = {
        "python": "3.11.7", "nccl": "2.27.5", "threads": 8, "seed": 0, "git": "4f2a91c",
        "ddp.backend_name": "nccl", "ddp.bucket_cap_bytes": 26_214_400, "ddp.broadcast_buffers": 1,
        "ddp.find_unused_parameters": 1, "ddp.gradient_as_bucket_view": 0, "ddp.static_graph": False,
        "ddp.bucket_sizes": "8392704, 25165824", "ddp.module_name": "ResNet",
        "ddp.cuda_visible_devices": "0,1",
        "ddp.nccl_socket_ifname": "eth0", "ddp.nccl_blocking_wait": "N/A", "ddp.master_addr": "10.0.0.1",
        "ddp.master_port": "29500", "ddp1.find_unused_parameters": 0, "ddp1.module_name": "Experts",
        "first_failure": "RuntimeError: no event was recorded",
    }  # fmt: skip
    argv = ("train.py", "--data", "/data/imagenet/train", "--epochs", "90", "--lr", "0.1", "--workers", "8")
    return replace(
        frame,
        run=replace(frame.run, card=card, argv=argv, nodes=2),
        clocks=(Clocks("node0", 0.0, 0.0), Clocks("node1", -3.217, 0.042)),
        overhead=replace(frame.overhead, failures=2, detail_reason="more would exceed the 1% budget"),
    )
