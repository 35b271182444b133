"""The table of process groups whose collectives no hook times: on the screen and in `--once`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.figures import PROCESS_GROUP_FIGURES, figures_shown
from ddptop.frames.numbers import UNKNOWN, fixed
from ddptop.frames.phrases import first_ranks
from ddptop.frames.process_groups import OTHER_DESCRIPTION
from ddptop.render import table
from ddptop.render.bucket_table import describe_last

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ddptop.frames.figures import Figure
    from ddptop.frames.process_groups import ProcessGroupFigures
    from ddptop.render.context import RenderContext

SCREEN_COLUMNS = figures_shown(lambda figure: figure.screen, PROCESS_GROUP_FIGURES)
PLAIN_COLUMNS = figures_shown(lambda figure: figure.plain, PROCESS_GROUP_FIGURES)

LAUNCHES = "launches by torch's flight recorder; late: at the collective of a step that decides, median ms"
ON_HOST = "~ NCCL: launches are the host's, which runs ahead of the GPU"


def process_group_columns(
    context: RenderContext, *, plain: bool = False, most: int | None = None
) -> list[table.TableColumn]:
    """The columns on the screen, or with `plain` those of `--once`, of the first `most` groups."""
    groups = context.frame.process_groups[:most]
    return [
        table.measured_column(
            column.title or figure.title,
            [context.clean(_write_figure(figure, group, plain=plain)) for group in groups],
            column.keep,
            right=not figure.is_text,
            most=column.most,
        )
        for figure, column in (PLAIN_COLUMNS if plain else SCREEN_COLUMNS)
    ]


def _write_figure(figure: Figure, group: ProcessGroupFigures, *, plain: bool) -> str:
    write = TEXTS.get(figure.name)
    if write is not None:
        return write(group, plain)
    value = getattr(group, figure.name)
    return str(value) if figure.is_text else figure.text(value)


def _describe_group(group: ProcessGroupFigures, _plain: bool) -> str:
    described = group.description not in ("", OTHER_DESCRIPTION)
    return group.description if described else group.name


def _describe_ranks(group: ProcessGroupFigures, _plain: bool) -> str:
    return first_ranks(group.ranks) if group.ranks else f"all {group.size:,}"


def _describe_last(group: ProcessGroupFigures, plain: bool) -> str:
    return describe_last(group.last_arriver, group.last_arriver_pct, plain=plain)


def _describe_lateness(group: ProcessGroupFigures, _plain: bool) -> str:
    return UNKNOWN if group.lateness_ms is None else ("~" if group.on_host else "") + fixed(group.lateness_ms)


TEXTS: Mapping[str, Callable[[ProcessGroupFigures, bool], str]] = {
    "description": _describe_group,
    "ranks": _describe_ranks,
    "last_arriver": _describe_last,
    "lateness_ms": _describe_lateness,
}
"""How values are written that more than one field says."""
