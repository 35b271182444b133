"""A frame as the JSON snapshot, schema 1: what `--json` prints and programs rely on."""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ddptop.frames.bill import bill_of
from ddptop.frames.figures import (
    BUCKET_FIGURES,
    GROUP_FIGURES,
    HOST_FIGURES,
    PROCESS_GROUP_FIGURES,
    RANK_FIGURES,
)
from ddptop.frames.ledger import LEDGER_CLASSES
from ddptop.frames.phrases import blamed
from ddptop.frames.sampled_stack import hot_line, hot_share_pct
from ddptop.frames.start import TIMES
from ddptop.frames.verdict import run_state, verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Alert, Frame, GpuFacts
    from ddptop.frames.ledger import Ledger, RareSlowness, SkewCost, WaitedFor
    from ddptop.frames.overhead import Overhead
    from ddptop.frames.process_groups import ProcessGroupFigures
    from ddptop.frames.sampled_stack import SampledStack
    from ddptop.frames.stall import RankPosition
    from ddptop.frames.start import StartStatus
    from ddptop.protocol.messages import Scalar

SCHEMA = 1

DIGITS: Mapping[str, int] = {"_ms": 3, "_pct": 2, "_gbps": 4, "_s": 3, "_score": 4, "_ppm": 3}
"""Decimals by the unit in a name. The timers resolve microseconds, which are three decimals of a ms."""

SIGNIFICANT = 6
"""Significant digits of a loss: float32 holds no more."""

COUNTS = frozenset(name for name, figure in RANK_FIGURES.items() if figure.integer)

RANK_COLUMNS = tuple(name for name, figure in RANK_FIGURES.items() if figure.in_json)

HOST_FIELDS = tuple(figure.name for figure in HOST_FIGURES)

BUCKET_FIELDS = tuple(figure.name for figure in BUCKET_FIGURES if figure.in_json)

PROCESS_GROUP_FIELDS = tuple(
    figure.name for figure in PROCESS_GROUP_FIGURES if figure.name not in ("ranks", "rank_lateness_ms")
)

SUSPECT_FIELDS = (
    "rank",
    "lateness_ms",
    "bound_ms",
    "last",
    "steps",
    "basis",
    "cause",
    "so_far_s",
    "needed_s",
)

LOSS_FIELDS = ("what", "rank", "key", "gives_back_s", "elapsed_s")

PROGRESS_FIELDS = ("epoch", "batch", "batches", "epoch_left_s", "samples_per_s")

LOGGED_FIELDS = ("ranks", "mean", "min", "max", "min_rank", "max_rank")

OLD_NAMES: Mapping[str, str] = {
    "position": "testimony",
    "positions": "testimonies",
    "stragglers": "culprits",
    "flagged_s": "named_s",
    "flagged_pct": "named_pct",
    "events": "happenings",
}
"""Keys of snapshots and reports, and the names that 0.2.0 had for them: JSON has both for one version."""

STALL_FIELDS = ("kind", "since_s", "step", "sentence", "ended_s", "followed")

DEATH_FIELDS = ("rank", "since_s", "step", "exit_code", "signal", "reason", "message", "context", "follows")

POSITION_FIELDS = (
    "rank",
    "host",
    "pid",
    "process",
    "step",
    "bucket",
    "sequence",
    "group",
    "operation",
    "at_s",
    "waits_for",
)

SKEW_FIELDS = ("over_s", "rank_seconds", "lost_pct", "low_pct", "high_pct", "steps")

WAITED_FIELDS = (
    "rank",
    "place",
    "share_pct",
    "steps",
    "longest_s",
    "longest_step",
    "dear_s",
    "n_dear",
    "n_dear_in_all",
)

SAMPLED_FIELDS = ("rank", "place", "is_long_step", "step", "taken_s", "samples", "held_pct")

RANK_START_FIELDS = ("rank", "milestone", "since_s", "at", *TIMES)

SHARE_FIELDS = ("file", "line", "function", "parent", "share_pct")

RARE_FIELDS = ("n_slow", "n_slow_in_all", "n_steps", "over_s", "is_whole_run", "since_s")

