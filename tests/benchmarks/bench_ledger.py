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
from typing import TYPE_CHECKING, Any

from ddptop.analysis.reducer import Reducer
from ddptop.protocol.limits import NS
from ddptop.recording.reader import Recording
from ddptop.report.build import read_report
from tests.processes import DDPTOP_RUN, busy_loops, environment, run

if TYPE_CHECKING:
    from ddptop.report.content import Report

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


def train(folder: Path, world: int, *words: str) -> None:
    """One run of a case: its recording and stamps into the folder."""
    with tempfile.TemporaryDirectory() as home:
        command = [*DDPTOP_RUN, "--ddptop-record", folder / "run.ddptop", "--standalone"]
        command += ["--nproc-per-node", str(world), SCRIPT, folder, *words]
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


@dataclass(frozen=True)
class Comparison:
    """A run by the script's stamps and by ddptop."""

    script_s: float
    ddptop_s: float
    all_script_s: float
    """What all ranks waited for each other."""
    all_ddptop_s: float
    is_right: bool | None
    """Whether rank and place have the largest sum; None: no rank is slow."""
    flagged_after: int | None
    """Slow steps until it is flagged; None: never."""
    flagged_s: float
    pattern: str
    n_wrong: int
    """Looks at which another rank is flagged."""
    report: Report


def compare(case: Case, folder: Path) -> Comparison:
    """Compare a recording with its stamps."""
    stamps = read_stamps(folder)
    with Recording.open(folder / "run.ddptop") as recording:
        looks, report = follow(recording), read_report(recording)
    ledger, waits, rank = report.ledger, waits_of(stamps), case.rank
    assert ledger is not None
    all_s = sum(wait_s for _, _, wait_s in waits), ledger.run.rank_seconds
    if rank is None:
        spans = [sum(end - begin for _, begin, end in of_rank["spans"]) for of_rank in stamps]
        ddptop_s = float(ledger.seconds_of(case.place).mean())  # type: ignore[arg-type]
        wrong = sum(bool(ranks) for _, ranks, _ in looks)
        return Comparison(sum(spans) / len(spans), ddptop_s, *all_s, None, None, 0.0, "", wrong, report)
    # What comes before the first step is its start.
    ends = [(step, end) for step, _, end in stamps[rank]["spans"] if step]
    slow_steps = {step for step, _ in ends}
    script_s = sum(wait_s for step, last, wait_s in waits if step in slow_steps and last == rank)
    rows = ledger.run.waited_for
    row = next((row for row in rows if (row.rank, row.place) == (rank, case.place)), None)
    ddptop_s = 0.0 if row is None else row.dear_rank_seconds
    flag = next((look for look in looks if rank in look[1]), None)
    before = [end for _, end in ends if flag is not None and end < flag[0]]
    return Comparison(
        script_s,
        ddptop_s,
        *all_s,
        is_right=row is not None and row == rows[0],
        flagged_after=None if flag is None else len(before),
        flagged_s=flag[0] - before[-1] if flag is not None and before else 0.0,
        pattern="" if flag is None else flag[2],
        n_wrong=sum(bool(ranks) and rank not in ranks for _, ranks, _ in looks),
        report=report,
    )


def show(name: str, folder: Path) -> None:
    """Print the line of a run."""
    case = CASES[name]
    run = compare(case, folder)
    flagged = f"{run.flagged_after}, {run.flagged_s:.1f} s {run.pattern[:6]}"
    advice = run.report.advice[0].kind if run.report.advice else ""
    cells = (
        name,
        f"{run.script_s:.2f}",
        f"{run.ddptop_s:.2f}",
        f"{100 * (run.ddptop_s / run.script_s - 1):+.1f} %",
        f"{run.all_script_s:.1f}, {run.all_ddptop_s:.1f}",
        "-" if run.is_right is None else "yes" if run.is_right else "no",
        "-" if case.rank is None else "never" if run.flagged_after is None else flagged,
        str(run.n_wrong),
        f"{advice or 'none'}{'' if advice == case.advice else ', wrong'}",
    )
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
                    train(folder, CASES[name].world, name)
                show(name, folder)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
