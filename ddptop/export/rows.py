"""Rows of the tables `steps` and `buckets`, from the figures that the analysis computes of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.own_times import FIGURE_OF_PART, OWN_COLUMNS, PART_COLUMNS
from ddptop.analysis.steps.windows import FREE, SCOPE_COLUMNS, STEP_COLUMNS, WAITS
from ddptop.export.columns import STEPS, UNKNOWN
from ddptop.protocol.messages import Flag
from ddptop.protocol.step_columns import FLAGS, MICRO_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.evaluate import EvaluatedSteps
    from ddptop.analysis.steps.evaluate_buckets import EvaluatedDetail, GroupBuckets
    from ddptop.export.columns import Rows
    from ddptop.frames.columns import Column, Indices

US_PER_MS = 1000.0


class Batch(NamedTuple):
    """Consecutive complete steps with their figures, and what of them is exported."""

    evaluated: EvaluatedSteps
    steps: Indices
    """(n,) their numbers."""
    incarnation: int
    at: Indices
    """Places of the exported steps in the batch; `ranks`: the exported ones."""
    ranks: Indices
    begin_ns: NDArray[np.int64]
    """(n, ranks) begin of the step, on the collector's clock, since the start of the run."""


def begins_ns(evaluated: EvaluatedSteps, state: RunState) -> NDArray[np.int64]:
    """(n, ranks) begin of each step on the collector's clock, in ns since the start of the run.

    A rank of a host whose clock was not compared: by the wall clock of that host.
    """
    block = evaluated.block
    begin_ns = block.begin_ns(slice(None))
    unix_ns, monotonic_ns = state.clock or (0, 0)
    # One clock: only the begin of the run is taken off.
    if not any(how.several_hosts for divided in evaluated.divided for how in divided.compared):
        return np.asarray(begin_ns - monotonic_ns)
    moved = begin_ns - unix_ns
    # At first by each host's own wall clock; where clocks were compared, that is replaced below.
    for rank, rank_state in enumerate(state.ranks):
        if rank_state.hello is not None:
            moved[:, rank] += rank_state.hello.unix_ns - rank_state.hello.monotonic_ns
    for i, divided in enumerate(evaluated.divided):
        for part, how in zip(divided.parts, divided.compared, strict=True):
            ranks = np.array(part.scope.ranks)
            compared = ~np.isnan(how.clocks.bound_ms)[how.host]
            on_one = how.to_collector(begin_ns[i, ranks]) - monotonic_ns
            moved[i, ranks[compared]] = on_one[compared]
    return np.asarray(moved)


class LaunchTimes(NamedTuple):
    """The all-reduces of one process group in consecutive steps, (launches, n, ranks of the group) in ms;
    `ready` to `end` count from the rank's own begin of the step."""

    ready: Column
    start: Column
    arrival: Column
    end: Column
    collective: Column
    wait: Column
    transfer: Column
    lateness: Column
    last: NDArray[np.int64]
    """(launches, n) rank of the last arriver; UNKNOWN: none."""
    clear: NDArray[np.bool_]
    """(launches, n) whether the skew exceeds the bound of the clocks."""


def launch_times(detail: EvaluatedDetail, group: GroupBuckets) -> LaunchTimes:
    """The times of one process group in the steps of `detail`."""
    chunk = slice(detail.first, detail.first + len(detail.step_indices))
    timing, figures, free = group.timing, group.figures, group.free if detail.clock_free else None
    shift = timing.shift[chunk]
    # On the group's common clock: each rank's own begin of the step is taken off.
    ready, end = timing.ready[:, chunk] - shift, timing.end[:, chunk] - shift
    begin_shift = shift if free is None else np.zeros_like(shift)
    start, arrival = (
        times_us[:, chunk] - begin_shift for times_us in (figures if free is None else free).arrivals
    )
    last, late = np.full(start.shape[:2], UNKNOWN), np.full_like(start, np.nan)
    # Without common clocks nobody can say who came last.
    if timing.aligned and free is None:
        late = formulas.lateness(start + shift)
        last = np.array([*group.window.scope.ranks, UNKNOWN])[figures.bucket_last[chunk].T]
    bound = np.fmax.reduce(group.ranks[SCOPE_COLUMNS.index("bound"), chunk], axis=-1)
    wait, transfer = formulas.wait(start, arrival), formulas.transfer(arrival, end)
    ms = [
        times_us / US_PER_MS for times_us in (ready, start, arrival, end, end - start, wait, transfer, late)
    ]
    return LaunchTimes._make([*ms, last, bound < figures.bucket_skew[chunk].T])


