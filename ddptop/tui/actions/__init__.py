"""What the keys do: small classes of actions, mixed into the application. None of them imports Textual."""

from __future__ import annotations

from ddptop.tui.actions.lanes import LaneKeys
from ddptop.tui.actions.pages import KeepKeys
from ddptop.tui.actions.playback import PlaybackKeys
from ddptop.tui.actions.prompts import PromptKeys
from ddptop.tui.actions.ranks import RankKeys
from ddptop.tui.actions.runs import RunKeys
from ddptop.tui.actions.views import ViewKeys


class Steer(ViewKeys, LaneKeys, RankKeys, PlaybackKeys, PromptKeys, KeepKeys, RunKeys):
    """Mixed into the application."""


GONE_EVERY_S = 0.5
"""Between two looks at whether the terminal is still there: Textual reads a dead one in a tight loop."""

FIRST_LOOK_S, FIRST_LOOKS = 0.05, 40
"""For two seconds the first frame is looked for this often, not 4 times a second: a person waits for it."""
