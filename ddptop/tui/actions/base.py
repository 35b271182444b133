"""The call of an action: one of the screen's own, or one of the view that is open."""

from __future__ import annotations

from ddptop.tui.all_views import VIEWS
from ddptop.tui.keys import Action, Do
from ddptop.tui.screen import Screen
from ddptop.tui.view import View


class ActionsBase(Screen):
    """What all actions have in common."""

    @property
    def view(self) -> View:
        """The view that is open."""
        return VIEWS[self.place.view]

    def act(self, action: Action) -> None:
        """Do what a key, a click or a line of the palette stands for."""
        if isinstance(action.do, Do):
            getattr(self, f"action_{action.do.value}")(*action.arguments)
        else:
            action.do(self, *action.arguments)

    def action_key(self, name: str) -> None:
        """A key, by Textual's name, in the view that is open."""
        self.place.note = ""
        key = VIEWS.meaning(name, self.place.view, replay=self.playback is not None)
        if key is not None:
            self.act(key.action)

    def action_finish(self) -> None:
        """Quit; training continues."""
        self.finish()

    def open_view(self, name: str, *, rank: int | None = None) -> None:
        """Open a view, and request what its frames need. `rank`: put the cursor on this one."""
        place, before, after = self.place, self.view, VIEWS[name]
        # First, because the view that opens may take over the cursor that this one leaves.
        before.on_close(place)
        if rank is not None:
            place.rank, place.pointed = rank, True
        if after is not before:
            after.on_open(self)
        place.open(name)
        self.source.focus(place.rank if after.shows_single_steps else None)
        self.repaint()
