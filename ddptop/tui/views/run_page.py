"""The run page: what runs where, with which options, what was lost, and what ddptop itself costs.

The run's card in sections and in words: DDP's options, versions, the environment that matters.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.frames.buckets import sent_phrase
from ddptop.frames.hosts import host_index
from ddptop.frames.numbers import (
    RATIO,
    UNKNOWN,
    clock,
    count,
    counted,
    duration,
    fixed,
    known,
    percent,
    signed,
    size,
)
from ddptop.frames.phrases import host_total
from ddptop.frames.training_kind import kind_phrase, limits_phrase
from ddptop.frames.verdict import run_state_word
from ddptop.render import table
from ddptop.render.hosts import figures_by_name, inexact_clock, rank_spans
from ddptop.render.line import Line, draw_rule
from ddptop.render.milestones import draw_before_first_step
from ddptop.render.text import fit_text, text_width, wrap_lines
from ddptop.tui.keys import SEARCH_KEY, ScreenKey
from ddptop.tui.scene import Page, PageLayout, Scene
from ddptop.tui.view import View
from ddptop.tui.views.charts import draw_some_charts
from ddptop.tui.views.panels import BORDER, Panel, PanelColumn, draw_band, find_borders, has_panels
from ddptop.tui.views.text_page import count_below, draw_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ddptop.frames.columns import Column
    from ddptop.frames.frame import BucketFigures
    from ddptop.protocol.messages import Scalar
    from ddptop.render.line import Role

OPTIONS, VERSIONS, ENVIRONMENT = "DDP's options", "versions", "environment"


class Fact(NamedTuple):
    """A fact of the run: its name and value."""

    name: str
    value: str
    role: Role = "text"


DEFAULTS: Mapping[str, Scalar] = {
    "broadcast_buffers": 1,
    "bucket_cap_bytes": 25 * 2**20,
    "find_unused_parameters": 0,
    "gradient_as_bucket_view": 0,
    "static_graph": 0,
    "is_multi_device_module": 0,
    "comm_hook": "",
}
"""Defaults of DistributedDataParallel: other values are emphasized."""

_PLACES = {name: place for place, name in enumerate(sorted(DEFAULTS))}
"""Options of the user, before values that follow from them."""

_YES_NO = frozenset(
    {"broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph"}
    | {"has_sync_bn", "is_multi_device_module", "has_rebuilt_buckets"}
)

_VERSIONS = frozenset({"python", "nccl", "cuda", "cudnn", "driver", "ddptop", "numpy"})

_ENVIRONMENT = frozenset(
    {"threads", "cuda_visible_devices", "master_addr", "master_port", "torch_distributed_debug"}
)

_UNSET = ("N/A", "")
"""What torch's logger has for a variable that is not set."""

_SAID = frozenset({"world_size", "backend_name", "rank", "first_failure", "output_device"})
"""Shown elsewhere on the page."""


def card_facts(card: Mapping[str, Scalar]) -> dict[str, list[Fact]]:
    """Sections by title; the section without one holds what a script or another tool has logged."""
    sections: dict[str, list[Fact]] = {}
    for key, value in card.items():
        if value is None or (isinstance(value, str) and value in _UNSET):
            continue
        model = re.fullmatch(r"ddp(\d*)\.(.*)", key)
        name = model[2] if model else key
        if name in _SAID:
            continue
        if _is_from_environment(name):
            sections.setdefault(ENVIRONMENT, []).append(Fact(name, str(value)))
        elif model:
            title = f"{OPTIONS} of model {model[1]}" if model[1] else OPTIONS
            sections.setdefault(title, []).append(_option_fact(name, value))
        elif name in _VERSIONS:
            sections.setdefault(VERSIONS, []).append(Fact(name, str(value)))
        else:
            sections.setdefault("", []).append(Fact(name, _describe_option(name, value)))
    for facts in sections.values():
        facts.sort(key=lambda fact: _PLACES.get(fact.name, len(_PLACES)))
    return sections


def _is_from_environment(name: str) -> bool:
    return name in _ENVIRONMENT or name.startswith(
        ("nccl_", "gloo_", "NCCL_", "GLOO_", "TORCH_", "CUDA_", "OMP_")
    )


def _option_fact(name: str, value: Scalar) -> Fact:
    usual = DEFAULTS.get(name)
    role: Role = "strong" if usual is not None and value != usual else "text"
    return Fact(name, _describe_option(name, value), role)


