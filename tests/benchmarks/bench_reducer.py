"""What the reducer costs the collector: `python -m tests.benchmarks.bench_reducer [RANKS ...]`.

CPU microseconds per step row decoded and fed (10 buckets, detail and own times in every step, the dearest
case), CPU milliseconds per frame, encoded and decoded, and per evaluation of the rules over every step, and
the memory held, for worlds of 2, 8, 64, 512 and 4096 ranks. Of the largest world one rank is a straggler.
"""

from __future__ import annotations

import random
import resource
import sys
import time

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.straggler.own_time_flags import StepFlagging
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.messages import (
    UNKNOWN_OWN_TIME,
    Bucket,
    Flag,
    Hello,
    Layout,
    OwnTime,
    Progress,
    Received,
    Run,
    StepRow,
    Steps,
)
from ddptop.protocol.step_columns import decode_steps

BUCKETS = 10
STEP_US = 20_000
PER_FRAME = {2: 100, 8: 50, 64: 25, 512: 5, 4096: 3}
"""Steps between two frames at 4 Hz: from 400 to 12 steps/s."""
PER_MESSAGE = {2: 20, 8: 10, 64: 5, 512: 1, 4096: 1}
STEPS = {2: 3000, 8: 2000, 64: 400, 512: 200, 4096: 130}
AT_ONCE = 1000
"""Most messages that the collector takes at once."""
OWN = "--no-own" not in sys.argv
"""Rows have their own times; without them they are as those of 0.1.0."""


def introduction(world: int) -> list[Received]:
    """RUN, HELLO and LAYOUT of all ranks."""
    run = Run(1, "id", "bench", "bench.py", (), 10**18, 0, "live", None, True)
    found = [Received(0, -1, 0, 0, run)]
    layout = Layout(0, tuple(Bucket(0, i, 10**6, 10**6, 5, "float32", "") for i in range(BUCKETS)))
    for rank in range(world):
        hello = Hello(1, "id", rank + 1, rank, world, rank % 8, 0, "node0", rank, f"cuda:{rank % 8}", "gloo",
                      "reducer", 0, 10**18, 1.0)  # fmt: skip
        found += [Received(0, rank, rank + 1, 0, hello), Received(0, rank, rank + 1, 1, layout)]
    return found


def row(step: int, noise: random.Random, more_us: int) -> StepRow:
    """One step with a little noise in every ready time; `more_us`: of own time in forward."""
    late = noise.randrange(500)
    cells = tuple(n for i in range(BUCKETS) for n in (i, 5000 + 800 * i + late, 1500 - late))
    own = OwnTime(3000 - late - more_us, 100, 0, 50, 0, 0, 0, 0, 0)
    return StepRow(
        *(step * STEP_US, STEP_US, 500, 4000 + more_us, 10_000 - more_us, 900, 600, 4600, 15_000, 1),
        *(Flag.DETAIL, 20, 0.5, cells, own if OWN else UNKNOWN_OWN_TIME),
    )


class Evaluations:
    """CPU seconds of each evaluation of the rules over every step."""

    def __init__(self) -> None:
        self.each_s: list[float] = []
        self._evaluate = StepFlagging.evaluate
        StepFlagging.evaluate = self._timed  # type: ignore[method-assign]

    def end(self) -> None:
        StepFlagging.evaluate = self._evaluate  # type: ignore[method-assign]

    @property
    def _timed(self):
        def timed(*arguments):
            begin = time.process_time()
            changed = self._evaluate(*arguments)
            self.each_s.append(time.process_time() - begin)
            return changed

        return timed


def measure(world: int) -> str:
    """Feed and frame one world; one line of the table."""
    evaluations = Evaluations()
    noise = random.Random(7)
    reducer = Reducer()
    for message in introduction(world):
        reducer.feed(message)
    fed_s = framed_s = coded_s = 0.0
    rows = frames = size = 0
    cursor = 0
    steps: list[tuple[int, int, bytes]] = []
    beats: list[tuple[int, int, bytes]] = []
    for first in range(0, STEPS[world], PER_MESSAGE[world]):
        for rank in range(world):
            more_us = 2000 * (rank == 77)
            batch = tuple(row(first + i, noise, more_us) for i in range(PER_MESSAGE[world]))
            at = (rank, first + 2)
            steps.append((*at, encode(Steps(0, first, 0, batch))))
            beat = Progress(0, first, 3, 1, 10 * first, 1, 20.0, 0.4, 0)
            beats.append((*at, encode(beat)))
            rows += len(batch)
        if (first + PER_MESSAGE[world]) % PER_FRAME[world]:
            continue
        begin = time.process_time()
        for sent, decode_all in ((steps, decode_steps), (beats, lambda bodies: [*map(decode, bodies)])):
            for begins in range(0, len(sent), AT_ONCE):
                part = sent[begins : begins + AT_ONCE]
                messages = decode_all([body for _, _, body in part])
                for (rank, number, _), message in zip(part, messages, strict=True):
                    reducer.feed(Received(first * STEP_US * 1000, rank, rank + 1, number, message))
        reducer.state.settle()
        fed_s += time.process_time() - begin
        steps.clear()
        beats.clear()
        begin = time.process_time()
        frame = reducer.frame(first * STEP_US * 1000, cursor=cursor)
        framed_s += time.process_time() - begin
        begin = time.process_time()
        data = encode_frame(frame)
        coded_s += time.process_time() - begin
        size = len(data)
        cursor = FrameDecoder().decode(data).history.start + len(frame.history.step)
        frames += 1
    evaluations.end()
    each_ms = sorted(1e3 * each for each in evaluations.each_s) or [float("nan")]
    return (
        f"{world:5d} ranks: {1e6 * fed_s / rows:6.2f} us/row   {1e3 * framed_s / frames:7.2f} ms/frame   "
        f"{each_ms[len(each_ms) // 2]:5.2f} ms/evaluation, at most {each_ms[-1]:5.2f}   "
        f"{1e3 * coded_s / frames:6.2f} ms/encode   {size / 1024:7.0f} KiB/frame   "
        f"{4 * PER_FRAME[world]} steps/s: {400 * (fed_s + framed_s + coded_s) / frames:5.1f}% of a core   "
        f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB"
    )


if __name__ == "__main__":
    for size in [int(word) for word in sys.argv[1:] if word.isdigit()] or sorted(STEPS):
        print(measure(size), flush=True)
