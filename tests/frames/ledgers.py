"""Made-up ledgers: the bill and the advice of runs whose seconds are known."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from ddptop.frames.ledger import LEDGER_CLASSES, Ledger, LedgerRanks, SkewCost, WaitedFor


def ledger(*, waited_for: tuple[WaitedFor, ...] = (), elapsed_s: float = 100.0, **seconds: object) -> Ledger:
    """A ledger with these seconds by class, a list with a number for each rank.

    What is left of `elapsed_s` is `unknown`. The rows of `waited_for` are to add up to `waiting`.
    """
    n_ranks = max(len(values) for values in seconds.values())  # type: ignore[arg-type]
    columns = {name: np.asarray(seconds.get(name, [0.0] * n_ranks), float) for name in LEDGER_CLASSES}
    columns["unknown"] = columns["unknown"] + elapsed_s - np.sum(list(columns.values()), axis=0)
    lost_s = float(columns["waiting"].sum())
    lost_pct = 100 * lost_s / (n_ranks * elapsed_s) if elapsed_s else 0.0
    cost = SkewCost(elapsed_s, lost_s, lost_pct, 0.9 * lost_pct, 1.1 * lost_pct, 1_000, 1_000, waited_for)
    ranks = LedgerRanks(
        np.full(n_ranks, elapsed_s), **{f"{name}_s": values for name, values in columns.items()}
    )
    return Ledger(elapsed_s, ranks, cost, cost, 0.0)


def waited(rank: int, place: str, rank_seconds: float, *, steps: int, each_s: float) -> WaitedFor:
    """What others waited for a rank, alike in all of these steps."""
    known = {
        "rank": rank,
        "place": place,
        "rank_seconds": rank_seconds,
        "steps": steps,
        "longest_s": each_s,
        "longest_step": 199,
        "dear_steps": (199, 399),
        "dear_s": each_s,
        "n_dear": steps,
        "n_dear_in_all": steps,
    }
    return WaitedFor(**{field.name: known.get(field.name, 0.0) for field in fields(WaitedFor)})


def checkpoints() -> Ledger:
    """Three ranks for 85 s; rank 0 saves for 6 s seven times, and ranks 1 and 2 wait for it."""
    return ledger(
        elapsed_s=85.0,
        waited_for=(
            waited(0, "after_optimizer", 84.0, steps=7, each_s=6.0),
            waited(2, "forward", 1.2, steps=600, each_s=0.001),
        ),
        start=[4.1, 4.0, 4.05],
        data=[0.8, 0.8, 0.8],
        first_batch=[0.33, 0.33, 0.34],
        forward=[1.4, 1.4, 1.8],
        own_backward=[2.1, 2.1, 2.1],
        optimizer=[0.7, 0.7, 0.7],
        between=[73.5, 31.5, 31.4],
        gc=[0.01, 0.0, 0.02],
        transfer=[1.3, 1.3, 1.3],
        waiting=[0.6, 42.6, 42.0],
        end=[0.1, 0.1, 0.1],
    )
