"""What is known of one host: in words below the list of hosts, and in panels on a wide screen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.bill import CLASSES
from ddptop.frames.conditions import SILENT_STATES
from ddptop.frames.hosts import host_index
from ddptop.frames.ledger import LEDGER_CLASSES
from ddptop.frames.numbers import (
    RATIO,
    UNKNOWN,
    count,
    counted,
    duration,
    fixed,
    known,
    percent,
    signed,
    size,
)
from ddptop.frames.phrases import several_hosts, window_phrase
from ddptop.frames.statistics import median
from ddptop.render import table
from ddptop.render.bill import class_look
from ddptop.render.hosts import rank_spans
from ddptop.render.line import Line, Piece, draw_rule, join_parts
from ddptop.render.milestones import draw_before_first_step
from ddptop.render.phases import PARTS, draw_legend, draw_pairs, draw_share_bar
from ddptop.render.rank_table import UNREACHABLE_WIDTH, host_state_piece
from ddptop.render.text import text_width, wrap_clauses, wrap_lines
from ddptop.tui.keys import Do
from ddptop.tui.views.moment import draw_newest, second_series
from ddptop.tui.views.panels import BORDER, Panel, PanelColumn, draw_band, find_borders
from ddptop.tui.views.rank_cells import LEAST_PANEL, TALLEST_HOST_CELLS, rank_panel
from ddptop.tui.views.rank_table import FEW_RANKS, draw_ranks_now
from ddptop.tui.views.why import draw_waits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column, Mask
    from ddptop.frames.frame import GpuFacts
    from ddptop.frames.hosts import HostFigures
    from ddptop.frames.ledger import Ledger
    from ddptop.tui.scene import Scene

DETAIL = 4
"""Lines for all that is known of the host under the cursor."""

LEAST_PANELS = 24
"""Lines of the panels, which a long list of hosts leaves to them."""

TALLEST_RANK = 3
"""Lines of a rank of few."""

SIDE_PART = 0.4
"""Share of the width for the panels at the right."""

USAGE_LINES, PAIR_LINES, LEDGER_LINES, LEAST_RANKS = 10, 9, 7, 4
"""Lines of the panels with their titles: of the usage, of the parts of the step, and at least of the ledger
and of the ranks."""

NAME_CELLS, BAR_PART = 8, 4
"""Cells before a bar of the usage, and which part of the width the bar has."""

MAP_LINES, WHOLE_LEDGER, LEAST_CHART = 3, 14, 8
"""Lines of the map of ranks without its cells, of all of the ledger, and of a chart at least."""


def draw_host(scene: Scene, host: HostFigures, state: Piece | None, width: int) -> list[Line]:
    """The host in words; `state`: as the list has it, None: that of the host itself."""
    first = Line(scene.clean(host.name) or UNKNOWN, "strong")
    text, role = state or host_state_piece(host, UNREACHABLE_WIDTH, scene.frame.source)
    ranks = _ranks_of(scene, host)
    who = join_parts(
        [
            Line("▸ ", "accent").extend(first),
            Line(text, role),
            Line("the collector runs here", "dim") if host.collector else Line(),
            Line("ranks ", "dim").add(rank_spans(ranks)) if ranks else Line("no ranks", "dim"),
            draw_last_message(scene, host, ranks),
        ],
        width,
    )
    busy = f", {fixed(host.gpu_util_pct, 0, '%')} busy" if known(host.gpu_util_pct) else ""
    memory = f"{size(host.memory_used_bytes)} of {size(host.memory_bytes)}"
    load = join_parts(
        [
            Line("  cpu ", "dim").add(percent(host.cpu_pct, 0)).add(f" of {count(host.cores)} cores", "dim"),
            Line("memory ", "dim").add(memory),
            Line("gpus ", "dim").add(f"{host.gpus}{busy}") if host.gpus else Line(),
            Line("in ", "dim").add(f"{size(host.received_bytes_s)}/s"),
            Line("out ", "dim").add(f"{size(host.sent_bytes_s)}/s"),
        ],
        width,
    )
    if not _reports_usage(host):
        load = Line("  ").add(_explain_no_usage(scene), "dim").cut(width)
    of_agent = scene.clean(" · ".join(describe_agent(host)))
    agent = wrap_clauses(of_agent, width - 2)
    agent = agent if len(agent) <= DETAIL - 2 else wrap_lines(of_agent, width - 2, DETAIL - 2)
    return [who, load, *(Line("  ").add(text, "dim") for text in agent)]


def _ranks_of(scene: Scene, host: HostFigures) -> list[int]:
    index = host_index(scene.frame.ranks.host)
    return index.ranks(index.names.index(host.name)) if host.name in index.names else []


def _reports_usage(host: HostFigures) -> bool:
    figures = (host.cpu_pct, host.memory_bytes, host.received_bytes_s)
    return any(figure is not None for figure in figures)


def _explain_no_usage(scene: Scene) -> str:
    """Why processors, memory and network of a host are not known."""
    several = several_hosts(scene.frame)
    return f"CPU, memory, network: {'not known' if several else 'with several hosts only'}"


def draw_host_below(
    scene: Scene, host: HostFigures, state: Piece | None, width: int, height: int
) -> list[Line]:
    """`height` lines below the list: the host in words, and its ranks where there is room."""
    words = [draw_rule(width), *draw_host(scene, host, state, width)]
    if several_hosts(scene.frame):  # nothing moves with the cursor
        words += [Line()] * (DETAIL + 1 - len(words))
    ranks, room = _ranks_of(scene, host), height - len(words)
    n_table = room - 2  # without the rule and the looks of the parts
    if not ranks or n_table < LEAST_RANKS:
        return words + [Line()] * room
    if scene.frame.start is not None and scene.frame.group.step is None:
        bars = draw_before_first_step(scene, width, room)
        return [*words, *bars, *[Line()] * (room - len(bars))]
    tall = max(1, min(TALLEST_RANK, (n_table - 1) // len(ranks)))
    rows = draw_ranks_now(scene, width, n_table, tall=tall, ranks=ranks)
    name = scene.clean(host.name) or UNKNOWN
    title = draw_rule(width, f"ranks of {name} · ms, {window_phrase(scene.frame.group)}")
    legend = draw_legend(scene.ascii_only, (), width, absent=scene.absent_parts)
    return [*words, title, *rows, *[Line()] * (n_table - len(rows)), legend]


def draw_last_message(scene: Scene, host: HostFigures, ranks: list[int]) -> Line:
    """When the host's newest message came; of a silent host also the step that its ranks were in."""
    if not known(host.age_ms):
        return Line()
    line = Line("last message ", "dim").add(f"{duration(host.age_ms / 1e3)} ago")
    steps = [float(step) for step in scene.frame.ranks.step[ranks] if known(float(step))]
    if host.state in SILENT_STATES and steps:
        line.add(" in step ", "dim").add(count(min(steps)))
    return line


