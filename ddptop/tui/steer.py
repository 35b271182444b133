"""All that the keys do: they move the place, or ask the source to move the recording."""

from __future__ import annotations

from ddptop.tui.steering.keep import KeepKeys
from ddptop.tui.steering.lanes import LaneKeys
from ddptop.tui.steering.playback import PlaybackKeys
from ddptop.tui.steering.prompts import PromptKeys
from ddptop.tui.steering.ranks import RankKeys
from ddptop.tui.steering.runs import RunKeys
from ddptop.tui.steering.views import ViewKeys


class Steer(ViewKeys, LaneKeys, RankKeys, PlaybackKeys, PromptKeys, KeepKeys, RunKeys):
    """Mixed into the application."""
