"""The call of an action: one of the screen's own, or one of the view that is open."""

from __future__ import annotations

from ddptop.tui.all_views import VIEWS
from ddptop.tui.keys import RECORDING_KEYS, Action, Do
from ddptop.tui.runs import NoSource
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
        else:
            self.show_note(self._describe_dead_key(name))

    def _describe_dead_key(self, name: str) -> str:
        """Why a key does nothing here, and where it does something."""
        shown = next((key.shown for key in VIEWS.all_keys if key.keys == name), name)
        views = VIEWS.views_with_key(name)
        if views:
            names = " and ".join(filter(None, (", ".join(views[:-1]), views[-1])))
            return f"{shown} does something in {names} only"
        if any(key.keys == name for key in RECORDING_KEYS):
            return f"{shown} moves in a recording: this run is live"
        return f"{shown} does nothing: ? lists the keys"

    def action_finish(self) -> None:
        """Quit; training continues."""
        self.finish()

    def open_view(self, name: str, *, rank: int | None = None) -> None:
        """Open a view, and request what its frames need; leave one that its key leaves where it is open.
        `rank`: put the cursor on this one."""
        place, before, after = self.place, self.view, VIEWS[name]
        if after is before and after.left_by_its_key:
            after = VIEWS[place.before]
        if isinstance(self.source, NoSource) and before.lists_runs:
            self.show_note(self.source.status())  # another page would hide the runs, and have nothing to show
            return
        # First, because the view that opens may take over the cursor that this one leaves.
        before.on_close(place)
        if rank is not None:
            place.rank, place.pointed = rank, True
        if after is not before:
            if after.name in place.trail:
                del place.trail[place.trail.index(after.name) :]
            elif after.goes_back:
                place.trail.append(before.name)
            else:
                place.trail.clear()
            after.on_open(self)
        place.open(after.name)
        self.source.focus(place.rank if after.shows_single_steps else None)
        self.repaint()