def describe_agent(host: HostFigures) -> list[str]:
    """Clock, link, and what is kept, recorded or left out."""
    words = [f"records locally to {host.local_recording}"] if host.local_recording is not None else []
    words += [f"keeps {counted(host.kept, 'message')} for the collector"] if host.kept else []
    words += [f"bucket detail left out of {counted(host.thinned, 'row')}"] if host.thinned else []
    if host.clock_offset_ms is not None and not host.collector:
        bound = f" ±{fixed(host.clock_bound_ms, RATIO)}" if known(host.clock_bound_ms) else ""
        clock = f"clock {signed(host.clock_offset_ms, RATIO)}{bound} ms from the collector's"
        clock += f", drift {signed(host.clock_drift_ppm)} ppm" if host.clock_drift_ppm is not None else ""
        words.append(clock)
        words += [f"compared {duration(host.clock_age_s)} ago"] if host.clock_age_s is not None else []
    words += [f"round trip {fixed(host.round_trip_ms, RATIO)} ms"] if known(host.round_trip_ms) else []
    if host.link_peer is not None:
        lost = f", {fixed(host.link_lost_pct, RATIO)}% of segments lost" if host.link_lost_pct else ""
        trip = fixed(host.link_round_trip_ms, RATIO)
        words.append(f"ranks to {host.link_peer}: round trip {trip} ms{lost}")
    return words


