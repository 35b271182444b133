"""The report as one HTML file: the page of text with pictures, and nothing that is fetched from anywhere.

It is readable on a phone and on paper, on a light and on a dark ground. What a picture shows is also in its
text alternative, and every part of it has its figure as a `<title>`, which browsers show under the mouse.
Text from the user's program is escaped, and a content policy forbids scripts and requests.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ddptop.frames.bill import bill_of, headline, skew_cost_phrase
from ddptop.frames.conditions import tone_of
from ddptop.frames.numbers import fixed, signed
from ddptop.frames.verdict import SIGNS
from ddptop.render.bill import LOSSES_TITLE, class_columns, loss_phrases, waited_columns
from ddptop.render.colours import DARK, LIGHT
from ddptop.render.line import of_state
from ddptop.render.phases import PARTS
from ddptop.render.text import clean
from ddptop.report import sentences
from ddptop.report.findings import and_more, by_kind
from ddptop.report.pictures import bill_bar, excess_over_time, legend, paired_bars, rank_bar, run_over_time
from ddptop.report.tables import (
    beside_others,
    bucket_columns,
    differs,
    happened,
    host_columns,
    part_shares,
    rank_times,
    worst_hosts,
    worst_ranks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddptop.frames.stall import RankPosition
    from ddptop.render.table import TableColumn
    from ddptop.report.content import Report

MAX_RANKS = 64
"""Bars of ranks; the others are counted."""

MAX_HOSTS = 64

MAX_INCIDENTS = 20
"""Stalls and deaths with their stacks; the others are counted."""

_STYLE = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:64rem;padding:1rem;background:var(--background);color:var(--text);
font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.4rem;margin:.2rem 0;color:var(--strong)}h2{font-size:1.05rem;margin:1.6rem 0 .5rem;
color:var(--strong)}p{margin:.3rem 0}small,.dim{color:var(--dim)}ol{padding-left:1.4rem}
.good{color:var(--good);fill:var(--good)}.warn{color:var(--warn);fill:var(--warn)}
.bad{color:var(--bad);fill:var(--bad)}.badge{color:var(--banner);font-weight:bold}
.finding{margin:.4rem 0;font-size:1.05rem}.detail{margin:0 0 0 1.4rem;color:var(--dim)}
svg .dim{fill:var(--dim)}svg .faint{fill:var(--faint)}svg .accent{fill:var(--accent)}
svg{display:block;width:100%;background:var(--cursor)}.high{height:7rem}.low{height:1.1rem}.bar{height:1.3rem}
.lane{display:grid;grid-template-columns:7rem 1fr;gap:.6rem;margin:.25rem 0;align-items:center}
.lane>span{line-height:1.2}.axis{display:flex;justify-content:space-between;color:var(--dim)}
.rank{display:grid;grid-template-columns:10rem 1fr 15rem;gap:.2rem .6rem;margin:.3rem 0;align-items:center}
.key{display:inline-block;margin-right:.9rem;color:var(--dim)}
.key svg{display:inline-block;width:.8rem;height:.8rem;margin-right:.3rem}
table{border-collapse:collapse;width:100%}th,td{padding:.2rem .5rem;text-align:right;
border-bottom:1px solid var(--rule)}th{color:var(--dim);font-weight:normal}
.left{text-align:left}pre{white-space:pre-wrap;margin:.3rem 0 .6rem;padding:.5rem;background:var(--cursor);
font-size:13px}
@media(max-width:40rem){.rank{grid-template-columns:1fr}.lane{grid-template-columns:4.5rem 1fr}
table,tbody,tr,td{display:block}thead{display:none}tr{border-bottom:1px solid var(--rule);padding:.3rem 0}
td,td.left{border:0;padding:0;text-align:left}td::before{content:attr(data-label) " ";color:var(--dim)}}
@media print{body{max-width:none}section{break-inside:avoid}svg{print-color-adjust:exact}}
"""