def _describe_option(name: str, value: Scalar) -> str:
    if name in _YES_NO or isinstance(value, bool):
        return "yes" if value else "no"
    if name == "bucket_cap_bytes" and isinstance(value, (int, float)):
        return f"{value / 2**20:g} MiB"  # as the user gives it to DDP
    if name.endswith(("_bytes", "_size")) and isinstance(value, (int, float)):
        return size(float(value))
    if isinstance(value, int) and abs(value) >= 10_000 and not name.endswith(("seed", "port", "pid")):
        return count(value)
    if name.endswith("bucket_sizes") and isinstance(value, str):
        sizes = [text.strip() for text in value.split(",")]
        if all(text.isdecimal() for text in sizes):
            return ", ".join(size(int(text)) for text in sizes)
    return str(value)


NAME, VALUE = 26, 13
"""Cells for the name of a fact, at most, and what its value needs for a column of its own."""

FEW_HOSTS = 8
"""More than these come at the end of the page."""

MAX_HOSTS = 64
"""Hosts in the table: those with missing records or whose clock is known worst come first."""


class Section(NamedTuple):
    """A part of the page."""

    title: str
    lines: list[Line]


def _draw_body(scene: Scene, width: int) -> list[Line]:
    """All sections below each other; many hosts at the end. The title of the first is that of the page."""
    first, *others = _run_sections(scene, width)
    hosts = _hosts_section(scene, width)
    few = len(set(scene.frame.ranks.host)) <= FEW_HOSTS
    sections = [*others[:1], *([hosts] if few else []), *others[1:], *_card_sections(scene, width)]
    sections += _logged_sections(scene, width) + ([] if few else [hosts])
    return first.lines + [line for title, lines in sections for line in (draw_rule(width, title), *lines)]


def _run_sections(scene: Scene, width: int) -> list[Section]:
    """The run, what ddptop costs, and the models."""
    facts = [*_draw_facts(scene, _list_run_facts(scene), width), *_draw_losses(scene, width)]
    cost, cost_lines = scene.frame.overhead, _draw_facts(scene, _list_cost_facts(scene), width)
    measured = cost.measured.sentence if cost.measured is not None else ""
    for text in (measured, cost.sampling_sentence, cost.detail_sentence or ""):
        cost_lines += [Line(" ").add(row, "dim") for row in wrap_lines(text, width - 1)]
    models = Section("models and process groups", _draw_models(scene, width))
    return [Section("run", facts), Section("overhead", cost_lines), models]


def _hosts_section(scene: Scene, width: int) -> Section:
    return Section("hosts and clocks", _HostTable(scene).draw_lines(width))


def _card_sections(scene: Scene, width: int) -> list[Section]:
    """DDP's options, of each model that has its own, the versions and the environment."""
    facts = card_facts(scene.frame.run.card)
    of_models = sorted(title for title in facts if title.startswith(f"{OPTIONS} of"))
    titles = [title for title in (OPTIONS, *of_models, VERSIONS, ENVIRONMENT) if title in facts]
    return [Section(title, _draw_facts(scene, facts[title], width)) for title in titles]


def _logged_sections(scene: Scene, width: int) -> list[Section]:
    logged = card_facts(scene.frame.run.card).get("", [])
    return [Section("logged by the script", _draw_facts(scene, logged, width))] if logged else []


LEAST_CHART = 10
"""Lines below the sections from which there is room for loss and step time."""


def _draw_panels(scene: Scene, width: int, height: int) -> list[Line]:
    """The run and what ddptop costs beside where it runs and with which options; below them how it goes."""
    left = (width + 1) // 2
    left_room, right_room = left - 1, width - left - BORDER
    left_sections = [*_run_sections(scene, left_room), *_logged_sections(scene, left_room)]
    right_sections = [_hosts_section(scene, right_room), *_card_sections(scene, right_room)]
    columns = [
        PanelColumn(cells, [Panel(title, lines, len(lines) + 1) for title, lines in sections])
        for cells, sections in ((left, left_sections), (width - left, right_sections))
    ]
    high = max(sum(panel.height or 0 for panel in column.panels) for column in columns)
    room = height - high
    if room < LEAST_CHART:
        free = height - sum(panel.height or 0 for panel in columns[0].panels)
        if free >= LEAST_CHART:  # beside a long list of hosts
            charts = draw_some_charts(scene, ("loss", "step"), left_room, free - 1)
            columns[0] = PanelColumn(left, [*columns[0].panels, Panel("loss and step time", charts)])
        return draw_band(columns, max(high, height))
    charts = draw_some_charts(scene, ("loss", "step"), width, room - 1)
    charts = charts or draw_before_first_step(scene, width, room - 1)
    below = [PanelColumn(width, [Panel("loss and step time", charts)])]
    return draw_band(columns, high) + draw_band(below, room, find_borders(columns))