def draw_host_panels(scene: Scene, host: HostFigures, width: int, height: int) -> list[Line]:
    """`height` lines: its ranks, their steps beside those of others, where their time went; its usage."""
    right = int(width * SIDE_PART)
    left, inner = width - right, right - BORDER
    ranks = _ranks_of(scene, host)
    most = height - PAIR_LINES - LEDGER_LINES
    tall = 2 if len(ranks) <= FEW_RANKS and 2 * len(ranks) + 2 <= most else 1
    n_ranks = max(LEAST_RANKS, min(len(ranks) * tall + 2, most))
    name = scene.clean(host.name) or UNKNOWN
    rows = draw_ranks_now(scene, left - 1, n_ranks - 1, tall=tall, ranks=ranks) if ranks else []
    of_ranks = Panel(
        f"ranks of {name}",
        rows or [Line("no rank runs on it", "dim")],
        n_ranks,
        key="1",
        opens=Do.VIEW("overview"),
    )
    usage = Panel(name, _draw_usage(scene, host, ranks, inner), USAGE_LINES)
    if scene.frame.group.step is None:
        above = [PanelColumn(left, [of_ranks]), PanelColumn(right, [usage])]
        return [*draw_band(above, n_ranks), *draw_start(scene, (width, height - n_ranks), above)]
    worst = host.worst_rank if ranks else None
    ledger = _draw_ledger(scene, ranks, left - 1)
    rest = height - n_ranks - PAIR_LINES
    n_ledger = 2 if scene.frame.ledger is None else WHOLE_LEDGER
    n_ledger = n_ledger if rest - n_ledger >= LEAST_CHART else rest
    columns = [
        of_ranks,
        Panel(_title_of_pairs(scene, worst), _draw_worst_rank(scene, ranks, worst, left - 1), PAIR_LINES),
        Panel("where the time of its ranks went, whole run", ledger, n_ledger),
    ]
    beside = [usage]
    gpus = [facts for facts in scene.frame.gpus if facts.rank in ranks]
    if gpus:
        most = min(len(gpus) + 2, height - USAGE_LINES - LEAST_PANEL)
        beside.append(Panel("GPUs of its ranks", _draw_gpus(scene, gpus, inner, most - 1), most))
    n_map = height - sum(panel.height or 0 for panel in beside)
    n_hosts = len(host_index(scene.frame.ranks.host).names)
    n_right = n_map - max(LEAST_PANEL, TALLEST_HOST_CELLS * n_hosts + MAP_LINES)
    n_map -= n_right if n_right >= LEAST_CHART else 0
    if len(scene.frame.ranks.state) > 1 and n_map >= LEAST_PANEL:
        chosen = len(scene.frame.ranks.state) if worst is None else worst
        beside.append(replace(rank_panel(scene, right, n_map, chosen), height=n_map))
    if n_ledger < rest:
        what, title = second_series(scene.frame)
        chart = draw_newest(scene, (left - 1, rest - n_ledger - 1), what)
        columns.append(Panel(f"{title} of all ranks, newest", chart))
    if n_right >= LEAST_CHART:
        chart = draw_newest(scene, (inner, n_right - 1), "steps")
        beside.append(Panel("newest steps of all ranks", chart))
    return draw_band([PanelColumn(left, columns), PanelColumn(right, beside)], height)


def draw_start(
    scene: Scene, size: tuple[int, int], above: Sequence[PanelColumn], *, says_why: bool = True
) -> list[Line]:
    """Lines across the page, below a band of columns: how far the ranks have come to their first step."""
    width, height = size
    lines = draw_before_first_step(scene, width, height - 1, says_why=says_why)
    return draw_band([PanelColumn(width, [Panel("", lines)])], height, find_borders(above))


def _draw_usage(scene: Scene, host: HostFigures, ranks: list[int], width: int) -> list[Line]:
    """Bars of processors, memory and GPUs, then network, clock and what its agent keeps."""
    parts = [
        Line("the collector runs here", "dim") if host.collector else Line(),
        draw_last_message(scene, host, ranks),
    ]
    lines = [join_parts(parts, width)]
    cpu = ("cpu", host.cpu_pct, f"of {counted(host.cores or 0, 'core')}")
    memory = ("memory", host.memory_used_pct, f"of {size(host.memory_bytes)}")
    gpus = ("gpus", host.gpu_util_pct, f"of {counted(host.gpus, 'GPU')}")
    reports = _reports_usage(host)
    for name, share, text in (*((cpu, memory) if reports else ()), *((gpus,) if host.gpus else ())):
        lines.append(_draw_share(scene, name, share, text, width))
    network = Line("network ", "dim").add(f"{size(host.received_bytes_s)}/s").add(" in, ", "dim")
    network.add(f"{size(host.sent_bytes_s)}/s").add(" out", "dim")
    lines.append((network if reports else Line(_explain_no_usage(scene), "dim")).cut(width))
    return [*lines, *(Line(text, "dim") for text in _wrap_phrases(scene, describe_agent(host), width))]


def _wrap_phrases(scene: Scene, phrases: list[str], width: int) -> list[str]:
    """Phrases on as few lines as possible, none of them broken that fits into one."""
    lines: list[str] = []
    for phrase in map(scene.clean, phrases):
        if lines and text_width(joined := f"{lines[-1]} · {phrase}") <= width:
            lines[-1] = joined
        else:
            lines += wrap_lines(phrase, width)
    return lines


