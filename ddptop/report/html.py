"""The report as one HTML file: the page of text with pictures, and nothing that is fetched from anywhere.

It is readable on a phone and on paper, on a light and on a dark ground. What a picture shows is also in its
text alternative. Every part of it has its figure as a `<title>`, which browsers show under the mouse.
Text from the user's program is escaped, and a content policy forbids scripts and requests.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ddptop.frames.bill import CLASSES, NOT_KNOWN, bill_of, estimate_phrase, headline, skew_cost_phrase
from ddptop.frames.conditions import tone_of
from ddptop.frames.figures import figures_shown
from ddptop.frames.numbers import fixed
from ddptop.frames.training_kind import times_waiting
from ddptop.frames.verdict import SIGNS
from ddptop.render.bill import LOSSES_TITLE, class_columns, loss_phrases, waited_columns
from ddptop.render.colours import DARK, LIGHT
from ddptop.render.line import of_state
from ddptop.render.phases import PARTS
from ddptop.render.text import clean_text
from ddptop.report import sentences
from ddptop.report.findings import and_more, by_kind
from ddptop.report.pictures import (
    REST,
    draw_bill_bar,
    draw_bill_legend,
    draw_excess_over_time,
    draw_key,
    draw_legend,
    draw_paired_bars,
    draw_rank_bar,
    draw_run_over_time,
)
from ddptop.report.tables import (
    beside_others,
    bucket_columns,
    differences_phrase,
    events_at_begin,
    host_columns,
    part_shares,
    rank_times,
    worst_hosts,
    worst_ranks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddptop.frames.bill import Bill
    from ddptop.frames.stall import RankPosition
    from ddptop.render.table import TableColumn
    from ddptop.report.content import Report

LINE_PARTS = figures_shown(lambda figure: figure.line)
"""Figures beside the bar of a rank."""

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
.finding{margin:.4rem 0;padding-left:.7rem;border-left:.3rem solid var(--dim);font-size:1.05rem}
.finding.good{border-color:var(--good)}.finding.warn{border-color:var(--warn)}
.finding.bad{border-color:var(--bad)}
.detail{margin:0 0 0 1.4rem;color:var(--dim);font-size:.95rem}
svg .dim{fill:var(--dim)}svg .faint{fill:var(--faint)}svg .accent{fill:var(--accent)}
svg{display:block;width:100%;background:var(--cursor)}.high{height:7rem}.low{height:1.1rem}.bar{height:1.3rem}
.bar rect{stroke:var(--cursor);vector-effect:non-scaling-stroke}
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
td,td.left{border:0;padding:0;text-align:left}td::before{content:attr(data-label) " ";color:var(--dim)}
td:empty{display:none}}
@media print{body{max-width:none}section{break-inside:avoid}svg{print-color-adjust:exact}}
"""


def html_page(report: Report) -> str:
    """The whole file."""
    run = report.run
    sections = (
        ("", _draw_whole_run(report)),
        ("", _draw_verdict(report)),
        ("What to try", _draw_advice(report)),
        ("The run over time", _draw_over_time(report)),
        ("Ranks, worst first", _draw_ranks(report)),
        ("Why", _draw_why(report)),
        ("", _draw_bill(report)),
        ("Hosts", _draw_hosts(report)),
        ("Communication", _draw_communication(report)),
        ("Stalls, deaths, wrong numbers", _draw_incidents(report)),
    )
    body = "".join(
        f"<section>{f'<h2>{title}</h2>' if title else ''}{inner}</section>\n"
        for title, inner in sections
        if inner
    )
    sources = [*sentences.footing_lines(report), sentences.recording_phrase(report)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        '<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_escape_text(f'ddptop report {run.name}')}</title>"
        f"<style>{_colour_rules()}{_STYLE}</style></head><body>\n{_draw_head(report)}{body}"
        f'<footer class="dim">{_make_paragraphs(line for line in sources if line)}</footer></body></html>\n'
    )


def _escape_text(text: str) -> str:
    """Anybody's text as HTML."""
    return escape(clean_text(text))


def _make_paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{_escape_text(line)}</p>" for line in lines)


def _colour_rules() -> str:
    """The roles as variables, and as the colours of shapes."""

    def join_variables(colours: dict[str, str]) -> str:
        return ";".join(f"--{name}:{colour}" for name, colour in colours.items())

    roles = dict.fromkeys(
        (*(part.role for part in PARTS), *(ledger_class.role for ledger_class in CLASSES.values()), REST)
    )
    fills = "".join(f"rect.{role}{{fill:var(--{role})}}" for role in roles)
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{join_variables(DARK)}}}}}"
    return f":root{{color-scheme:light dark;{join_variables(LIGHT)}}}{dark}{fills}"