def _draw_facts(scene: Scene, facts: Iterable[Fact], width: int) -> list[Line]:
    """In as many columns as fit; a long value takes several of them, or lines of its own."""
    facts_text = [(scene.clean(fact.name), scene.clean(fact.value), fact.role) for fact in facts]
    label = min(max((text_width(name) for name, _, _ in facts_text), default=0), NAME, max(8, width // 2 - 4))
    columns = max(1, width // (label + VALUE))
    column_width = width // columns
    lines: list[Line] = []
    row, cell = Line(), 0
    for name, value, role in facts_text:
        piece = Line(" ").add(fit_text(name, label), "dim").add(" ").add(value, role)
        taken = -(-(piece.width + 1) // column_width)
        if cell and cell + taken > columns:
            lines.append(row)
            row, cell = Line(), 0
        if taken <= columns:
            row.pad(cell * column_width).extend(piece)
            cell += taken
            continue
        rows = wrap_lines(value, max(8, width - label - 3)) or [""]
        lines.append(Line(" ").add(fit_text(name, label), "dim").add(" ").add(rows[0], role))
        lines += [Line(" " * (label + 2)).add(text, role) for text in rows[1:]]
    return [*lines, row] if row.width else lines


def _list_run_facts(scene: Scene) -> list[Fact]:
    run, frame = scene.frame.run, scene.frame
    argv = run.argv[1:] if run.argv[:1] == (run.script,) else run.argv
    kind = {"simulated": "simulated, no real training", "replay": "a recording"}.get(frame.source, "live")
    state = run_state_word(frame)
    recorded = run.recording or "off: nothing is recorded"
    return [
        Fact("script", run.script or UNKNOWN, "strong"),
        Fact("arguments", " ".join(argv) or "none"),
        Fact("run", f"{run.name or UNKNOWN} {run.id}".strip()),
        Fact("source", kind),
        Fact("state", state if run.exit_code is None else f"{state}, exit code {run.exit_code}"),
        Fact("started", clock(run.started_at)),
        Fact("elapsed", duration(run.elapsed_s)),
        Fact("ranks", f"{run.world_size:,} on {counted(host_total(scene.frame), 'host')}"),
        Fact("backend", run.backend or UNKNOWN),
        *([Fact("training", limits)] if (limits := limits_phrase(run)) else []),
        Fact("torch", run.torch or UNKNOWN),
        Fact("recording", recorded, "text" if run.recording else "warn"),
    ]


def _list_cost_facts(scene: Scene) -> list[Fact]:
    cost = scene.frame.overhead
    over = known(cost.measured_pct) and known(cost.budget_pct) and cost.measured_pct > cost.budget_pct  # type: ignore[operator]  # known() has checked
    every, beside = cost.detail_distance, cost.collector_pct
    timed = UNKNOWN if every is None else "every step" if every == 1 else f"1 step in {every:,}"
    first = scene.frame.run.card.get("first_failure")
    facts = [
        Fact("counted, worst rank", percent(cost.measured_pct),
             "warn" if over else "strong"),
        Fact("budget", percent(cost.budget_pct)),
        Fact("per step", fixed(cost.us_per_step, 0, " us" if known(cost.us_per_step) else "")),
        Fact("collector", fixed(beside, 1, "% of a core" if known(beside) else "")),
        Fact("buckets timed", timed),
        Fact("internal errors", count(cost.failures), "warn" if cost.failures else "text"),
    ]  # fmt: skip
    return [*facts, Fact("first failure", str(first), "warn")] if first else facts


def _describe_devices(names: list[str]) -> str:
    """`cuda:0-7`: the devices of a host's ranks; the first where they have no common name."""
    parts = [name.partition(":") for name in names]
    numbers = [int(number) for _, _, number in parts if number.isdecimal()]
    if len({kind for kind, *_ in parts}) > 1 or len(numbers) < len(names):
        return names[0]
    return f"{parts[0][0]}:{rank_spans(sorted(set(numbers)))}"


class _HostTable:
    """The hosts of a run with their clocks and records: where there are too many, those of most concern."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._ranks = scene, scene.frame.ranks
        self._clocks = {clock.host: clock for clock in scene.frame.clocks}
        self._figures = figures_by_name(scene.frame)
        index = host_index(self._ranks.host)
        self._n_hosts = len(index.names)
        hosts = [*range(self._n_hosts)]
        if self._n_hosts > MAX_HOSTS:
            lost = np.bincount(index.of_rank, np.nan_to_num(self._ranks.lost_records))
            hosts.sort(key=lambda host: (-lost[host], self._rate_clock(index.names[host])))
        self._names = [index.names[host] for host in hosts[:MAX_HOSTS]]
        self._ranks_of = {index.names[host]: index.ranks(host) for host in hosts[:MAX_HOSTS]}

    def draw_lines(self, width: int) -> list[Line]:
        """A line per host."""
        if not self._names:
            return [Line(" no rank has reported yet", "dim")]
        columns = table.fit_columns(self._make_columns(), width - 1, 2)
        lines = [*self._draw_warning(width), Line(" ").extend(table.draw_head(columns, 2))]
        lines += [Line(" ").extend(table.draw_row(columns, row, 2)) for row in range(len(self._names))]
        hidden = self._n_hosts - len(self._names)
        return lines + ([Line(f" and {counted(hidden, 'host')} more", "faint")] if hidden else [])

    def _rate_clock(self, host: str) -> float:
        """Least for the host whose clock is known worst."""
        clock = self._clocks.get(host)
        return -math.inf if clock is None or clock.bound_ms is None else -clock.bound_ms

    def _draw_warning(self, width: int) -> list[Line]:
        """Why arrivals are not drawn, where the clocks are too inexact."""
        group = self._scene.frame.group
        if not group.clock_free or self._n_hosts == 1:
            return []
        why = (group.clock_reason or "clocks too inexact") + inexact_clock(self._scene.frame)
        text = f"{self._scene.clean(why)}: arrivals are not drawn, and wait and transfer of buckets are the "
        return [Line(" ").add(row, "warn") for row in wrap_lines(f"{text}clock-free fallback (~)", width - 1)]

    def _make_columns(self) -> list[table.TableColumn]:
        ranks, ranks_of = self._ranks, self._ranks_of

        def make(
            title: str, text: Callable[[str], str], keep: int, *, right: bool = True, most: int = 40
        ) -> table.TableColumn:
            return table.measured_column(
                title, [text(host) for host in self._names], keep, right=right, most=most
            )

        drifts = [
            make("drift ppm", self._describe_drift, 44),
            make("compared", self._describe_age, 46, right=False),
            make("round trip", self._describe_round_trip, 48),
        ]
        names = [self._scene.clean(host) or UNKNOWN for host in self._names]
        return [
            table.measured_column("host", names, 99, right=False, most=30, tail=True),
            make("ranks", lambda host: rank_spans(ranks_of[host]), 90, right=False, most=24),
            make("device", self._describe_devices, 30, right=False, most=12),
            make("clock ms", self._describe_clock, 80),
            *(drifts if any(clock.drift_ppm for clock in self._scene.frame.clocks) else []),
            make("records", lambda host: count(_sum_over(ranks.records, ranks_of[host])), 60),
            make("missing", lambda host: count(_sum_over(ranks.lost_records, ranks_of[host])), 70),
            make("last update", lambda host: _longest_ago(ranks.age_ms, ranks_of[host]), 50),
        ]

    def _describe_devices(self, host: str) -> str:
        return self._scene.clean(
            _describe_devices([self._ranks.device[rank] for rank in self._ranks_of[host]])
        )

    def _describe_clock(self, host: str) -> str:
        clock = self._clocks.get(host)
        if clock is None or clock.offset_ms is None:
            return "not compared"
        if self._n_hosts == 1:
            return "one clock"
        # The others are compared with this one, so it has no offset of its own.
        if host in self._figures and self._figures[host].collector:
            return "collector's"
        return f"{signed(clock.offset_ms, RATIO)} ±{fixed(clock.bound_ms, RATIO)}"

    def _describe_drift(self, host: str) -> str:
        clock = self._clocks.get(host)
        return UNKNOWN if clock is None or clock.drift_ppm is None else signed(clock.drift_ppm)

    def _describe_age(self, host: str) -> str:
        clock = self._clocks.get(host)
        return UNKNOWN if clock is None or clock.age_s is None else f"{duration(clock.age_s)} ago"

    def _describe_round_trip(self, host: str) -> str:
        figures = self._figures.get(host)
        ms = None if figures is None else figures.round_trip_ms
        return fixed(ms, RATIO, " ms") if known(ms) else UNKNOWN


def _sum_over(column: Column, ranks: list[int]) -> float | None:
    values = column[ranks]
    return None if np.isnan(values).all() else float(np.nansum(values))


def _longest_ago(column: Column, ranks: list[int]) -> str:
    """The longest time since a rank was last received from."""
    values = column[ranks]
    return UNKNOWN if np.isnan(values).all() else duration(float(np.nanmax(values)) / 1e3)


def _draw_losses(scene: Scene, width: int) -> list[Line]:
    refused = [a.message for a in scene.frame.alerts if a.kind == "refused_messages"]
    lines = [
        Line(" ").add(row, "warn") for text in refused for row in wrap_lines(scene.clean(text), width - 1)
    ]
    return _draw_lost_records(scene, width) + lines


def _draw_lost_records(scene: Scene, width: int) -> list[Line]:
    frame = scene.frame
    records, lost = frame.records, frame.lost_records
    if not records and not lost:
        return [Line(" no record of a step has come yet", "dim")]
    if not lost:
        return [Line(f" {records:,} records of steps, none missing", "dim")]
    worst = np.argsort(-np.nan_to_num(frame.ranks.lost_records), kind="stable")
    who = [int(rank) for rank in worst[:8] if frame.ranks.lost_records[rank] > 0]
    losses = ", ".join(f"rank {rank}: {count(frame.ranks.lost_records[rank])}" for rank in who)
    losses = f" · {losses}" if losses else ""
    text = f"{lost:,} of {records + lost:,} records of steps are missing{losses}"
    return [Line(" ").add(row, "warn") for row in wrap_lines(text, width - 1)]


def _draw_models(scene: Scene, width: int) -> list[Line]:
    models: dict[tuple[int, str], list[BucketFigures]] = {}
    for bucket in scene.frame.buckets:
        models.setdefault((bucket.model, bucket.group), []).append(bucket)
    if not models:
        return _draw_process_groups(scene, width)
    lines = []
    for (model, group), buckets in models.items():
        hooks = sorted({scene.clean(bucket.hook) for bucket in buckets if bucket.hook})
        kinds = sorted({scene.clean(bucket.dtype) for bucket in buckets if bucket.dtype})
        text = f"model {model}: {counted(len(buckets), 'bucket')}, {sent_phrase(buckets) or UNKNOWN} a step"
        text += f" in {', '.join(kinds)}" if kinds else ""
        text += f", hook {', '.join(hooks)}" if hooks else ", no communication hook"
        name = scene.clean(group)
        text += f", process group {name}" if name else ""
        text += " (the default one)" if name == "0" else ""
        lines += [
            Line(" ").add(row) for row in wrap_lines(f"{text}, layout {buckets[0].generation}", width - 1)
        ]
    return lines


def _draw_process_groups(scene: Scene, width: int) -> list[Line]:
    """The process groups of a training without buckets, as far as torch's flight recorder tells of them."""
    frame = scene.frame
    if not frame.process_groups:
        words = kind_phrase(frame.run) or "no rank has reported its buckets yet"
        return [Line(f" {words}", "dim")]
    lines = []
    for group in frame.process_groups:
        text = f"process group {scene.clean(group.description or group.name)}: {counted(group.size, 'rank')}"
        text += f" over {scene.clean(group.backend)}" if group.backend else ""
        text += f", {scene.clean(group.operations)} a step" if group.operations else ""
        lines += [Line(" ").add(row) for row in wrap_lines(text, width - 1)]
    return lines


class RunView(View):
    """What is known of the run: options, versions, hosts, losses of records, cost."""

    name = "run"
    answers = "options, versions, hosts, clocks, records missing, overhead"
    number = "6"
    always_named = True

    def own_keys(self) -> tuple[ScreenKey, ...]:
        """The key that searches the text."""
        return (SEARCH_KEY,)

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """Sections under each other, scrolled as one text."""
        if has_panels(width, height):
            body = _draw_panels(scene, width, height - 1)
            lines, scroll = draw_text(scene, body, height - 1)
            hidden = count_below(scroll, body, height - 1)
            return Page([*lines, draw_rule(width, "", _say_hidden(hidden))], PageLayout(scroll))
        body = [line.cut(width) for line in _draw_body(scene, width)]
        room = max(1, height - 1)
        lines, scroll = draw_text(scene, body, room)
        hidden = count_below(scroll, body, room)
        return Page([draw_rule(width, "run", _say_hidden(hidden)), *lines], PageLayout(scroll))


def _say_hidden(hidden: int) -> str:
    return f"{counted(hidden, 'line')} below" if hidden else ""
