"""What a figure is: formula, unit, bound and source, read from METRICS.md, which the package has in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

FIELDS = {
    "step": "step, bucket", "loss": "loss", "ms/step": "step_ms", "micro": "micro_steps",
    "excess": "excess_ms", "own": "own_ms", "late": "lateness_ms", "last%": "last_pct", "data": "data_ms",
    "fwd": "forward_ms",
    "bwd": "own_backward_ms", "wait": "exposed_wait_ms", "transfer": "exposed transfer",
    "opt": "optimizer_ms", "other": "other_ms", "sync": "waited_ms",
    "relative": "relative_score", "gpu%": "gpu.util_pct",
    "gpumem": "gpu.mem_bytes", "mem": "rss_bytes", "cpu%": "cpu_pct", "lost": "lost_records",
    "host": "host", "dev": "device", "state": "state", "±": "bound_ms of a rank",
}  # fmt: skip
"""By title of a column of ranks, the name that METRICS.md has for its figure."""

HOST_FIELDS = {
    "ranks": "Hosts: running", "worst": "Hosts: worst_rank", "excess": "Hosts: excess_ms",
    "ms/step": "Hosts: step_ms", "rtt ms": "Hosts: round_trip_ms", "clock ms": "offset_ms",
    "clock±": "Clocks between hosts: bound_ms", "drift ppm": "drift_ppm", "compared": "age_s",
    "cpu%": "Hosts: cpu_pct", "mem%": "Hosts: memory_used_bytes",
    "gpus": "Hosts: gpus", "gpu%": "Hosts: gpu_util_pct",
    "in/s": "Hosts: received_bytes_s", "out/s": "Hosts: sent_bytes_s", "kept": "Hosts: kept",
    "thinned": "Hosts: thinned",
}  # fmt: skip
"""The same of the table of hosts; a heading of METRICS.md before a name that several tables have."""

HEAT_FIELDS = {
    **FIELDS, "step": "step_ms", "forward": "forward_ms", "backward": "backward_ms",
    "optimizer": "optimizer_ms", "lateness": "lateness_ms", "exposed": "exposed_comm_ms",
    "collective": "One detailed step: collective_ms", "last": "last_pct", "cpu": "cpu_pct",
    "memory": "rss_bytes", "gpu": "gpu.util_pct", "gpu_memory": "gpu.mem_bytes", "gpu_temp": "gpu.temp_c",
    "age": "age_ms", "score": "relative_score",
}  # fmt: skip
"""The same of the heat map."""

BUCKET_FIELDS = {
    **{title: f"One bucket all-reduce: {name}" for title, name in {
        "bkt": "index", "size": "bytes", "params": "parameters", "dtype": "dtype", "hook": "hook",
        "coll": "collective_ms", "wait": "wait_ms", "transfer": "transfer_ms", "busbw": "busbw_gbps",
        "best%": "best%", "eff": "effective_busbw_gbps", "skew": "skew_ms", "last": "last_arriver",
        "model": "model", "group": "group",
    }.items()},
    "±": "of a bucket",
}  # fmt: skip
"""The same of the table of buckets."""

BOUNDS = {
    **dict.fromkeys(("lateness_ms", "exposed_wait_ms", "wait_ms", "skew_ms"), "± bound_ms"),
    "transfer_ms": "± transfer_bound_ms",
}
"""By name of a figure, how far it may be wrong."""

UNITS = {"_ms": "ms", "_pct": "%", "_s": "s", "_ppm": "ppm", "bytes": "bytes", "_c": "°C", "_gbps": "GB/s"}

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


def explain(title: str, fields: Mapping[str, str] = FIELDS) -> Meaning | None:
    """The meaning of a figure, by its title in one of these tables; None where METRICS.md has no row."""
    found = _rows().get(fields.get(title, ""))
    if found is None:
        return None
    name = fields[title].rpartition(": ")[2]
    unit = next((unit for end, unit in UNITS.items() if name.partition(" ")[0].endswith(end)), "")
    unit = {"exposed transfer": "ms", "of a bucket": "ms", "best%": "%"}.get(name, unit)
    return Meaning(name, found[0], unit, BOUNDS.get(name, ""), found[1])


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