def _draw_head(report: Report) -> str:
    sign, colour = of_state(report.run.state)
    simulated = ' <span class="badge">SIMULATED</span>' if report.source == "simulated" else ""
    state = f'<span class="{colour}">{sign} {_escape_text(report.run.state.upper())}</span>'
    facts = "".join(f'<p class="dim">{_escape_text(line)}</p>' for line in sentences.run_facts(report))
    return f"<header><h1>{_escape_text(report.run.name)} {state}{simulated}</h1>{facts}</header>\n"


def _draw_whole_run(report: Report) -> str:
    """Where the time of all ranks went: one bar over the page, in a sentence and in words."""
    bill = _bill_of(report)
    if bill is None:
        return ""
    keys = draw_bill_legend(bill)
    estimate = "" if report.ledger is None else estimate_phrase(report.ledger)
    sentences_of_bill = [text for text in (headline(bill), estimate) if text]
    return f"{_make_paragraphs(sentences_of_bill)}{draw_bill_bar(bill)}<p>{keys}</p>"


def _bill_of(report: Report) -> Bill | None:
    """None where no time was added up."""
    if report.ledger is None:
        return None
    bill = bill_of(report.ledger, on_gpus=sentences.has_gpus(report))
    return bill if bill.rows else None


def _draw_verdict(report: Report) -> str:
    """The findings, as on the screen behind an edge in the colour of each."""
    parts = []
    for finding in report.verdict:
        sentence = _escape_text(f"{SIGNS[finding.sign]} {finding.sentence}")
        details = "".join(f'<p class="detail">{_escape_text(line)}</p>' for line in finding.detail)
        colour = sentences.finding_colour(finding)
        parts.append(f'<div class="finding {colour}"><p>{sentence}</p>{details}</div>')
    return "".join(parts)


def _draw_bill(report: Report) -> str:
    """The parts of the bill that the page of text has, without its bar."""
    bill = _bill_of(report)
    if report.ledger is None:
        return "" if report.communication.step_ms is None else _make_paragraphs([NOT_KNOWN])
    if bill is None:
        return ""
    parts = ["<h2>Where the time went</h2>", _draw_table(class_columns(bill), len(bill.rows) + 1)]
    columns, n_rows = waited_columns(report.ledger, bill)
    if n_rows:
        parts.append(
            f"<h2>What the others waited for</h2>{_make_paragraphs([skew_cost_phrase(report.ledger.run)])}"
        )
        parts.append(_draw_table(columns, n_rows))
    if phrases := loss_phrases(bill):
        losses = "".join(f"<li>{_escape_text(' '.join(phrase))}</li>" for phrase in phrases)
        parts.append(f"<h2>{LOSSES_TITLE}</h2><ol>{losses}</ol>")
    return "".join(parts)


def _draw_over_time(report: Report) -> str:
    picture = draw_run_over_time(report)
    timed = ("wait", "transfer") if times_waiting(report.run.training) else ()
    keys = draw_legend(timed) + draw_key(REST, "all else")
    return f"{picture}<p>{keys}</p>" if picture else ""


def _draw_ranks(report: Report) -> str:
    if not report.ranks or report.communication.step_ms is None:
        return ""
    shown = worst_ranks(report, MAX_RANKS)
    times = rank_times(shown, report)
    full_ms = max((rank.step_ms or 0.0 for rank in shown), default=0.0)
    rows = []
    for rank_index, rank in enumerate(shown):
        figures = [f"{fixed(rank.step_ms)} ms"]
        values = ((line, rank.means[figure.key]) for figure, line in LINE_PARTS)
        figures += [line.sentence.format(value=line.text(ms)) for line, ms in values if ms is not None]
        bar = draw_rank_bar(times[:, rank_index].tolist(), full_ms, f"rank {rank.rank}")
        rows.append(
            f'<div class="rank"><span>rank {rank.rank} <small>{_escape_text(rank.host)}</small></span>{bar}'
            f"<small>{' · '.join(figures)}</small></div>"
        )
    hidden = len(report.ranks) - len(shown)
    hidden_phrase = f"<p>and {hidden:,} more ranks, less late</p>" if hidden > 0 else ""
    shares = part_shares(report)
    usual = [sentences.shares_phrase(shares)] if shares else []
    keys = draw_legend(part.name for part in PARTS if part.name in dict(shares))
    return f"{''.join(rows)}{hidden_phrase}<p>{keys}</p>{_make_paragraphs(usual)}"


