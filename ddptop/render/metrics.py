"""What a figure is: formula, unit, bound and source, as it is declared; of hosts and buckets as METRICS.md,
which the package has in it, says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

from ddptop.frames.figures import FIGURES, UNITS, Figure, figures_shown

TEXT_FIELDS = {"host": "host", "dev": "device", "state": "state"}
"""By title of a column of words, the name that METRICS.md has for it."""

FIELDS: Mapping[str, Figure | str] = {
    **{figure.title: figure for figure in FIGURES if figure.title},
    **TEXT_FIELDS,
}
"""What the columns of ranks are, by title."""

HEAT_FIELDS: Mapping[str, Figure | str] = {
    how.key: figure for figure, how in figures_shown(lambda figure: figure.heat)
}
"""What the heat map shows, by key."""

HOST_FIELDS: Mapping[str, Figure | str] = {
    "ranks": "Hosts: running", "worst": "Hosts: worst_rank", "excess": "Hosts: excess_ms",
    "ms/step": "Hosts: step_ms", "rtt ms": "Hosts: round_trip_ms", "clock ms": "offset_ms",
    "clock±": "Clocks between hosts: bound_ms", "drift ppm": "drift_ppm", "compared": "age_s",
    "cpu%": "Hosts: cpu_pct", "mem%": "Hosts: memory_used_bytes",
    "gpus": "Hosts: gpus", "gpu%": "Hosts: gpu_util_pct",
    "in/s": "Hosts: received_bytes_s", "out/s": "Hosts: sent_bytes_s", "kept": "Hosts: kept",
    "thinned": "Hosts: thinned",
}  # fmt: skip
"""The same of the table of hosts, by names in METRICS.md; those of several tables with a heading."""

BUCKET_FIELDS: Mapping[str, Figure | str] = {
    **{title: f"One bucket all-reduce: {name}" for title, name in {
        "bkt": "index", "size": "bytes", "params": "parameters", "dtype": "dtype", "hook": "hook",
        "coll": "collective_ms", "wait": "wait_ms", "transfer": "transfer_ms", "busbw": "busbw_gbps",
        "best%": "best%", "eff": "effective_busbw_gbps", "skew": "skew_ms", "last": "last_arriver",
        "model": "model", "group": "group",
    }.items()},
    "±": "of a bucket",
}  # fmt: skip
"""The same of the table of buckets."""

BOUNDS = {"wait_ms": "± bound_ms", "skew_ms": "± bound_ms", "transfer_ms": "± transfer_bound_ms"}
"""By name of a bucket's figure, how far it may be wrong."""

NAMED = re.compile(r"`([^`]+)`")
SOURCE = re.compile(r"`(ddptop/[^`]+\.py)`")


class Meaning(NamedTuple):
    """A row of a table in METRICS.md, as plain text."""

    name: str
    formula: str
    unit: str
    """Empty: a number, a name."""
    bound: str
    """How far the figure may be wrong; empty: it has no bound."""
    source: str
    """The module that computes it."""


def explain(title: str, fields: Mapping[str, Figure | str] = FIELDS) -> Meaning | None:
    """The meaning of a figure, by its title in one of these tables; None where METRICS.md has no row."""
    figure = fields.get(title, "")
    if isinstance(figure, Figure):
        bound = f"± {figure.bound}" if figure.bound else ""
        return Meaning(figure.documented_as, _plain(figure.formula), figure.unit, bound, figure.source)
    row = _rows().get(figure)
    if row is None:
        return None
    name = figure.rpartition(": ")[2]
    unit = next((unit for end, unit in UNITS.items() if name.partition(" ")[0].endswith(end)), "")
    unit = {"of a bucket": "ms", "best%": "%"}.get(name, unit)
    return Meaning(name, row[0], unit, BOUNDS.get(name, ""), row[1])


@cache
def _rows() -> dict[str, tuple[str, str]]:
    """By name, also after its heading: second cell of its first row, and the module named there or with the
    table.

    A row of several names has as many meanings, parted by semicolons, or one for all of them.
    """
    text = resources.files("ddptop").joinpath("analysis/METRICS.md").read_text(encoding="utf-8")
    rows: dict[str, tuple[str, str]] = {}
    for section in re.split(r"\n#{2,3} ", text):
        lines = section.splitlines()
        for at, line in enumerate(lines):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if not line.startswith("| ") or len(cells) < 2 or cells[1].startswith("see "):
                continue
            after = "\n".join(lines[at:] if len(cells) < 3 else lines[at::-1])
            source = SOURCE.search(after[after.find("Code:") :] if len(cells) < 3 else after)
            source = source or SOURCE.search(section)
            names, meanings = NAMED.findall(cells[0]) or [cells[0]], _plain(cells[1]).split("; ")
            if len(names) == 1 or len(meanings) != len(names):
                meanings = [_plain(cells[1])] * len(names)
            for name, meaning in (*zip(names, meanings, strict=True), (_plain(cells[0]), _plain(cells[1]))):
                row = meaning, source[1] if source else ""
                rows.setdefault(name, row)
                rows.setdefault(f"{lines[0]}: {name}", row)
    return rows


def _plain(markdown: str) -> str:
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", markdown).replace("`", "").replace("*", "")
