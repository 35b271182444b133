"""The own times of complete steps: what ranks send of them (`OwnTime`), as columns in ms.

A figure that ranks measure in each step is a field of `OwnTime`, a line of MEASURED, and one of
FIGURE_OF_PART.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.frames.statistics import reduce_rows
from ddptop.protocol.messages import Flag
from ddptop.protocol.step_columns import FLAGS, WAITED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ddptop.analysis.steps.complete_steps import StepBlock
    from ddptop.analysis.steps.kept import Peers
    from ddptop.frames.columns import Column, Mask
    from ddptop.protocol.vocabulary import OwnPlace, StepPhase

PHASES: tuple[StepPhase, ...] = ("data", "forward", "backward", "optimizer", "other")
WHOLE_PHASES = ("data", "forward", "optimizer")
"""Phases without exposed communication: own time but for waits in collectives of the script's own."""
OUTSIDE_PHASES: tuple[OwnPlace, ...] = (
    "before_forward",
    "before_backward",
    "before_optimizer",
    "after_optimizer",
)
PLACES: tuple[OwnPlace, ...] = ("data", "forward", "backward", "optimizer", *OUTSIDE_PHASES)
"""The parts of a rank's own time, which add up to it."""
MEASURED = {
    "cpu": ("cpu_wait", 1000),
    "gc": ("gc", 1000),
    "exposed": ("exposed", 1000),
    "elements": ("elements", 1),
    "buffers": ("buffers", 1000),
}
"""Parts that ranks send as they are: the field of `OwnTime`, and what divides it (1000: us to ms)."""
PART_COLUMNS = (*PLACES, *MEASURED, "waited", "exposed_wait", "buffers_wait")
OWN_COLUMNS = ("own", "excess", "work_excess")
FIGURE_OF_PART: dict[str, str] = {
    **{name: f"{name}_ms" for name in (*OWN_COLUMNS[:2], *OUTSIDE_PHASES, "waited", "gc")},
    **{name: f"own_{name}_ms" for name in PLACES[:4]},
    "buffers": "buffers_ms",
    "buffers_wait": "buffers_wait_ms",
    "cpu": "cpu_wait_ms",
}
"""The figure of a rank, and the column of the exported steps, that these columns become."""


def compute_own_times(
    block: StepBlock, columns: Column, runs_of_peers: Iterable[tuple[slice, list[Peers]]]
) -> tuple[Column | None, Column | None]:
    """(OWN_COLUMNS, n, ranks) and (PART_COLUMNS, n, ranks) in ms; None where no `OwnTime` of a row is known.

    `block`: the rows of these steps, `columns`: (wall and PHASES, n, ranks) of them, `runs_of_peers`:
    consecutive steps within whose process groups own times are compared alike, and these groups.
    """
    is_known = block.own_fields["before_forward"] >= 0
    if not is_known.any():
        return None, None
    counts = (block.integers[FLAGS] & int(Flag.JOINED | Flag.SHADOW) == 0) & is_known
    parts, waited = _read_sent_parts(block, counts)
    part = dict(zip(PART_COLUMNS, parts, strict=True))
    wall, data, forward, backward, optimizer, other = columns
    phases = (data, forward, backward - part["exposed"], optimizer)
    for own_part, phase, wait in zip(parts[:4], phases, waited[:4], strict=True):
        np.subtract(phase, wait, out=own_part)
    before_forward, before_backward, before_optimizer, after_optimizer = parts[4 : len(PLACES)]
    outside = other - (before_forward + before_backward + before_optimizer) - waited[4]
    outside *= 1000
    np.divide(np.rint(outside, out=outside), 1000.0, out=after_optimizer)  # whole microseconds, as sent
    all_waited = waited[0] + waited[1] + waited[2] + waited[3] + waited[4]
    np.subtract(all_waited, np.fmax(part["buffers"], 0.0), out=part["waited"])
    without_backward = wall - backward - (all_waited - waited[2])
    if (unseen := block.integers[FLAGS] & int(Flag.WAITS_UNSEEN) != 0).any():
        without_backward -= np.where(unseen, forward - waited[1], 0.0)  # own time or waiting, as in backward
    return _compare_with_peers(without_backward, part, counts, runs_of_peers), parts


def _read_sent_parts(block: StepBlock, counts: Mask) -> tuple[Column, Column]:
    """(PART_COLUMNS, n, ranks) in which only what ranks send is filled in, and (PHASES, n, ranks) what they
    waited in other collectives; both in ms, NaN where not known. `counts`: whether a rank reported a step."""
    sent = block.own_fields
    parts, waited = np.empty((len(PART_COLUMNS), *counts.shape)), block.own[WAITED] / 1000.0
    part = dict(zip(PART_COLUMNS, parts, strict=True))
    for place in OUTSIDE_PHASES[:3]:
        np.divide(sent[place], 1000.0, out=part[place])
    for name, (field, divisor) in MEASURED.items():
        np.divide(sent[field], divisor, out=part[name])
    if not counts.all():
        parts[:, ~counts] = waited[:, ~counts] = np.nan
    cpu = part["cpu"]
    cpu[reduce_rows(np.logical_or, cpu < 0)] = np.nan  # compared only where all ranks know theirs
    measured = parts[len(PLACES) : len(PLACES) + len(MEASURED)]
    measured[measured < 0] = np.nan
    return parts, waited


def _compare_with_peers(
    without_backward: Column,
    part: Mapping[str, Column],
    counts: Mask,
    runs_of_peers: Iterable[tuple[slice, list[Peers]]],
) -> Column:
    """(OWN_COLUMNS, n, ranks); fills in the parts that follow from those of the other ranks."""
    times = np.full((len(OWN_COLUMNS), *counts.shape), np.nan)
    own, excess, work_excess = times
    np.add(without_backward, part["backward"], out=own)
    cpu, exposed, buffers = part["cpu"], part["exposed"], part["buffers"]
    unknown = np.isnan(cpu)
    work = own if unknown.all() else own - np.where(unknown, 0.0, cpu)
    exposed_wait, buffers_wait = part["exposed_wait"], part["buffers_wait"]
    exposed_wait[:] = buffers_wait[:] = np.nan
    for run, peers in runs_of_peers:
        for members, is_own, own_ranks in peers:
            over = formulas.excess(own[run, members], without_backward[run, members])
            excess[run, own_ranks] = over[:, is_own]
            if work is not own:
                over = formulas.excess(work[run, members], without_backward[run, members])
            work_excess[run, own_ranks] = over[:, is_own]
            least = formulas.transfer_of_step(exposed[run, members], counts[run, members])
            exposed_wait[run, own_ranks] = exposed[run, own_ranks] - least[:, None]
            least = formulas.transfer_of_step(buffers[run, members], counts[run, members])
            buffers_wait[run, own_ranks] = buffers[run, own_ranks] - least[:, None]
    return times
