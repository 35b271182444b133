"""What the keys do: small classes of actions, mixed into the application. They work without its widgets."""

from __future__ import annotations

from ddptop.tui.actions.playback import KeepKeys, PlaybackKeys
from ddptop.tui.actions.prompts import PromptKeys
from ddptop.tui.actions.ranks import RankKeys
from ddptop.tui.actions.runs import RunKeys
from ddptop.tui.actions.views import LaneKeys, ViewKeys


class Steer(ViewKeys, LaneKeys, RankKeys, PlaybackKeys, PromptKeys, KeepKeys, RunKeys):
    """Mixed into the application."""