COST_FIELDS = (
    "budget_pct",
    "measured_pct",
    "us_per_step",
    "detail_every",
    "detail_reason",
    "recorded_every",
    "every_step_pct",
)

CALL_FIELDS = ("file", "line", "function", "code")

DDP = "ddp."
"""Card entries of DDP's own options begin with this."""

DDP_OPTION = re.compile(r"ddp\d*\.")
"""Card entries of DDP's own options of any model begin with this. The other entries are reported by the
recorder and by the script: versions, the seed."""


def snapshot(frame: Frame) -> dict[str, object]:
    """The snapshot (frames/README.md): dicts, lists and scalars that `json.dumps` takes. Unknown is None."""
    return {
        "schema": SCHEMA,
        "source": frame.source,
        "run": _run_as_json(frame),
        "group": _group_as_json(frame),
        "ranks": _ranks_as_json(frame),
        "buckets": [_pick_fields(bucket, BUCKET_FIELDS) for bucket in frame.buckets],
        "process_groups": [_process_group_as_json(group) for group in frame.process_groups],
        "verdict": _pick_fields(verdict(frame), ("kind", "sign", "sentence", "detail")),
        "straggler": _straggler_as_json(frame),
        "suspect": None if frame.suspect is None else _pick_fields(frame.suspect, SUSPECT_FIELDS),
        "alerts": [alert_fields(alert) for alert in frame.alerts],
        "hosts": [_pick_fields(host, HOST_FIELDS) for host in frame.hosts],
        "clocks": _clocks_as_json(frame),
        "ledger": None if frame.ledger is None else ledger_as_json(frame.ledger, frame.sampled),
        "overhead": _overhead_as_json(frame.overhead),
        "activities": [
            {**_pick_fields(activity, ("kind", "name", "since_s")), "ranks": list(activity.ranks)}
            for activity in frame.activities
        ],
        "progress": None if frame.progress is None else _pick_fields(frame.progress, PROGRESS_FIELDS),
        "start": None if frame.start is None else _start_as_json(frame.start),
        "sampled": [_sampled_as_json(stack) for stack in frame.sampled],
        "logged": {scalar.name: _pick_fields(scalar, LOGGED_FIELDS) for scalar in frame.logged},
        "stall": _stall_as_json(frame),
        "deaths": [
            with_old_names(
                {**_pick_fields(death, DEATH_FIELDS), "position": _position_as_json(death.position)}
            )
            for death in frame.deaths
        ],
    }


def _start_as_json(start: StartStatus) -> dict[str, object]:
    return {
        "milestone": start.milestone,
        "behind": list(start.behind),
        "since_s": start.since_s,
        "ranks": [_pick_fields(rank, RANK_START_FIELDS) for rank in start.ranks],
    }


def ledger_as_json(ledger: Ledger, stacks: Sequence[SampledStack]) -> dict[str, object]:
    """Its figures over the whole run, and below `recent` over the last minutes."""
    columns = [[tidy("_s", value) for value in ledger.seconds_of(name).tolist()] for name in LEDGER_CLASSES]
    by_rank = zip(ledger.ranks.elapsed_s.tolist(), zip(*columns, strict=True), strict=True)
    return {
        **_pick_fields(ledger, ("elapsed_s", "scaled_s")),
        "ranks": [
            {
                "rank": rank,
                "elapsed_s": tidy("_s", elapsed_s),
                "seconds": dict(zip(LEDGER_CLASSES, seconds, strict=True)),
            }
            for rank, (elapsed_s, seconds) in enumerate(by_rank)
        ],
        **_skew_cost_as_json(ledger.run, stacks),
        "recent": _skew_cost_as_json(ledger.recent, stacks),
        "losses": [_pick_fields(loss, LOSS_FIELDS) for loss in bill_of(ledger).losses],
    }


