"""Filters and searches: the next match, and the keys while a prompt is open."""

from __future__ import annotations

from ddptop.frames.hosts import host_index
from ddptop.render.text import clean
from ddptop.tui import match
from ddptop.tui.actions.base import ActionsBase
from ddptop.tui.actions.playback import parse_target
from ddptop.tui.keys import Do
from ddptop.tui.prompt import Prompt
from ddptop.tui.scene import Scene
from ddptop.tui.views.events import listed, texts_of
from ddptop.tui.views.rank_order import ordered, passing


def next_rank(scene: Scene, by: int) -> int | None:
    """The rank that matches next, from the one under the cursor, in the table's order; None: none.

    Ranks that the filter hides do not count.
    """
    hits = set(passing(scene.frame.ranks, scene.place.searched))
    order = [
        rank for rank in ordered(scene, scene.place.scroll.page) if rank in hits or rank == scene.place.rank
    ]
    if not hits.intersection(order):
        return None
    at = order.index(scene.place.rank) if scene.place.rank in order else -1
    for further in range(1, len(order) + 1):
        rank = order[(at + by * further) % len(order)]
        if rank in hits:
            return rank
    return None


def next_line(scene: Scene, by: int) -> int | None:
    """The line of the events after (or before) the cursor that matches; None: none."""
    found = listed(scene.frame, scene.place.event_filter)
    hits = match.matching(scene.place.searched, texts_of(found))
    cursor = scene.place.scroll.cursor
    ahead = [at for at in hits if (at - cursor) * by > 0]
    return (min(ahead) if by > 0 else max(ahead)) if ahead else (hits[0 if by > 0 else -1] if hits else None)


class PromptActions(ActionsBase):
    """Actions of prompts."""

    def action_filter(self) -> None:
        """Ask for a filter: of events or runs on their pages, else of ranks."""
        place = self.place
        if place.view == "events":
            hint = "events to show: rank 3, straggler, !joined, /rank [01]\\b/"
            place.prompt = Prompt("filter", hint, place.event_filter)
        elif place.view == "picker":
            hint = "runs to list: a name, a script, live, !failed, /regex/"
            place.prompt = Prompt("filter", hint, place.run_filter)
        elif place.view == "hosts":
            hint = "hosts to show: a name, unreachable, !live, records locally, /regex/"
            place.prompt = Prompt("filter", hint, place.hosts.filter)
        else:
            if place.view not in ("overview", "heat"):
                self.open_view("overview")
            hint = "ranks to show: 3, 8-15, a host, a device, a state, !not, /regex/"
            place.prompt = Prompt("filter", hint, place.filter)
        self.repaint()

    def action_search(self) -> None:
        """Ask for a text to search for on the page."""
        self.place.prompt = Prompt("search", "text or /regex/; n and N go on to the next", "")
        self.repaint()

    def action_match(self, by: int) -> None:
        """The next line or rank that matches the last search."""
        place = self.place
        if not place.searched:
            self.show_note("no search yet; press /")
        elif place.view == "overview":
            rank = next_rank(self.scene(), by) if self.shown is not None else None
            if rank is not None:
                index = host_index(self.scene().frame.ranks.host)
                place.reveal(rank, index.names[index.of_rank[rank]])
            self.show_note("" if rank is not None else f"no rank matches {clean(place.searched)!r}")
        elif place.view == "events":
            line = next_line(self.scene(), by) if self.shown is not None else None
            place.scroll.cursor = line if line is not None else place.scroll.cursor
            self.repaint()
        else:
            place.seek = by
            self.repaint()

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
        place = self.place
        if prompt.purpose == "filter":
            if place.view == "events":
                place.event_filter = prompt.text
            elif place.view == "picker":
                place.run_filter = prompt.text
            elif place.view == "hosts":
                place.hosts.filter = prompt.text
            else:
                place.filter = prompt.text
        if prompt.purpose in ("filter", "search") and place.view != "picker":
            place.searched = prompt.text
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
            prompt.hint, prompt.text = wrong, ""
            self.typed(prompt)
            return
        self.place.prompt = None
        self.place.seek = 1 if prompt.purpose == "search" else 0
        if goal is not None:
            self.source.seek(step=goal.step, share=goal.share)
        self.repaint()
