"""What a step costs to read and to evaluate: `python -m tests.benchmarks.bench_evaluation [STEPS [FOLDER]]`.

Recordings of the simulation with 2 and with 8 ranks (150,000 steps, bucket detail in every 16th) are read as
a report reads them. Printed are microseconds of CPU time a step: of decoding, of pairing the ranks' rows, and
of evaluating the complete steps. FOLDER keeps the recordings for the next time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ddptop.analysis.reducer import Reducer
from ddptop.recording.reader import Recording
from tests.benchmarks.bench_export import make

WORLDS, STEPS, DETAIL_EVERY, ROUNDS = (2, 8), 150_000, 16, 3


def evaluate(path: Path) -> tuple[int, float, float, float]:
    """The steps of a recording, and CPU seconds of decoding, pairing and evaluating them."""
    reducer = Reducer()
    decoded_s = taken_s = settled_s = 0.0
    settle = reducer.evaluation.settle

    def timed_settle() -> None:
        nonlocal settled_s
        begin = time.process_time()
        settle()
        settled_s += time.process_time() - begin

    reducer.evaluation.settle = reducer.state.settle = timed_settle  # type: ignore[method-assign]
    with Recording.open(path) as recording:
        begin = time.process_time()
        for run in recording.runs(0, None):
            decoded_s += time.process_time() - begin
            begin = time.process_time()
            reducer.feed_run(run, 0, lambda: None)
            reducer.state.settle()
            taken_s += time.process_time() - begin
            begin = time.process_time()
    return reducer.state.history.end, decoded_s, taken_s - settled_s, settled_s


def main() -> None:
    """Make the recordings where they are not there, and measure."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(name)
        for world in WORLDS:
            path = folder / f"{world}-{steps}.ddptop"
            if not path.exists():
                make(path, world, steps, DETAIL_EVERY)
            for _ in range(ROUNDS):
                done, *parts = evaluate(path)
                decoding, pairing, evaluating = (1e6 * part / done for part in parts)
                print(
                    f"{world} ranks, {done:,} steps: {decoding + pairing + evaluating:6.1f} us a step "
                    f"(decoding {decoding:.1f}, pairing {pairing:.1f}, evaluating {evaluating:.1f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
