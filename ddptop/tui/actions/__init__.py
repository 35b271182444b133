"""What the keys do: small classes of actions, mixed into the application. They work without its widgets."""

from __future__ import annotations

from ddptop.tui.actions.playback import PlaybackActions, SaveActions
from ddptop.tui.actions.prompts import PromptActions
from ddptop.tui.actions.runs import RunActions
from ddptop.tui.actions.views import ViewActions


class Actions(ViewActions, PlaybackActions, PromptActions, SaveActions, RunActions):
    """All actions of keys, clicks and the palette, mixed into the application."""
