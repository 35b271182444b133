"""The keys' actions: they move the place, or ask the source to move the recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.frames import Happening
from ddptop.tui.paint.trouble import PAGE_KINDS
from ddptop.tui.prompt import Prompt, parse_place
from ddptop.tui.scene import TO_STALL, VIEWS, Place, ViewName
from ddptop.tui.views.events import listed
from ddptop.tui.views.saved import saved

if TYPE_CHECKING:
    from textual.app import App

    from ddptop.analysis.frames import Alert, Frame, Playback
    from ddptop.sources.base import Source

    class _Host(App[None]):
        """What the actions need of the application."""

        source: Source
        place: Place
        shown: Frame | None
        frozen: bool

        def repaint(self) -> int: ...
else:
    _Host = object

SLOWEST, FASTEST = 0.25, 64.0
"""Playback speeds; powers of two between them."""

NEAR_MARK = 1e-3
"""Share of a recording around the present place in which a mark counts as reached already."""


class Steer(_Host):
    """Mixed into the application."""

    @property
    def playback(self) -> Playback | None:
        """Where the recording stands, where there is one."""
        return self.shown.playback if self.shown is not None else None

    def action_view(self, name: ViewName) -> None:
        """Open one of the numbered views."""
        self._open(name)

    def action_help(self) -> None:
        """Open the help, or leave it."""
        if self.place.view == "help":
            self._open(self.place.before)
            return
        self.place.before = self.place.view
        self._open("help")

    def action_open(self) -> None:
        """Open the page of the rank under the cursor, or what the event under it is about."""
        if self.place.view == "overview" and self.place.rank in self.place.order:
            self._open("rank")
        elif self.place.view == "events" and self.shown is not None:
            found = listed(self.shown)
            if found:
                self._open_event(found[min(self.place.scroll.cursor, len(found) - 1)])

    def action_threads(self) -> None:
        """On the stall page: all threads and every call, or what tells most."""
        if self.place.view == "stall":
            self.place.every = not self.place.every
            self.repaint()

    def action_save(self) -> None:
        """Write the stall page into a file and say where."""
        if self.place.view == "stall" and self.shown is not None:
            self.place.note = saved(self.shown)
            self.repaint()

    def action_leave(self) -> None:
        """One step back: from a page, then from a filter."""
        if self.place.view == "help":
            self._open(self.place.before)
        elif self.place.view != "overview":
            self._open("overview")
        elif self.place.filter:
            self.place.filter = ""
            self.repaint()

    def action_move(self, lines: int) -> None:
        """Move the cursor."""
        place = self.place
        if place.view == "overview":
            self._to_row(place.scroll.cursor + lines)
        elif place.view == "rank":
            self.action_aside(1 if lines > 0 else -1)
        else:
            place.scroll.cursor = max(0, place.scroll.cursor + lines)
            self.repaint()

    def action_page(self, pages: int) -> None:
        """Move the cursor by a screenful."""
        if self.place.view != "rank":
            self.action_move(pages * self.place.scroll.page)

    def action_aside(self, by: int) -> None:
        """The neighbouring view, or on a rank's page the neighbouring rank."""
        place = self.place
        if place.view == "rank":
            if not place.order:
                return
            at = place.order.index(place.rank) if place.rank in place.order else 0
            place.rank = place.order[(at + by) % len(place.order)]
            self.source.focus(place.rank)
            self.repaint()
        elif place.view in VIEWS:
            self._open(VIEWS[(VIEWS.index(place.view) + by) % len(VIEWS)])

    def action_end(self, which: int) -> None:
        """Start (0) or end (1) of the recording, else of the list."""
        if self.playback is not None:
            self.source.seek(share=float(which))
        elif self.place.view != "rank":
            self.action_move(1_000_000 if which else -1_000_000)

    def action_sort(self, by: int) -> None:
        """Sort the ranks by the next column on the screen."""
        place = self.place
        if place.view != "overview" or not place.sortable:
            return
        at = place.sortable.index(place.sort) if place.sort in place.sortable else 0
        place.sort = place.sortable[(at + by) % len(place.sortable)]
        self.repaint()

    def action_pause(self) -> None:
        """Hold the recording; where there is none, hold the picture."""
        if self.playback is not None:
            self.source.play()
        elif self.shown is not None:
            self.frozen = not self.frozen
        self.repaint()

    def action_step(self, by: int) -> None:
        """Some steps on or back in the recording."""
        if self.playback is not None:
            self.source.seek(by_steps=by)

    def action_mark(self, by: int) -> None:
        """The next mark of the recording, or the one before."""
        played = self.playback
        if played is None or played.duration_s <= 0:
            return
        here = played.position_s / played.duration_s
        shares = sorted(share for share, _ in played.marks)
        ahead = [share for share in shares if share > here + NEAR_MARK]
        behind = [share for share in shares if share < here - NEAR_MARK]
        if by > 0 and ahead:
            self.source.seek(share=ahead[0])
        elif by < 0 and behind:
            self.source.seek(share=behind[-1])

    def action_faster(self, by: int) -> None:
        """Twice or half the speed."""
        played = self.playback
        if played is not None:
            self.source.set_speed(min(FASTEST, max(SLOWEST, played.speed * 2.0**by)))

    def action_filter(self) -> None:
        """Ask for a filter of ranks."""
        if self.place.view in ("rank", "help"):
            return
        self._open("overview")
        hint = "ranks to show: 3, 8-15, a host, a device, a state"
        self.place.prompt = Prompt("filter", hint, self.place.filter)
        self.repaint()

    def action_go(self) -> None:
        """Ask for a place in the recording."""
        if self.playback is not None:
            self.place.prompt = Prompt("go to", "a step, or a share of the recording such as 50%")
            self.repaint()

    def type_key(self, prompt: Prompt, key: str, character: str | None) -> None:
        """A key while a prompt is open."""
        if key == "ctrl+c":
            self.exit()
        elif key == "escape":
            self.place.prompt = None
            self.place.filter = "" if prompt.purpose == "filter" else self.place.filter
            self.repaint()
        elif key == "enter":
            self._answer(prompt)
        else:
            prompt.edit(key, character)
            self.typed(prompt)

    def typed(self, prompt: Prompt) -> None:
        """The filter is applied while it is typed."""
        if prompt.purpose == "filter":
            self.place.filter = prompt.text
        self.repaint()

    def _answer(self, prompt: Prompt) -> None:
        """Enter. A prompt that cannot be read stays open and says what it wants."""
        place = parse_place(prompt.text) if prompt.purpose == "go to" else None
        if prompt.purpose == "go to" and prompt.text.strip() and place is None:
            prompt.hint = f"{prompt.text[:20]!r} is neither a step nor a share such as 50%"
            prompt.text = ""
        else:
            self.place.prompt = None
        if place is not None:
            self.source.seek(step=place[0], share=place[1])
        self.repaint()

    def choose(self, target: int, enter: bool) -> None:
        """A click on a line of a list."""
        if target == TO_STALL:
            self._open("stall")
            return
        if self.place.view == "overview":
            self.place.rank = target
            if enter:
                self._open("rank")
        else:
            self.place.scroll.cursor = target
            if enter:
                self.action_open()
        self.repaint()

    def _open_event(self, event: Alert | Happening) -> None:
        """Its moment in a recording, and the page that tells more about it."""
        played = self.playback
        if played is not None and played.duration_s > 0 and isinstance(event, Happening):
            assert self.shown is not None
            begin = self.shown.unix_s - played.position_s
            self.source.seek(share=min(1.0, max(0.0, (event.unix_s - begin) / played.duration_s)))
        if event.kind in PAGE_KINDS:
            self._open("stall")
        elif event.rank is not None and played is None:
            self.place.rank = event.rank
            self._open("rank")

    def _to_row(self, row: int) -> None:
        order = self.place.order
        if order:
            self.place.rank = order[min(max(row, 0), len(order) - 1)]
            self.repaint()

    def _open(self, name: ViewName) -> None:
        self.place.view = name
        self.place.note = ""
        self.source.focus(self.place.rank if name == "rank" else None)
        self.repaint()
