"""Samples of a stack as a tree: of each call its share of the samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.numbers import counted, percent
from ddptop.frames.sampled_stack import CallGroup, calls_within, hot_path, workers_phrase
from ddptop.render.line import Line, Role

if TYPE_CHECKING:
    from ddptop.frames.sampled_stack import SampledStack
    from ddptop.render.context import RenderContext

LEAST_PCT = 5.0
"""Calls in a smaller share of the samples are left out."""

INDENT = 2


def tree_lines(context: RenderContext, stack: SampledStack, width: int, most: int) -> list[Line]:
    """What was sampled, and the calls in at most so many lines in all, in the order of the tree."""
    where = context.clean(stack.place.replace("_", " "))
    when = f"step {stack.step:,}, which lasted long" if stack.is_long_step else where or "outside waits"
    line = Line("  stack ", "dim").add(f"{counted(stack.samples, 'sample')} in {when}", "dim")
    workers = f" · {context.clean(workers_phrase(stack))}" if stack.workers else ""
    lines = [line.add(workers).cut(width)]
    path = [group.call for group in hot_path(stack)]
    groups = _walk_tree(stack, (-1,), 0)
    # The line that takes the time first, then what led to it, then the rest.
    ordered = sorted(groups, key=lambda at: (at[1].call not in path, -at[0] if at[1].call in path else 0))
    shown = ordered[: max(0, most - 1)]
    for depth, group in (row for row in groups if row in shown):
        role: Role = "strong" if group.call is path[-1] else "text" if group.call.line else "dim"
        text = context.clean(group.text)
        share = Line(f"  {percent(group.share_pct):>5}  ", "dim")
        lines.append(share.add(" " * INDENT * depth).add(text, role).cut(width))
    return lines


def _walk_tree(stack: SampledStack, parents: tuple[int, ...], depth: int) -> list[tuple[int, CallGroup]]:
    """Every call with a share that matters, and how deep it is; one below the other."""
    rows: list[tuple[int, CallGroup]] = []
    for group in calls_within(stack, parents):
        if group.share_pct >= LEAST_PCT:
            rows += [(depth, group), *_walk_tree(stack, group.indices, depth + 1)]
    return rows
