"""What is rare and dear: a rank slow in one of so many steps, an evaluation on rank 0, starting epochs.

The runs are those of `tests.benchmarks.bench_ledger`. Of a slow rank its place, and what is slow, are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from ddptop.frames.sampled_stack import hot_line, hot_path
from tests.benchmarks.bench_ledger import CASES, Case, Comparison, compare, train
from tests.truth.trials import Trials

KINDS = ("sleep", "loop", "read_file", "sort_array")
PLACES = (
    *("data", "forward", "optimizer"),
    *("before_forward", "before_backward", "before_optimizer", "after_optimizer"),
)
NEAR = 0.03
"""A sum is right if it is off by no more."""


@dataclass(frozen=True)
class RareRow:
    """One line of the table."""

    name: str
    case: str
    """Of `bench_ledger`; `rarely`: drawn."""
    every: int = 0
    seconds: float = 0.0
    """One step of so many takes so much longer."""
    function: str = ""
    """That holds the line; empty: the kind."""


ROWS = (
    RareRow("rare-20", "rarely", 20, 1.5),
    RareRow("rare-200", "rarely", 200, 2.0),
    RareRow("rare-1000", "rarely", 1000, 3.0),
    RareRow("rare-evaluation", "evaluation on rank 0", function="evaluate_on_rank_0"),
    RareRow("rare-epoch-start", "workers anew", function="workers_anew"),
)


def draw(row: RareRow, seed: int) -> tuple[Case, str, tuple[str, ...]]:
    """The case, the function that is slow, and the script's words."""
    if row.case != "rarely":
        return CASES[row.case], row.function, (row.case,)
    chance = Random(f"{row.name} {seed}")
    world = chance.choice((2, 3))
    rank, place, kind = chance.randrange(world), chance.choice(PLACES), KINDS[seed % len(KINDS)]
    words = (row.case, str(rank), place, kind, str(row.every), str(row.seconds))
    return Case(world, rank, place, ""), kind, words


def run(row: RareRow, folder: Path, seed: int) -> None:
    """One trial: its recording and stamps into the folder."""
    case, _, words = draw(row, seed)
    train(folder, case.world, *words)
    (folder / "seed").write_text(str(seed))


def sampled_lines(comparison: Comparison, case: Case) -> list[tuple[str, str]]:
    """Of each long step of the slow rank the function with the line that takes the time, and the line."""
    lines = []
    for stack in comparison.report.sampled:
        if stack.is_long_step and stack.rank == (case.rank or 0):
            users = [group.call.function for group in hot_path(stack) if group.call.line]
            lines.append((users[-1] if users else "", hot_line(stack)))
    return lines


HEADING = (
    f"{'row':<20}{'trials':<8}{'sum':<8}{'error':<8}{'place':<8}{'flagged after':<16}{'line':<8}{'others':<8}"
)


def show(rows: list[RareRow], trials: Trials) -> None:
    """Run the rows and print a line of each."""
    print(
        "sum: within 3 % of the stamps; error: the largest; flagged after: slow steps, median and most; "
        "line: the function that is slow is named; others: runs in which another rank was flagged\n"
        f"{HEADING}",
        flush=True,
    )
    for row in rows:
        errors, places, after, lines, others, notes = [], [], [], [], 0, []
        for folder in trials.of(row.name, partial(run, row)):
            case, function, words = draw(row, int((folder / "seed").read_text()))
            told = compare(case, folder)
            errors.append(told.ddptop_s / told.script_s - 1)
            places.append(told.is_right is not False)
            after += [told.flagged_after] if case.rank is not None else []
            sampled = sampled_lines(told, case)
            lines.append(bool(sampled) and sampled[-1][0] == function)
            others += told.n_wrong > 0
            if not (places[-1] and lines[-1]) or abs(errors[-1]) > NEAR:
                notes.append(f"  {words}: {errors[-1]:+.1%}, {[line for _, line in sampled]}")
        flags = sorted(-1 if steps is None else steps for steps in after)
        flagged = f"{flags[len(flags) // 2]}, {flags[-1]}" if flags else "-"
        n, near = len(errors), sum(abs(error) <= NEAR for error in errors)
        print(
            f"{row.name:<20}{n:<8}{near:<8}{max(map(abs, errors)):<8.1%}{sum(places):<8}{flagged:<16}"
            f"{sum(lines):<8}{others:<8}",
            *notes,
            sep="\n",
            flush=True,
        )
