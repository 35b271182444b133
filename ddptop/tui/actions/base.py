"""What the actions need from the application, and the call of an action."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.tui.keys import Action, ViewName, meaning
from ddptop.tui.scene import Place

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame, Playback
    from ddptop.sources.base import Source
    from ddptop.tui.palette import Entry
    from ddptop.tui.runs import Runs
    from ddptop.tui.scene import Scene


class ActionsBase:
    """The state that the actions change. The application implements it; a test may do so without one."""

    source: Source
    place: Place
    shown: Frame | None
    frozen: bool
    runs: Runs | None
    """Finds other runs; None: other runs cannot be opened."""
    save_to: Path | None
    """Folder in which screens are saved; None: where the recordings are kept."""

    def repaint(self) -> int:
        """Draw what has changed."""
        raise NotImplementedError

    def scene(self) -> Scene:
        """What is shown now. Only with a frame."""
        raise NotImplementedError

    def finish(self) -> None:
        """Leave the screen."""
        raise NotImplementedError

    def picture_text(self) -> str:
        """The screen as text."""
        raise NotImplementedError

    def picture_svg(self) -> str:
        """The screen as an SVG."""
        raise NotImplementedError

    def to_clipboard(self, text: str) -> None:
        """Copy a text to the terminal's clipboard."""
        raise NotImplementedError

    def themes(self) -> tuple[str, ...]:
        """Names of all themes, ours first."""
        raise NotImplementedError

    def use_theme(self, name: str) -> None:
        """Draw with this theme from now on."""
        raise NotImplementedError

    def palette(self, typed: str) -> list[Entry]:
        """What the palette offers for some letters."""
        raise NotImplementedError

    @property
    def playback(self) -> Playback | None:
        """Position in the recording; None: live."""
        return self.shown.playback if self.shown is not None else None

    def act(self, action: Action) -> None:
        """Do what a key, a click or a line of the palette stands for."""
        getattr(self, f"action_{action.do.value}")(*action.arguments)

    def action_key(self, name: str) -> None:
        """A key, by Textual's name, in the view that is open."""
        self.place.note = ""
        row = meaning(name, self.place.view, self.playback is not None)
        if row is not None:
            self.act(row.action)

    def action_finish(self) -> None:
        """Quit; training continues."""
        self.finish()

    def show_note(self, note: str) -> None:
        """Show the result of a key, until the next key."""
        self.place.note = note
        self.repaint()

    def open_view(self, name: ViewName) -> None:
        """Open a view, and request what its frames need."""
        place = self.place
        if name == "timeline" and place.view != name:
            place.timeline.rank = place.rank
        elif place.view == "timeline" and not place.follow and place.rank != place.timeline.rank:
            place.rank, place.pointed = place.timeline.rank, True  # the cursor goes along from view to view
        if name == "heat" and place.view != name:
            place.heat.sought = place.rank
        place.view = name
        place.seek = 0
        self.source.focus(place.rank if name == "rank" else None)
        self.repaint()