def _skew_cost_as_json(cost: SkewCost, stacks: Sequence[SampledStack]) -> dict[str, object]:
    return {
        **_pick_fields(cost, SKEW_FIELDS),
        "rank_seconds": tidy("_s", cost.rank_seconds),
        "waited_for": [
            {
                **_pick_fields(waited, WAITED_FIELDS),
                "seconds": tidy("_s", waited.rank_seconds),
                "dear_steps": list(waited.dear_steps),
                "lines": [
                    {"at": hot_line(stack), "share_pct": tidy("share_pct", hot_share_pct(stack))}
                    for stack in stacks
                    if _is_of(stack, waited) and stack.calls
                ],
            }
            for waited in cost.waited_for
        ],
    }


def _is_of(stack: SampledStack, waited: WaitedFor) -> bool:
    """Whether the samples show what a rank did while the others waited for it there."""
    if stack.rank != waited.rank:
        return False
    return stack.step in waited.dear_steps if stack.is_long_step else stack.place == waited.place


def with_old_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """An object of JSON with its old names beside the new ones."""
    return {**values, **{OLD_NAMES[name]: values[name] for name in values if name in OLD_NAMES}}


def _sampled_as_json(stack: SampledStack) -> dict[str, object]:
    return {
        **_pick_fields(stack, SAMPLED_FIELDS),
        "line": hot_line(stack) or None,
        "share_pct": tidy("share_pct", hot_share_pct(stack)),
        "workers": list(stack.workers),
        "calls": [_pick_fields(call, SHARE_FIELDS) for call in stack.calls],
    }


def _overhead_as_json(overhead: Overhead) -> dict[str, object]:
    measured = overhead.measured
    measured_cost = None if measured is None else _pick_fields(measured, ("pct", "low", "high", "blocks"))
    return {
        **_pick_fields(overhead, COST_FIELDS),
        "measured": measured_cost,
        "collector_pct": overhead.collector_pct,
    }


def alert_fields(alert: Alert) -> dict[str, object]:
    """One of the snapshot's alerts."""
    named = _pick_fields(alert, ("kind", "severity", "rank", "step", "since_s", "message"))
    return {**named, "evidence": _tidy_scalars(alert.evidence)}


def tidy(name: str, value: object) -> object:
    """One value: rounded by the unit in its name; None if it is NaN, infinite or unknown."""
    if not isinstance(value, (float, int)) or isinstance(value, bool):
        return value
    number = float(value)
    # JSON has no NaN and no infinity: Python would write words that other parsers refuse.
    if not math.isfinite(number):
        return None
    if isinstance(value, int) or name in COUNTS:
        return int(value)
    for unit, digits in DIGITS.items():
        if name.endswith(unit):
            return round(number, digits) + 0.0  # -0.0 becomes 0.0
    return float(f"{number:.{SIGNIFICANT}g}") + 0.0


def _pick_fields(source: object, names: Iterable[str]) -> dict[str, object]:
    return {name: tidy(name, getattr(source, name)) for name in names}


def _tidy_scalars(values: Mapping[str, Scalar]) -> dict[str, object]:
    return {name: tidy(name, value) for name, value in values.items()}


def _run_as_json(frame: Frame) -> dict[str, object]:
    run = frame.run
    return {
        **_pick_fields(run, ("name", "id")),
        "state": run_state(frame),
        "started_at": round(run.started_at, 3),
        **_pick_fields(run, ("elapsed_s", "world_size", "backend", "training", "nodes", "script")),
        "argv": list(run.argv),
        "torch": run.torch,
        "ddp": {
            name[len(DDP) :]: tidy(name, value) for name, value in run.card.items() if name.startswith(DDP)
        },
        "card": {name: tidy(name, value) for name, value in run.card.items() if not DDP_OPTION.match(name)},
    }


