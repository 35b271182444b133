"""The tables of a plain-text picture: a row per rank, a bar per rank, a row per bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from ddptop.render.numbers import UNKNOWN, count, fixed, known, loss, size
from ddptop.render.phases import Breakdown, legend
from ddptop.render.rank_columns import silent_or_stuck_ms
from ddptop.render.table import aligned
from ddptop.render.text import cells

if TYPE_CHECKING:
    from ddptop.frames.frame import BucketFigures, Frame, Ranks
    from ddptop.render.line import Line

MAX_RANK_ROWS = 64
"""A picture of thousands of ranks is for no mail: beyond this the healthy ones are only counted."""

MAX_BUCKET_ROWS = 32

MAX_BARS = 16
"""With more ranks a person reads the table, or looks at the screen."""

MIN_BAR = 10
MIN_LEGEND = 60
"""A legend that leaves out signs explains nothing."""

_LEGEND = (
    "ms, medians over the last 100 complete steps; late: behind the other ranks;",
    "data + fwd + bwd + wait + transfer + opt + other = ms/step: wait and transfer that nothing hides",
)

_CLOCK_FREE = (
    "ms, medians over the last 100 complete steps; the clocks cannot tell who came late, so",
    "~ the shortest collective of all ranks stands for the transfer, and the rest for the wait",
)

Row = TypeVar("Row")


@dataclass(frozen=True)
class _Column(Generic[Row]):
    title: str
    text: Callable[[Row], str]
    keep: int
    """Where the width does not suffice, columns of the lowest number go first."""
    left: bool = False


def rank_table(frame: Frame, width: int) -> list[str]:
    """A line per rank, a legend, and how many ranks were left out."""
    ranks, free = frame.ranks, frame.group.clock_free
    total = len(ranks.host)
    if not total:
        return ["no rank has reported yet"]
    shown = _worth_showing(ranks)
    lines = _fit(_rank_columns(frame), shown, width)
    if len(shown) < total:
        hidden = set(range(total)) - set(shown)
        unwell = sum(ranks.state[rank] != "live" for rank in hidden)
        lines.append(f"and {len(hidden):,} more ranks, {unwell:,} of them not live (--json has all)")
    return [*lines, *(_CLOCK_FREE if free else _LEGEND)]


def rank_bars(frame: Frame, width: int, ascii_only: bool) -> list[str]:
    """A stacked bar of its step for each rank, on one scale; nothing while no step is known."""
    breakdown = Breakdown(frame.ranks)
    total = len(breakdown.known)
    if not breakdown.known.any() or total > MAX_BARS:
        return []
    late = frame.straggler
    waited_for = () if late is None else late.ranks or (late.rank,)
    room = max(MIN_BAR, width - len("rank "))
    return [
        f"where the step went, {fixed(breakdown.full_ms)} ms from edge to edge",
        *(f"{rank:4} {_text(breakdown.bar(rank, room, ascii_only))}" for rank in range(total)),
        _text(legend(ascii_only, waited_for, max(MIN_LEGEND, width))),
    ]


def bucket_table(frame: Frame, width: int) -> list[str]:
    """A line per gradient bucket; nothing when none is known."""
    buckets = frame.buckets
    if not buckets:
        return []
    alike = {name for name in ("model", "group") if len({getattr(bucket, name) for bucket in buckets}) == 1}
    columns = [column for column in _bucket_columns(frame) if column.title not in alike]
    lines = _fit(columns, list(buckets[:MAX_BUCKET_ROWS]), width)
    if len(buckets) > MAX_BUCKET_ROWS:
        lines.append(f"and {len(buckets) - MAX_BUCKET_ROWS:,} more buckets (--json has them)")
    return lines


def _text(line: Line) -> str:
    return "".join(text for text, _ in line.pieces)


def _fit(columns: Sequence[_Column[Row]], rows: Sequence[Row], width: int) -> list[str]:
    """The table, without as many of its least important columns as it takes."""
    columns = [column for column in columns if column.title != "±" or any(map(_is_told(column), rows))]
    while True:
        right = frozenset(column.title for column in columns if not column.left)
        texts = [[column.text(row) for column in columns] for row in rows]
        lines = aligned([column.title for column in columns], texts, right)
        if max(map(cells, lines)) <= width or len(columns) == 1:
            return lines
        columns.remove(min(columns, key=lambda column: column.keep))


def _is_told(column: _Column[Row]) -> Callable[[Row], bool]:
    return lambda row: column.text(row) != UNKNOWN


def _worth_showing(ranks: Ranks) -> list[int]:
    """All ranks; of very many those that are not live and those that come latest."""
    total = len(ranks.host)
    if total <= MAX_RANK_ROWS:
        return list(range(total))

    def badness(rank: int) -> tuple[bool, float]:
        late = float(ranks.lateness_ms[rank])
        return ranks.state[rank] != "live", late if known(late) else float("-inf")

    return sorted(sorted(range(total), key=badness, reverse=True)[:MAX_RANK_ROWS])


def _rank_columns(frame: Frame) -> list[_Column[int]]:
    ranks, free = frame.ranks, frame.group.clock_free
    sign = "~" if free else ""
    breakdown = Breakdown(ranks)
    some_lost = bool((ranks.lost_records > 0).any())
    accumulates = bool((ranks.micro_steps > 1).any())

    def part(title: str, before: str = "") -> Callable[[int], str]:
        column = breakdown.column(title)
        return lambda rank: _signed(before, float(column[rank]), 1)

    def told(name: str, before: str = "", digits: int = 1) -> Callable[[int], str]:
        column = getattr(ranks, name)
        return lambda rank: UNKNOWN if free else _signed(before, float(column[rank]), digits)

    def state(rank: int) -> str:
        age = silent_or_stuck_ms(frame, rank)
        word = ranks.state[rank]
        word = "joined" if word == "live" and ranks.joined[rank] > 0 else word
        return f"{word} {age / 1e3:.0f}s" if word in ("stale", "stalled") and known(age) else word

    return [
        _Column("rank", str, 99),
        _Column("host", lambda rank: ranks.host[rank] or UNKNOWN, 20, left=True),
        _Column("device", lambda rank: ranks.device[rank] or UNKNOWN, 10, left=True),
        _Column("state", state, 98, left=True),
        _Column("step", lambda rank: count(float(ranks.step[rank])), 97),
        _Column("loss", lambda rank: loss(float(ranks.loss[rank])), 80),
        _Column("ms/step", lambda rank: fixed(float(ranks.step_ms[rank])), 96),
        *([_Column("micro", lambda rank: count(float(ranks.micro_steps[rank])), 65)] if accumulates else []),
        _Column("data", part("data"), 90),
        _Column("fwd", part("fwd"), 89),
        _Column("bwd", part("bwd"), 88),
        _Column("wait", part("wait", sign), 95),
        _Column("transfer", part("transfer", sign), 94),
        _Column("opt", part("opt"), 60),
        _Column("other", part("other"), 50),
        _Column("late", told("lateness_ms"), 70),
        _Column("±", told("bound_ms", "±"), 69),
        _Column("last %", told("last_pct", digits=0), 40),
        _Column("score", lambda rank: fixed(float(ranks.relative_score[rank]), 2), 15),
        *([_Column("lost", lambda rank: count(float(ranks.lost_records[rank])), 30)] if some_lost else []),
    ]


def _last_arriver(bucket: BucketFigures) -> str:
    if bucket.last_arriver is None:
        return UNKNOWN
    share = f" in {bucket.last_arriver_pct:.0f}%" if known(bucket.last_arriver_pct) else ""
    return f"rank {bucket.last_arriver}{share}"


def _signed(sign: str, value: float | None, digits: int) -> str:
    return f"{sign}{fixed(value, digits)}" if known(value) else UNKNOWN


def _bucket_columns(frame: Frame) -> list[_Column[BucketFigures]]:
    free = frame.group.clock_free
    sign = "~" if free else ""
    return [
        _Column("model", lambda bucket: str(bucket.model), 98),
        _Column("group", lambda bucket: bucket.group or UNKNOWN, 96, left=True),
        _Column("bucket", lambda bucket: str(bucket.index), 99),
        _Column("size", lambda bucket: size(bucket.bytes), 97),
        _Column("type", lambda bucket: bucket.dtype or UNKNOWN, 20, left=True),
        _Column("hook", lambda bucket: bucket.hook or UNKNOWN, 10, left=True),
        _Column("collective ms", lambda bucket: fixed(bucket.collective_ms, 2), 50),
        _Column("wait ms", lambda bucket: _signed(sign, bucket.wait_ms, 2), 90),
        _Column("transfer ms", lambda bucket: _signed(sign, bucket.transfer_ms, 2), 89),
        _Column("±", lambda bucket: _signed("±", bucket.transfer_bound_ms, 2), 36),
        _Column("busbw GB/s", lambda bucket: fixed(bucket.busbw_gbps, 2), 80),
        _Column("skew ms", lambda bucket: fixed(None if free else bucket.skew_ms, 2), 40),
        _Column("±", lambda bucket: _signed("±", bucket.bound_ms, 2), 38),
        _Column("comes last", lambda bucket: UNKNOWN if free else _last_arriver(bucket), 70, left=True),
    ]