def detail_columns(batch: Batch) -> tuple[dict[str, Column], NDArray[np.bool_], NDArray[np.bool_]]:
    """(n, ranks) figures from bucket detail, NaN in steps without; (n,) which have it, which are
    clock-free."""
    evaluated = batch.evaluated
    shape = evaluated.columns.shape[1:]
    names = ("collective", "wait", "transfer", "exposed", "exposed_wait", "lateness", "bound")
    columns = {name: np.full(shape, np.nan) for name in names}
    detailed, clock_free = np.zeros((2, shape[0]), bool)
    for detail in evaluated.detail:
        step_indices, figures = np.array(detail.step_indices), detail.figures
        chunk = slice(detail.first, detail.first + len(step_indices))
        detailed[step_indices], clock_free[step_indices] = True, detail.clock_free
        free_at = len(figures.ranks) - len(FREE)
        for i, name in enumerate(WAITS):
            # Where clocks cannot be compared, the figures without clocks stand in for these.
            is_free = detail.clock_free and f"free_{name}" in FREE
            place = free_at + FREE.index(f"free_{name}") if is_free else i
            columns[name][step_indices] = figures.ranks[place, chunk]
        for group in figures.groups:
            members = group.window.members
            for name, judged in (("lateness", not detail.clock_free), ("bound", True)):
                values = group.ranks[SCOPE_COLUMNS.index(name), chunk]
                before = columns[name][np.ix_(step_indices, members)]
                # A rank in several process groups has the largest of its figures.
                larger = judged & ~(np.abs(values) <= np.abs(before)) & ~np.isnan(values)
                columns[name][np.ix_(step_indices, members)] = np.where(larger, values, before)
    return columns, detailed, clock_free


def step_rows(batch: Batch) -> Rows:
    """The rows of `steps`, step by step, rank by rank."""
    evaluated, names = batch.evaluated, (*OWN_COLUMNS, *PART_COLUMNS)
    block, shape = evaluated.block, evaluated.columns.shape[1:]
    own_ms: dict[str, Column] = dict.fromkeys(names, np.full(shape, np.nan))
    if evaluated.own is not None and evaluated.parts is not None:
        own_ms = dict(zip(names, (*evaluated.own, *evaluated.parts), strict=True))
    sampled, detailed, clock_free = detail_columns(batch)
    is_sampled = np.isnan(own_ms["exposed_wait"])  # the last gradient is not known
    columns: dict[str, Any] = {
        "incarnation": batch.incarnation,
        "step": batch.steps[:, None],
        "rank": np.arange(shape[1]),
        "begin_s": batch.begin_ns / 1e9,
        "micro_steps": block.integers[MICRO_STEPS],
        "optimizer": block.own_fields["first_optimizer"],
        "joined": block.integers[FLAGS] & int(Flag.JOINED) != 0,
        "detailed": detailed[:, None],
        "clock_free": clock_free[:, None],
        "loss": block.loss,
        **{f"{name}_ms": values for name, values in zip(STEP_COLUMNS, evaluated.columns, strict=True)},
        **{figure: own_ms[part] for part, figure in FIGURE_OF_PART.items() if figure in STEPS.names},
        # What is sampled is used only where the last gradient is not known.
        "exposed_comm_ms": np.where(
            is_sampled & ~np.isnan(sampled["exposed"]), sampled["exposed"], own_ms["exposed"]
        ),
        "exposed_wait_ms": np.where(is_sampled, sampled["exposed_wait"], own_ms["exposed_wait"]),
        **{f"{name}_ms": sampled[name] for name in ("collective", "wait", "transfer", "lateness", "bound")},
    }
    # Constants of a step or of the batch are repeated for each rank.
    whole = {name: np.broadcast_to(values, shape) for name, values in columns.items()}
    if (len(batch.at), len(batch.ranks)) != shape:  # usually all
        picked = np.ix_(batch.at, batch.ranks)
        whole = {name: values[picked] for name, values in whole.items()}
    return {name: values.reshape(-1) for name, values in whole.items()}


def bucket_rows(batch: Batch) -> Iterator[Rows]:
    """The rows of `buckets`: of consecutive steps and one process group each, without joined ranks."""
    for detail in batch.evaluated.detail:
        exported_steps = np.flatnonzero(np.isin(detail.step_indices, batch.at))
        for group in detail.figures.groups:
            numbers, members, times = (
                group.timing.bucket_numbers,
                group.window.members,
                launch_times(detail, group),
            )
            exported_ranks = np.flatnonzero(np.isin(members, batch.ranks))
            places = np.meshgrid(exported_steps, exported_ranks, np.arange(len(numbers)), indexing="ij")
            step_place, who, launch = np.stack(places).reshape(3, -1)
            # A rank that has joined early launches nothing.
            launched = ~np.isnan(times.ready[launch, step_place, who])
            step_place, who, launch = step_place[launched], who[launched], launch[launched]
            buckets = [group.window.buckets[number] for number in numbers]
            facts = [(b.model, b.index, UNKNOWN if b.wire_bytes is None else b.wire_bytes) for b in buckets]
            model, bucket, size = np.array(facts, np.int64).T[:, launch]
            yield {
                "incarnation": np.full(len(step_place), batch.incarnation),
                "step": batch.steps[np.array(detail.step_indices)[step_place]],
                "rank": members[who],
                **dict(
                    zip(("launch", "model", "bucket", "bytes"), (launch, model, bucket, size), strict=True)
                ),
                "group": np.full(len(step_place), group.window.scope.group or "0", object),
                "last_arriver": times.last[launch, step_place],
                **{f"{name}_ms": getattr(times, name)[launch, step_place, who] for name in times._fields[:8]},
            }