def _group_as_json(frame: Frame) -> dict[str, object]:
    values = {figure: getattr(frame.group, figure.name) for figure in GROUP_FIGURES}
    # The names of quantiles do not end with their unit: `step_ms_p95`.
    ends = {figure: "_ms" if figure.unit == "ms" else "" for figure in GROUP_FIGURES}
    return nested(
        {figure.path: tidy(f"{figure.name}{ends[figure]}", value) for figure, value in values.items()}
    )


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by their paths as objects in objects: `{"step_ms.p50": 1.5}` as `{"step_ms": {"p50": 1.5}}`."""
    outer: dict[str, Any] = {}
    for path, value in values.items():
        *parents, key = path.split(".")
        inner = outer
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[key] = value
    return outer


def _ranks_as_json(frame: Frame) -> list[dict[str, object]]:
    ranks = frame.ranks
    gpus = {facts.rank: gpu_as_json(facts) for facts in frame.gpus}

    def listed(name: str) -> list[object]:
        column: Column = getattr(ranks, name)
        return [tidy(name, value) for value in column.tolist()]

    columns = {name: listed(name) for name in ("local_rank", "pid", "joined", *RANK_COLUMNS)}
    return [
        {
            "rank": rank,
            "host": ranks.host[rank] or None,
            "local_rank": columns["local_rank"][rank],
            "pid": columns["pid"][rank],
            "device": ranks.device[rank] or None,
            "state": ranks.state[rank],
            **{name: columns[name][rank] for name in RANK_COLUMNS},
            "joined": None if columns["joined"][rank] is None else bool(columns["joined"][rank]),
            "gpu": gpus.get(rank),
        }
        for rank in range(len(ranks.state))
    ]


def _straggler_as_json(frame: Frame) -> dict[str, object] | None:
    straggler = frame.straggler
    if straggler is None:
        return None
    names = ("rank", "pattern", "lateness_ms", "bound_ms", "recoverable_ms", "cost_pct", "cause")
    parts = {phase: tidy("part_ms", value) for phase, value in straggler.parts_ms.items()}
    return {
        **_pick_fields(straggler, names),
        "rank": straggler.rank if blamed(straggler) else None,
        "parts_ms": parts,
        "throttle": straggler.throttle or None,
        "last_pct": tidy("last_pct", straggler.last_pct),
        "ranks": list(blamed(straggler)),
        "place": straggler.place,
        "basis": straggler.basis,
        "disagrees": straggler.disagrees,
        "waits_for": straggler.waits_for or None,
        "elements_ratio": straggler.elements_ratio,
        "rare": None if straggler.rare is None else _rare_as_json(straggler.rare),
        "group": straggler.group or None,
    }


def _process_group_as_json(group: ProcessGroupFigures) -> dict[str, object]:
    lateness = [tidy("lateness_ms", ms) for ms in group.rank_lateness_ms]
    return {
        **_pick_fields(group, PROCESS_GROUP_FIELDS),
        "ranks": list(group.ranks),
        "rank_lateness_ms": lateness,
    }


def _rare_as_json(rare: RareSlowness) -> dict[str, object]:
    return {**_pick_fields(rare, RARE_FIELDS), "steps": list(rare.steps)}


def _stall_as_json(frame: Frame) -> dict[str, object] | None:
    stall = frame.stall
    if stall is None:
        return None
    shown = {
        **_pick_fields(stall, STALL_FIELDS),
        "ranks": list(stall.ranks),
        "waiting": list(stall.waiting),
        "detail": list(stall.detail),
        "positions": [_position_as_json(position) for position in stall.positions],
    }
    return with_old_names(shown)


def _position_as_json(position: RankPosition) -> dict[str, object]:
    return {
        **_pick_fields(position, POSITION_FIELDS),
        "user_call": None if position.user_call is None else _pick_fields(position.user_call, CALL_FIELDS),
        "traces": [
            {
                "thread": trace.thread,
                "main": trace.main,
                "calls": [_pick_fields(call, CALL_FIELDS) for call in trace.calls],
            }
            for trace in position.traces
        ],
    }


def _clocks_as_json(frame: Frame) -> list[dict[str, object]]:
    return [
        _pick_fields(clock, ("host", "offset_ms", "bound_ms", "drift_ppm", "age_s")) for clock in frame.clocks
    ]


def gpu_as_json(facts: GpuFacts) -> dict[str, object]:
    """The `gpu` of a rank in the snapshot."""
    return {name: value for name, value in asdict(facts).items() if name != "rank"}
