"""Keys of the timeline and of the heat map."""

from __future__ import annotations

from ddptop.tui.actions.host import Host


class LaneKeys(Host):
    """Zoom, pan, pick; figure, shape, cursor."""

    def action_zoom(self, by: int) -> None:
        """Nearer, or farther."""
        self.place.timeline.zoom(by)
        self.repaint()

    def action_fit(self) -> None:
        """The whole step."""
        self.place.timeline.fit()
        self.repaint()

    def action_pan(self, by: int) -> None:
        """To the right, or to the left."""
        self.place.timeline.pan(by)
        self.repaint()

    def action_pick_step(self, by: int) -> None:
        """Some steps on or back among those that are told in full."""
        if self.shown is not None:
            stuck = self.shown.stall is not None and self.shown.stall.step is not None
            self.place.timeline.pick(by, self.shown.timeline, stuck=stuck)
            self.repaint()

    def action_newest(self) -> None:
        """Follow the newest step again."""
        self.place.timeline.release()
        self.repaint()

    def action_all_lanes(self) -> None:
        """The all-reduces of every lane, or of one."""
        self.place.timeline.toggle_all()
        self.repaint()

    def action_across(self, by: int) -> None:
        """Some cells to the right."""
        self.place.heat.move(0, by)
        self.repaint()

    def action_figure(self, by: int) -> None:
        """Another figure."""
        self.place.heat.next_figure(by)
        self.repaint()

    def action_choose_figure(self, name: str) -> None:
        """A figure by name."""
        self.place.heat.choose(name)
        self.open_view("heat")

    def action_shape(self) -> None:
        """Ranks by steps, or hosts by local ranks."""
        self.place.heat.toggle_shape()
        self.repaint()
