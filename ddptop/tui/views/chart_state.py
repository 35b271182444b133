"""Where the crosshair of the charts is, and how their loss is drawn. Changed by keys and mouse alone."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Plot:
    """Where a chart was painted last: cells of its curve within the charts, and its time axis."""

    top: int
    """First line of the curve, counted from the first line of the charts."""
    left: int
    width: int
    height: int
    begin_s: float
    """Time at the left edge, in seconds since the run began."""
    cell_s: float
    """Seconds that one cell is wide."""
    end_s: float
    """Time of the newest point."""

    def holds(self, x: int, y: int) -> bool:
        """Whether a cell of the charts lies on this curve."""
        return self.left <= x < self.left + self.width and self.top <= y < self.top + self.height


@dataclass
class ChartState:
    """The charts as the person wants them. Views fill in `top` and `plots` when they paint."""

    log_loss: bool = False
    """The loss on a logarithmic axis."""
    at_s: float | None = None
    """Where the crosshair stands, in seconds since the run began; None: there is none."""
    top: int = 0
    """Line of the screen on which the charts begin; set by the view that places them."""
    plots: list[Plot] = field(default_factory=list)
    """Every chart that was painted last."""

    def toggle_log(self) -> None:
        """Loss on a logarithmic axis, or on a plain one."""
        self.log_loss = not self.log_loss

    def toggle(self) -> None:
        """The crosshair at the newest point, or none."""
        self.at_s = None if self.at_s is not None or not self.plots else self.plots[0].end_s

    def off(self) -> bool:
        """No crosshair; False where there was none."""
        there, self.at_s = self.at_s is not None, None
        return there

    def move(self, cells: int) -> bool:
        """The crosshair some cells of the chart with the shortest span to the right; False: there is none."""
        if self.at_s is None or not self.plots:
            return False
        finest = min(self.plots, key=lambda plot: plot.cell_s)
        begin_s = min(plot.begin_s for plot in self.plots)
        self.at_s = min(max(self.at_s + cells * finest.cell_s, begin_s), finest.end_s)
        return True

    def hover(self, x: int, y: int) -> bool:
        """The crosshair to a cell of the screen; True where that lies on a chart: the picture has changed."""
        for plot in self.plots:
            if plot.holds(x, y - self.top):
                self.at_s = min(plot.begin_s + (x - plot.left + 0.5) * plot.cell_s, plot.end_s)
                return True
        return False
