"""How far the ledger's sums are from what the script stamps: `python -m tests.benchmarks.bench_ledger`.

--cases NAME...  of `scripts/ledger.py`; without it all
--runs N         fresh runs of each
--load N         busy loops beside them
--keep FOLDER    keep recordings and stamps; --replay FOLDER: compare these again

`script` and `ddptop`: seconds that ranks waited for the slow rank, over all ranks; of what all ranks do, the
seconds of a rank. `all waits`: everything that ranks waited for each other, by the script and by ddptop.
`right`: whether this rank and place are the largest. `flagged`: after how many slow steps, and how long after
the last of these ended. `others`: looks at which another rank is flagged. `advice`: the first.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddptop.analysis.reducer import Reducer
from ddptop.protocol.limits import NS
from ddptop.recording.reader import Recording
from ddptop.report.build import read_report
from tests.processes import DDPTOP_RUN, busy_loops, environment, run

SCRIPT = Path(__file__).parent / "scripts" / "ledger.py"
LOOK_NS = NS // 2


@dataclass(frozen=True)
class Case:
    """What `scripts/ledger.py` does under this name."""

    world: int
    rank: int | None
    """The slow one; None: all ranks."""
    place: str
    """Of the waits for it; of all ranks the class."""
    advice: str


CASES = {
    "save every 100": Case(3, 0, "after_optimizer", "one_rank_work"),
    "save every 50": Case(3, 0, "between_steps", "one_rank_work"),
    "save every 40, loader": Case(3, 0, "after_optimizer", "one_rank_work"),
    "4 s now and then": Case(2, 0, "between_steps", "one_rank_work"),
    "evaluation on rank 0": Case(2, 0, "evaluation", "evaluate_together"),
    "workers anew": Case(2, None, "first_batch", "persistent_workers"),
    "garbage": Case(2, 0, "gc", "garbage_collection"),
    "validation": Case(2, None, "evaluation", ""),
    "shards": Case(3, 2, "data", "data_workers"),
    "summary, barrier": Case(3, 1, "between_steps", "one_rank_work"),
}

HEADING = ("case", "script s", "ddptop s", "error", "all waits", "right", "flagged", "others", "advice")
WIDTHS = (22, 8, 8, 7, 12, 5, 16, 6, 22)


def train(name: str, folder: Path) -> None:
    """One run: its recording and stamps into the folder."""
    with tempfile.TemporaryDirectory() as home:
        command = [*DDPTOP_RUN, "--ddptop-record", folder / "run.ddptop", "--standalone"]
        command += ["--nproc-per-node", str(CASES[name].world), SCRIPT, folder, name]
        done = run(command, environment(Path(home)), folder, deadline_s=300)
    if done.returncode:
        raise SystemExit(done.stderr)


def read_stamps(folder: Path) -> list[dict[str, Any]]:
    """By rank."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]


def waits_of(stamps: list[dict[str, Any]]) -> list[tuple[int, int, float]]:
    """Of each collective its step, the rank that came last, and what the others waited for it."""
    waits = []
    for arrivals in zip(*(of_rank["arrived"] for of_rank in stamps), strict=True):
        last_s = max(at_s for _, at_s in arrivals)
        last = next(rank for rank, (_, at_s) in enumerate(arrivals) if at_s == last_s)
        waits.append((arrivals[0][0], last, sum(last_s - at_s for _, at_s in arrivals)))
    return waits


def follow(recording: Recording) -> list[tuple[float, tuple[int, ...], str]]:
    """Every half a second: when it was by the ranks' clock, which ranks are flagged, and the pattern."""
    reducer, looks, due_ns = Reducer(), [], 0
    for received in recording.records():
        reducer.feed(received)
        if received.t_ns >= due_ns:
            late = reducer.frame(received.t_ns).straggler
            ranks = () if late is None else late.ranks or (late.rank,)
            looks.append((received.t_ns / NS, ranks, "" if late is None else str(late.pattern)))
            due_ns = received.t_ns + LOOK_NS
    return looks


def compare(name: str, folder: Path) -> None:
    """Print the line of a run."""
    case, stamps = CASES[name], read_stamps(folder)
    with Recording.open(folder / "run.ddptop") as recording:
        looks, report = follow(recording), read_report(recording)
    ledger = report.ledger
    assert ledger is not None
    waits = waits_of(stamps)
    all_s = sum(wait_s for _, _, wait_s in waits)
    all_waits = f"{all_s:.1f}, {ledger.run.rank_seconds:.1f}" if all_s else "-"
    if case.rank is None:
        spans = [sum(end - begin for _, begin, end in of_rank["spans"]) for of_rank in stamps]
        script_s = sum(spans) / len(spans)
        ddptop_s = float(ledger.seconds_of(case.place).mean())  # type: ignore[arg-type]
        right, flagged = "-", "-"
    else:
        spans_s = [(step, end) for step, _, end in stamps[case.rank]["spans"]]
        slow_steps = {step for step, _ in spans_s} - {0}
        script_s = sum(wait_s for step, last, wait_s in waits if step in slow_steps and last == case.rank)
        row = next(
            (row for row in ledger.run.waited_for if (row.rank, row.place) == (case.rank, case.place)), None
        )
        ddptop_s = 0.0 if row is None else row.dear_rank_seconds
        right = "yes" if row is not None and row == ledger.run.waited_for[0] else "no"
        first_s = next((at_s for at_s, ranks, _ in looks if case.rank in ranks), None)
        flagged = "never"
        if first_s is not None:
            ends = [end for step, end in spans_s if end < first_s and step]
            pattern = next(pattern for at_s, ranks, pattern in looks if case.rank in ranks)
            flagged = f"{len(ends)}, {first_s - ends[-1]:.1f} s {pattern[:6]}" if ends else "before"
    wrong = sum(bool(ranks) and case.rank not in ranks for _, ranks, _ in looks)
    error = f"{100 * (ddptop_s / script_s - 1):+.1f} %"
    advice = report.advice[0].kind if report.advice else ""
    advice = f"{advice or 'none'}{'' if advice == case.advice else ', wrong'}"
    cells = (name, f"{script_s:.2f}", f"{ddptop_s:.2f}", error, all_waits, right, flagged, str(wrong), advice)
    print(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, WIDTHS, strict=True)).rstrip(), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[*CASES])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--load", type=int, default=0)
    for option in ("--keep", "--replay"):
        parser.add_argument(option, type=Path)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}")
    print("  ".join(f"{cell:<{width}}" for cell, width in zip(HEADING, WIDTHS, strict=True)))
    with tempfile.TemporaryDirectory() as temporary, busy_loops(options.load):
        for name in options.cases:
            for number in range(options.runs):
                folder = (options.replay or options.keep or Path(temporary)) / f"{name}-{number}"
                if options.replay is None:
                    folder.mkdir(parents=True, exist_ok=True)
                    train(name, folder)
                compare(name, folder)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
