"""The screen as its views and actions see it: the state that they change, and what it can do for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.tui.keys import Action, PaletteEntry
from ddptop.tui.scene import Place

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame, Playback
    from ddptop.sources.base import Source
    from ddptop.tui.runs import Runs
    from ddptop.tui.scene import Scene


class Screen:
    """The application implements it; a test may do so without Textual."""

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

    def change_setting(self, name: str, value: str) -> None:
        """Set the rate, ASCII or the bell from now on."""
        raise NotImplementedError

    def use_theme(self, name: str) -> None:
        """Draw with this theme from now on."""
        raise NotImplementedError

    def palette(self, typed: str) -> list[PaletteEntry]:
        """What the palette offers for some letters."""
        raise NotImplementedError

    def act(self, action: Action) -> None:
        """Do what a key, a click or a line of the palette stands for."""
        raise NotImplementedError

    def open_view(self, name: str, *, rank: int | None = None) -> None:
        """Open a view, and request what its frames need. `rank`: put the cursor on this one."""
        raise NotImplementedError

    @property
    def playback(self) -> Playback | None:
        """Position in the recording; None: live."""
        return self.shown.playback if self.shown is not None else None

    def show_note(self, note: str) -> None:
        """Show the result of a key, until the next key."""
        self.place.note = note
        self.repaint()

    def open_rank(self, rank: int) -> None:
        """Open the page of a rank."""
        self.open_view("rank", rank=rank)
