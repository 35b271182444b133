"""The figures of a page, which F1 explains: their titles, and what Enter does with one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddptop.frames.hosts import host_index
from ddptop.render.metrics import FIELDS, HOST_FIELDS
from ddptop.render.rank_table import rank_columns

if TYPE_CHECKING:
    from ddptop.frames.figures import Figure
    from ddptop.tui.scene import Place, Scene
    from ddptop.tui.screen import Screen


class PageFigures:
    """The figures of the table of ranks. Enter chooses whether a column is shown."""

    fields: Mapping[str, Figure] = {**FIELDS, "clock": HOST_FIELDS["clock±"]}
    """By title the figure."""
    hint = " · Enter: + always  - never  blank: where it fits"
    chooses_columns = True

    def titles(self, scene: Scene) -> tuple[str, ...]:
        """Titles of the columns, or names of the metrics."""
        titles = [column.title for column in rank_columns(scene) if column.title != "rank"]
        return tuple([*titles, "clock"] if len(host_index(scene.frame.ranks.host).names) > 1 else titles)

    def label(self, title: str) -> str:
        """The title as it is on the screen."""
        return title

    def current(self, place: Place) -> str:
        """The figure that the page is sorted by or shows."""
        return "excess" if place.sort == "rank" else place.sort

    def is_on_screen(self, place: Place, title: str) -> bool:
        """Whether the page shows it now."""
        return title in place.sortable

    def choose(self, screen: Screen, title: str) -> None:
        """Show a column always, never, or where it fits."""
        columns = screen.place.columns
        was_shown = columns.pop(title, None)
        if was_shown is not False:
            columns[title] = was_shown is None
        how = {None: "where it fits", True: "always shown", False: "never shown"}[columns.get(title)]
        screen.show_note(f"{title}: {how}, kept for later runs")


RANK_PAGE_FIGURES = PageFigures()