def _draw_why(report: Report) -> str:
    beside = beside_others(report)
    if beside is None:
        return ""
    rows = [
        f'<div class="rank"><span>{phase}</span>{draw_paired_bars(beside, phase)}'
        f"<small>rank {beside.slow.rank} {fixed(beside.own[phase], 1, ' ms')}, others "
        f"{fixed(beside.usual[phase])}</small></div>"
        for phase in beside.own
    ]
    keys = f"<p>{draw_key(REST, 'the others')} own time, medians</p>"
    lines = (differences_phrase(beside.slow), events_at_begin(beside))
    over_time = draw_excess_over_time(report, beside.slow)
    return f"{''.join(rows)}{keys}{_make_paragraphs(filter(None, lines))}{over_time}"


def _draw_hosts(report: Report) -> str:
    if len(report.hosts) < 2:
        return ""
    shown = worst_hosts(report)[:MAX_HOSTS]
    hidden = len(report.hosts) - len(shown)
    return _draw_table(host_columns(shown), len(shown)) + (
        f"<p>and {hidden:,} more hosts</p>" if hidden else ""
    )


def _draw_communication(report: Report) -> str:
    columns, rows = bucket_columns(report.buckets)
    return _make_paragraphs(sentences.communication_lines(report)) + (
        _draw_table(columns, rows) if rows and report.communication.is_measured else ""
    )


def _draw_incidents(report: Report) -> str:
    lines = []
    for stall in report.stalls[:MAX_INCIDENTS]:
        lines.append(f'<p class="bad">{_escape_text(sentences.stall_line(stall))}</p>')
        followed = (stall.followed,) if stall.followed else ()
        lines += [f'<p class="detail">{_escape_text(line)}</p>' for line in (*followed, *stall.detail)]
        lines += [_draw_position(position) for position in stall.positions]
    for death in report.deaths[:MAX_INCIDENTS]:
        lines += [
            f'<p class="bad">{_escape_text(sentences.death_line(death))}</p>',
            _draw_position(death.position),
        ]
        if message := sentences.new_message(death, report):
            lines.append(f"<pre>{escape(chr(10).join(map(clean_text, message)))}</pre>")
    hidden = max(0, len(report.stalls) - MAX_INCIDENTS) + max(0, len(report.deaths) - MAX_INCIDENTS)
    lines += [f"<p>and {hidden:,} more</p>"] if hidden else []
    for alert, number in by_kind(report.troubles):
        if not (report.deaths and alert.kind in sentences.DEATHS):
            colour = tone_of(alert.kind, "warning")
            lines.append(
                f'<p class="{colour}">{_escape_text(sentences.alert_line(alert) + and_more(number))}</p>'
            )
    return "".join(lines)


def _draw_position(position: RankPosition) -> str:
    calls = sentences.stack_lines(position)
    if not calls and not position.operation:
        return ""
    stack = f"<pre>{escape(chr(10).join(calls))}</pre>" if calls else ""
    return f'<p class="detail">{_escape_text(sentences.position_phrase(position))}</p>{stack}'


def _draw_advice(report: Report) -> str:
    if not report.advice:
        return _make_paragraphs([sentences.nothing_to_try(report)])
    items = []
    for suggestion in report.advice:
        because = _escape_text(suggestion.because + sentences.gain_phrase(suggestion, report))
        items.append(f"<li>{_escape_text(suggestion.action)}<br><small>because {because}</small></li>")
    return f"<ol>{''.join(items)}</ol>"


def _draw_table(columns: Sequence[TableColumn], rows: int) -> str:
    """A table. On a phone each row is a block of lines, with the titles before the figures."""

    def draw_cell(column: TableColumn, row: int) -> str:
        title, text = _escape_text(column.title), _escape_text(column.cell(row)[0])
        return f'<td{side_class(column)} data-label="{title}">{text}</td>'

    def side_class(column: TableColumn) -> str:
        return "" if column.right else ' class="left"'

    head = "".join(f"<th{side_class(column)}>{_escape_text(column.title)}</th>" for column in columns)
    lines = "".join(
        f"<tr>{''.join(draw_cell(column, row) for column in columns)}</tr>" for row in range(rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
