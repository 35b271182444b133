"""How often `ddptop check` is wrong: `python -m tests.benchmarks.bench_check [PAIRS [RECORDED]]`.

Pairs of runs whose step times are autocorrelated: an AR(1) series as the logarithm of the step, neighbours
alike by 0 to 0.95, and 2 of 100 steps are up to some times as long. PAIRS (200) pairs of equal runs, the
same with a second run that is 3 % slower. RECORDED (0) pairs are written as recordings of the simulation's
two ranks and checked whole: all figures.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.chance import difference
from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Layout, Message, OwnTime, Received, Run, StepRow, Steps
from ddptop.recording.reader import Recording
from ddptop.recording.writer import Writer
from ddptop.report.check import STEP_CONFIDENCE, Measured, against_base, measure_recording, overall_outcome
from ddptop.sources.simulation.story import Story
from tests.made_up_run import START_NS, hello, run_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column

MORE = 1.03
BATCH = 50
SPREAD = 0.05


def step_times(steps: int, alike: float, *seed: int) -> Column:
    """(steps,) step times as shares of the usual one; neighbours correlate by `alike`."""
    rng = np.random.default_rng(seed)
    values = [float(rng.normal())]
    for value in (rng.normal(size=steps - 1) * np.sqrt(1 - alike**2)).tolist():
        values.append(alike * values[-1] + value)
    longer = 1 + (rng.random(steps) < 0.02) * rng.exponential(1.0, steps)
    return np.exp(SPREAD * np.array(values)) * longer


def record(path: Path, shares: Column, world: int = 2, *, ending: Sequence[Run] | None = None) -> None:
    """A recording of simulated ranks whose steps take these shares of their time. `ending`: what says how the
    run has ended; None: that it has finished."""
    story = Story(world, 100.0, detail_every=4)
    writer = Writer(path, limit_bytes=1 << 30)

    def add(t_ns: int, rank: int, number: int, message: Message) -> None:
        writer.add(Received(t_ns, rank, 1000 + rank if rank >= 0 else 0, number, message), encode(message))

    t_ns = START_NS
    add(t_ns, -1, 0, run_message())
    for rank in range(world):
        add(t_ns, rank, 0, hello(rank, world))
        add(t_ns, rank, 1, Layout(1, story.buckets))
    for number, first in enumerate(range(0, len(shares), BATCH)):
        begin_us, rows = 0, []
        for step, share in enumerate(shares[first : first + BATCH].tolist(), first):
            _, of_step = story.make_rows(step, 0)
            rows.append([_longer(row, share)._replace(begin_us=begin_us) for row in of_step])
            begin_us += max(row.wall_us for row in rows[-1])
        for rank, of_rank in enumerate(zip(*rows, strict=True)):
            add(t_ns + begin_us * 1000, rank, 2 + number, Steps(1, first, t_ns, of_rank))
        t_ns += begin_us * 1000
    for message in [run_message("finished", 0)] if ending is None else ending:
        add(t_ns, -1, 0, message)
    writer.close()


def _longer(row: StepRow, share: float) -> StepRow:
    """The row of a step that takes `share` times as long."""
    cells = [round(us * share) if i % 3 else us for i, us in enumerate(row.cells)]
    own = OwnTime(*(round(us * share) for us in row.own))
    times = (round(us * share) for us in row[1:9])
    return StepRow(row.begin_us, *times, *row[9:13], tuple(cells), own)


def measured(folder: Path, shares: Column) -> Measured:
    """Recorded and read again."""
    path = folder / "run.ddptop"
    path.unlink(missing_ok=True)
    record(path, shares)
    with Recording.open(path) as recording:
        return measure_recording(recording, "run")


def main() -> None:
    """Print the tables."""
    given = [int(word) for word in sys.argv[1:3]]
    pairs, recorded = [*given, *(200, 0)[len(given) :]]
    print("steps  alike  false alarms  +3 % found  (share of pairs; step time alone)")
    for steps in (200, 500, 1000, 2000, 3000, 5000) if pairs else ():
        for alike in (0.0, 0.5, 0.8, 0.9, 0.95):
            alarms = found = 0
            for pair in range(pairs):
                one, two = (step_times(steps, alike, steps, round(100 * alike), pair, i) for i in (0, 1))
                for share in (1.0, MORE):
                    apart = difference(one, two * share, confidence=STEP_CONFIDENCE)
                    slower = apart is not None and apart.beyond_chance and apart.more > 0
                    alarms, found = alarms + (slower and share == 1), found + (slower and share != 1)
            print(
                f"{steps:5}  {alike:5.2f}  {100 * alarms / pairs:10.1f} %  {100 * found / pairs:8.1f} %",
                flush=True,
            )
    if not recorded:
        return
    print("recordings of 600 steps, alike by 0.7, all figures: outcomes of the check")
    with tempfile.TemporaryDirectory() as name:
        for share in (1.0, MORE):
            counts = {"within": 0, "regression": 0, "unknown": 0}
            for pair in range(recorded):
                one, two = (step_times(600, 0.7, pair, i) for i in (2, 3))
                base, new = (measured(Path(name), shares) for shares in (one, two * share))
                counts[overall_outcome(against_base(new, base, 1.0))] += 1
            print(f"{share:.2f} times as slow: {counts}", flush=True)


if __name__ == "__main__":
    main()