def _draw_share(scene: Scene, name: str, share_pct: float | None, text: str, width: int) -> Line:
    line = Line(name, "dim").pad(NAME_CELLS)
    if share_pct is None or not known(share_pct):
        return line.add("not known", "faint")
    full, empty = ("#", ".") if scene.ascii_only else ("█", " ")
    looks: tuple[Piece, Piece] = (full, "edge"), (empty, "rule")
    bar = draw_share_bar(min(100.0, max(0.0, share_pct)), looks, width // BAR_PART, scene.ascii_only)
    return line.extend(bar).add(f" {percent(share_pct, 0):>4} ", "strong").add(text, "dim").cut(width)


def _draw_gpus(scene: Scene, gpus: list[GpuFacts], width: int, height: int) -> list[Line]:
    """A row for the GPU of each rank, those that are throttled first; how many more there are."""
    gpus = sorted(gpus, key=lambda facts: (not facts.throttle, facts.rank))
    texts = {
        "rank": [str(facts.rank) for facts in gpus],
        "gpu%": [fixed(facts.util_pct, 0) for facts in gpus],
        "memory": [size(facts.mem_bytes) for facts in gpus],
        "C": [fixed(facts.temp_c, 0) for facts in gpus],
        "W": [fixed(facts.power_w, 0) for facts in gpus],
        "MHz": [count(facts.clock_mhz) for facts in gpus],
        "throttled": [scene.clean(facts.throttle or "") for facts in gpus],
    }
    columns = [
        table.measured_column(title, cells, 100 - place, right=title != "throttled")
        for place, (title, cells) in enumerate(texts.items())
        if any(cell not in ("", UNKNOWN) for cell in cells)
    ]
    columns = table.fit_columns(columns, width, 2)
    lines = [table.draw_head(columns, 2), *(table.draw_row(columns, row, 2) for row in range(len(gpus)))]
    if len(lines) > height:
        lines[height - 1 :] = [Line(f"and {len(lines) - height + 1} more", "dim")]
    return lines


def _title_of_pairs(scene: Scene, worst: int | None) -> str:
    if worst is None:
        return "its ranks beside others"
    others = "other hosts" if several_hosts(scene.frame) else "the other ranks"
    return f"rank {worst}, its worst, beside {others}"


def _draw_worst_rank(scene: Scene, ranks: list[int], worst: int | None, width: int) -> list[Line]:
    """Each part of the step of its worst rank beside the median of all ranks elsewhere; on the only host, of
    its other ranks."""
    parts, is_known = scene.breakdown.ms, scene.breakdown.known
    apart = ranks if several_hosts(scene.frame) or worst is None else [worst]
    elsewhere = is_known & ~np.isin(np.arange(len(is_known)), apart)
    if worst is None or worst >= len(is_known) or not is_known[worst] or not elsewhere.any():
        return [Line("not known of both", "faint")]
    pairs = [
        (part, float(row[worst]), float(median(row[elsewhere])))
        for part, row in zip(PARTS, parts, strict=False)
        if part.name != "sync"
    ]
    titles = f"rank {worst}", "others", f"ms, {window_phrase(scene.frame.group)}"
    return draw_pairs(pairs, titles, width, scene.ascii_only)


def _draw_ledger(scene: Scene, ranks: list[int], width: int) -> list[Line]:
    """What others waited for its ranks; then the share of each class of the ledger in its ranks' time and in
    the others', the largest first."""
    ledger = scene.frame.ledger
    if ledger is None or not ranks or max(ranks) >= len(ledger.ranks.elapsed_s):
        return [Line("not known", "faint")]
    inside = np.isin(np.arange(len(ledger.ranks.elapsed_s)), ranks)
    shares = []
    for name in LEDGER_CLASSES:
        seconds = ledger.seconds_of(name)
        own, others = (_share_pct(ledger, seconds, chosen) for chosen in (inside, ~inside))
        if max(own, others) >= LEAST_SHARE_PCT:
            shares.append((own, others, name))
    lines = draw_waits(scene, ranks, width)
    lines.append(Line(f"  {'':<{CLASS_CELLS}}{'its':>7}{'others':>8}", "dim"))
    room = width - lines[-1].width - 2
    for own, others, name in sorted(shares, reverse=True):
        sign, role = class_look(name, scene.ascii_only)
        line = Line(sign, role).add(f" {CLASSES[name].title:<{CLASS_CELLS}}")
        line.add(f"{percent(own):>7}", "strong")
        line.add(f"{UNKNOWN if inside.all() else percent(others):>8}", "dim")
        lines.append(line.add("  ").add(sign * round(own / 100 * room), role).cut(width))
    return lines


CLASS_CELLS = max(len(words.title) for words in CLASSES.values())
"""Cells of the title of a class."""

LEAST_SHARE_PCT = 0.05
"""A class with less is left out."""


def _share_pct(ledger: Ledger, seconds: Column, chosen: Mask) -> float:
    """The share of the time of the chosen ranks; 0 where there is none."""
    total_s = float(ledger.ranks.elapsed_s[chosen].sum())
    return 100 * float(np.nansum(seconds[chosen])) / total_s if total_s else 0.0