def document(report: Report) -> str:
    """The whole file."""
    run = report.run
    sections = (
        ("", _verdict(report)),
        ("", _bill(report)),
        ("The run over time", _over_time(report)),
        ("Ranks, worst first", _ranks(report)),
        ("Why", _why(report)),
        ("Hosts", _hosts(report)),
        ("Communication", _communication(report)),
        ("Stalls, deaths, wrong numbers", _incidents(report)),
        ("What to try", _advice(report)),
    )
    body = "".join(
        f"<section>{f'<h2>{title}</h2>' if title else ''}{inner}</section>\n"
        for title, inner in sections
        if inner
    )
    sources = [*sentences.footing(report), sentences.source(report)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        '<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(f'ddptop report {run.name}')}</title>"
        f"<style>{_colours()}{_STYLE}</style></head><body>\n{_head(report)}{body}"
        f'<footer class="dim">{_paragraphs(line for line in sources if line)}</footer></body></html>\n'
    )


def _text(text: str) -> str:
    """Anybody's text as HTML."""
    return escape(clean(text))


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{_text(line)}</p>" for line in lines)


def _colours() -> str:
    """The roles as variables, and as the colours of shapes."""

    def variables(colours: dict[str, str]) -> str:
        return ";".join(f"--{name}:{colour}" for name, colour in colours.items())

    fills = "".join(f".{part.role}{{fill:var(--{part.role})}}" for part in PARTS)
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}"
    return f":root{{color-scheme:light dark;{variables(LIGHT)}}}{dark}{fills}"


def _head(report: Report) -> str:
    sign, colour = of_state(report.run.state)
    simulated = ' <span class="badge">SIMULATED</span>' if report.source == "simulated" else ""
    state = f'<span class="{colour}">{sign} {_text(report.run.state.upper())}</span>'
    facts = "".join(f'<p class="dim">{_text(line)}</p>' for line in sentences.facts(report))
    return f"<header><h1>{_text(report.run.name)} {state}{simulated}</h1>{facts}</header>\n"


def _verdict(report: Report) -> str:
    parts = []
    for finding in report.verdict:
        sentence = _text(f"{SIGNS[finding.sign]} {finding.sentence}")
        parts.append(f'<p class="finding {sentences.role(finding)}">{sentence}</p>')
        parts += [f'<p class="detail">{_text(line)}</p>' for line in finding.detail]
    return "".join(parts)


def _bill(report: Report) -> str:
    """The same three parts as on the page of text."""
    bill = None if report.ledger is None else bill_of(report.ledger, on_gpus=sentences.on_gpus(report))
    if report.ledger is None or bill is None or not bill.rows:
        return ""
    parts = [f"<h2>{_text(headline(bill))}</h2>", bill_bar(bill)]
    parts.append(_table(class_columns(bill), len(bill.rows) + 1))
    columns, n_rows = waited_columns(report.ledger, bill)
    if n_rows:
        parts.append(
            f"<h2>What the others waited for</h2>{_paragraphs([skew_cost_phrase(report.ledger.run)])}"
        )
        parts.append(_table(columns, n_rows))
    if bill.losses:
        losses = "".join(f"<li>{_text(phrase)}</li>" for phrase in loss_phrases(bill))
        parts.append(f"<h2>{LOSSES_TITLE}</h2><ol>{losses}</ol>")
    return "".join(parts)


def _over_time(report: Report) -> str:
    picture = run_over_time(report)
    keys = legend(("wait", "transfer")) + legend(("forward",)).replace("forward</span>", "all else</span>")
    return f"{picture}<p>{keys}</p>" if picture else ""


def _ranks(report: Report) -> str:
    if not report.ranks or report.communication.step_ms is None:
        return ""
    shown = worst_ranks(report, MAX_RANKS)
    times = rank_times(shown, report)
    full_ms = max((rank.step_ms or 0.0 for rank in shown), default=0.0)
    rows = []
    for at, rank in enumerate(shown):
        figures = [f"{fixed(rank.step_ms)} ms"]
        figures += [] if rank.excess_ms is None else [f"excess {signed(rank.excess_ms)}"]
        figures += [] if rank.lateness_ms is None else [f"late {fixed(rank.lateness_ms)} ms"]
        bar = rank_bar(times[:, at].tolist(), full_ms, f"rank {rank.rank}")
        rows.append(
            f'<div class="rank"><span>rank {rank.rank} <small>{_text(rank.host)}</small></span>{bar}'
            f"<small>{' · '.join(figures)}</small></div>"
        )
    hidden = len(report.ranks) - len(shown)
    more = f"<p>and {hidden:,} more ranks, less late</p>" if hidden > 0 else ""
    shares = part_shares(report)
    means = f"means over the run; {sentences.shares(shares)}" if shares else ""
    keys = legend(part.name for part in PARTS if part.name != "sync" or "sync" in dict(shares))
    return f"{''.join(rows)}{more}<p>{keys}</p>{_paragraphs([means] if means else [])}"


