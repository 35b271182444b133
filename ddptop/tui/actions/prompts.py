"""Filters and searches: the next match, and the keys while a prompt is open."""

from __future__ import annotations

from ddptop.tui import match
from ddptop.tui.actions.base import ActionsBase
from ddptop.tui.actions.playback import parse_target
from ddptop.tui.keys import Do
from ddptop.tui.prompt import Prompt


class PromptActions(ActionsBase):
    """Actions of prompts."""

    def action_filter(self) -> None:
        """Ask for a filter of what the view lists, else of the ranks of the overview."""
        if not self.view.filters_here:
            self.open_view("overview")
        view = self.view
        self.place.prompt = Prompt("filter", view.filter_hint, view.filter_text(self.place))
        self.repaint()

    def action_search(self) -> None:
        """Ask for a text to search for on the page."""
        self.place.prompt = Prompt("search", "text or /regex/; n and N go on to the next", "")
        self.repaint()

    def action_match(self, by: int) -> None:
        """The next line or rank that matches the last search."""
        if self.place.searched:
            self.view.go_to_match(self, by)
        else:
            self.show_note("no search yet; press /")

    def type_key(self, prompt: Prompt, key: str, character: str | None) -> None:
        """A key while a prompt is open."""
        if key == "escape":
            self._cancel(prompt)
        elif key == "enter":
            self._answer(prompt)
        elif prompt.purpose == "palette" and key in ("up", "down", "pageup", "pagedown"):
            lines = {"up": -1, "down": 1, "pageup": -8, "pagedown": 8}[key]
            prompt.move(lines, len(self.palette(prompt.text)))
            self.repaint()
        else:
            prompt.edit(key, character)
            self.typed(prompt)

    def typed(self, prompt: Prompt) -> None:
        """The filter is applied while it is typed."""
        if prompt.purpose == "filter":
            self.view.set_filter(self.place, prompt.text)
        if prompt.purpose in ("filter", "search") and self.view.marks_matches:
            self.place.searched = prompt.text
        self.repaint()

    def _cancel(self, prompt: Prompt) -> None:
        self.place.prompt = None
        if prompt.purpose in ("filter", "search"):
            prompt.text = ""
            self.typed(prompt)
        self.repaint()

    def _answer(self, prompt: Prompt) -> None:
        """Enter. A prompt with an invalid text stays open and shows what is valid."""
        if prompt.purpose == "palette":
            self.act(Do.RUN_PALETTE(prompt.text, prompt.at))
            return
        goal, wrong = None, None
        if prompt.purpose == "go to" and prompt.text.strip():
            goal = parse_target(prompt.text, self.shown) if self.shown is not None else None
            wrong = f"{prompt.text[:20]!r} is no step, share (50%) or time (12:31)" if goal is None else None
        elif prompt.purpose in ("filter", "search"):
            wrong = match.error_in(prompt.text)
        if wrong is not None:
            # The reason stands where the hint stands, and a hint is only seen while nothing is typed.
            prompt.hint, prompt.text = wrong, ""
            self.typed(prompt)
            return
        self.place.prompt = None
        self.place.seek = 1 if prompt.purpose == "search" else 0
        if goal is not None:
            self.source.seek(step=goal.step, share=goal.share)
        self.repaint()
