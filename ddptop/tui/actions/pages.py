"""Saving and copying what is on the screen, and the theme it is drawn in."""

from __future__ import annotations

from ddptop.sources.saving import save_page
from ddptop.tui.actions.host import Host
from ddptop.tui.views.stall import evidence_text


class KeepKeys(Host):
    """Actions that keep something."""

    def action_save(self) -> None:
        """Write the screen into a text file and an SVG, on the stall page all that is known of it."""
        if self.shown is None:
            return
        run, view, moment = self.shown.run.name, self.place.view, self.shown.unix_s
        evidence = evidence_text(self.shown) if view == "stall" else None
        try:
            path = save_page(run, view, moment, evidence or self.picture_text(), folder=self.save_to)
            save_page(run, view, moment, self.picture_svg(), suffix=".svg", folder=self.save_to)
        except OSError as error:
            self.tell(f"not saved: {error}")
        else:
            self.tell(f"saved to {path} and .svg")

    def action_copy(self) -> None:
        """The screen's text to the clipboard, by the terminal (OSC 52): that works through ssh too."""
        self.to_clipboard(self.picture_text())
        self.tell("the screen's text was handed to the terminal's clipboard")

    def action_theme(self, name: str) -> None:
        """Draw with this theme from now on, also next time."""
        self.use_theme(name)
        self.tell(f"theme {name}")