def _why(report: Report) -> str:
    beside = beside_others(report)
    if beside is None:
        return ""
    rows = [
        f'<div class="rank"><span>{phase}</span>{paired_bars(beside, phase)}<small>rank {beside.slow.rank} '
        f"{fixed(beside.own[phase])} ms, others {fixed(beside.usual[phase])}</small></div>"
        for phase in beside.own
    ]
    said = ("own time, medians; grey: the others", differs(beside.slow), happened(beside))
    over_time = excess_over_time(report, beside.slow)
    return f"{''.join(rows)}{_paragraphs(filter(None, said))}{over_time}"


def _hosts(report: Report) -> str:
    if len(report.hosts) < 2:
        return ""
    shown = worst_hosts(report)[:MAX_HOSTS]
    hidden = len(report.hosts) - len(shown)
    return _table(host_columns(shown), len(shown)) + (f"<p>and {hidden:,} more hosts</p>" if hidden else "")


def _communication(report: Report) -> str:
    columns, rows = bucket_columns(report.buckets)
    measured = report.communication.exposed_comm_ms is not None
    return _paragraphs(sentences.communication(report)) + (_table(columns, rows) if rows and measured else "")


def _incidents(report: Report) -> str:
    lines = []
    for stall in report.stalls[:MAX_INCIDENTS]:
        lines.append(f'<p class="bad">{_text(sentences.stall(stall))}</p>')
        followed = (stall.followed,) if stall.followed else ()
        lines += [f'<p class="detail">{_text(line)}</p>' for line in (*followed, *stall.detail)]
        lines += [_position(position) for position in stall.positions]
    for death in report.deaths[:MAX_INCIDENTS]:
        lines += [f'<p class="bad">{_text(sentences.death(death))}</p>', _position(death.position)]
        if message := sentences.new_message(death, report):
            lines.append(f"<pre>{escape(chr(10).join(map(clean, message)))}</pre>")
    hidden = max(0, len(report.stalls) - MAX_INCIDENTS) + max(0, len(report.deaths) - MAX_INCIDENTS)
    lines += [f"<p>and {hidden:,} more</p>"] if hidden else []
    for alert, number in by_kind(report.troubles):
        if not (report.deaths and alert.kind in sentences.DEATHS):
            colour = tone_of(alert.kind, "warning")
            lines.append(f'<p class="{colour}">{_text(sentences.alert(alert) + and_more(number))}</p>')
    return "".join(lines)


def _position(position: RankPosition) -> str:
    calls = sentences.stack(position)
    if not calls and not position.operation:
        return ""
    stack = f"<pre>{escape(chr(10).join(calls))}</pre>" if calls else ""
    return f'<p class="detail">{_text(sentences.where(position))}</p>{stack}'


def _advice(report: Report) -> str:
    if not report.advice:
        return _paragraphs([sentences.nothing_to_try(report)])
    items = "".join(
        f"<li>{_text(suggestion.action)}<br>"
        f"<small>because {_text(suggestion.because + sentences.gain(suggestion, report))}</small></li>"
        for suggestion in report.advice
    )
    return f"<ol>{items}</ol>"


def _table(columns: Sequence[TableColumn], rows: int) -> str:
    """On a phone each row is a block of lines, with the titles before the figures."""

    def cell(column: TableColumn, row: int) -> str:
        return f'<td{side(column)} data-label="{_text(column.title)}">{_text(column.cell(row)[0])}</td>'

    def side(column: TableColumn) -> str:
        return "" if column.right else ' class="left"'

    head = "".join(f"<th{side(column)}>{_text(column.title)}</th>" for column in columns)
    lines = "".join(f"<tr>{''.join(cell(column, row) for column in columns)}</tr>" for row in range(rows))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
