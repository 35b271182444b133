"""The mouse: whatever can be seen and means something can be clicked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.events import Click, MouseDown, MouseMove, MouseScrollDown, MouseScrollUp, MouseUp

from ddptop.render.line import Spot
from ddptop.tui.actions import Steer
from ddptop.tui.painted import Painted

if TYPE_CHECKING:
    from textual.app import App

    class _Base(Steer, App[None]):
        pass
else:
    _Base = Steer

WHEEL_LINES = 3

SHARE = "{share}"


class Mouse(_Base):
    """Mixed into the application beside the keys."""

    _dragged: Spot | None = None

    def on_mouse_down(self, event: MouseDown) -> None:
        """A bar is taken hold of."""
        spot = self.query_one(Painted).spot_at(event.screen_x, event.screen_y)
        if spot is not None and SHARE in spot[2]:
            self._dragged = spot
            self._drag(event.screen_x)

    def on_mouse_move(self, event: MouseMove) -> None:
        """The bar that is held follows; so does the crosshair of the charts."""
        if self._dragged is not None:
            self._drag(event.screen_x)
        elif event.button and self._on_charts() and self.place.charts.hover(event.screen_x, event.screen_y):
            self.repaint()

    def on_mouse_up(self, event: MouseUp) -> None:
        """The bar is let go."""
        self._dragged = None

    def on_click(self, event: Click) -> None:
        """A spot, a cell of a chart or of the heat map, or a row; a second click on a row opens it."""
        x, y = event.screen_x, event.screen_y
        painted = self.query_one(Painted)
        spot, target = painted.spot_at(x, y), painted.target_at(y)
        if spot is not None:
            if SHARE not in spot[2]:
                self.place.note = ""
                self.act(spot[2])
        elif self.place.prompt is not None:
            return
        elif self._on_charts() and self.place.charts.hover(x, y):
            self.repaint()
        elif self.place.view == "heat" and self.place.heat.click(x, y - 1):
            self.act("open") if event.chain > 1 else self.repaint()
        elif target is not None:
            self.choose(target, event.chain > 1)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """The wheel moves the cursor."""
        self.action_move(WHEEL_LINES)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """The wheel moves the cursor."""
        self.action_move(-WHEEL_LINES)

    def _on_charts(self) -> bool:
        return self.place.view == "overview"

    def _drag(self, x: int) -> None:
        assert self._dragged is not None
        begin, end, action = self._dragged
        share = (x - begin + 0.5) / max(1, end - begin)
        self.act(action.replace(SHARE, f"{min(1.0, max(0.0, share)):.6f}"))
