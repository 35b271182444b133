"""Choosing another run, and the palette."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ddptop.frames.hosts import host_index
from ddptop.sources.base import error_line
from ddptop.sources.threads import new_thread, wait_for_ends
from ddptop.tui.actions.base import ActionsBase
from ddptop.tui.all_views import VIEWS
from ddptop.tui.keys import Do, PaletteEntry
from ddptop.tui.palette import find_entries
from ddptop.tui.prompt import Prompt
from ddptop.tui.scene import Place

if TYPE_CHECKING:
    from ddptop.sources.base import Source
    from ddptop.tui.runs import RunChoice

LOOKUP_INTERVAL_S = 2.0
"""While the picker is open: often enough to show runs that begin or end, and no load on a disk."""


class RunActions(ActionsBase):
    """Picker and palette. Slow work is done in threads, for which `wait_for_threads` waits."""

    threads: list[threading.Thread]
    failures: list[str]
    """Internal errors that ended a thread, in one line each."""
    _opening: str = ""
    _not_shown: Source | None = None
    """A run that was opened and is not shown yet: closed if the screen is left before."""
    _lookup_ended: threading.Event | None = None
    """Ends the thread that finds runs."""

    def action_pick(self) -> None:
        """Show all runs."""
        if self.view.lists_runs:
            self.act(Do.LEAVE())
            return
        if self.runs is None:
            self.show_note("no other runs can be opened from here")
            return
        self.open_view("picker")
        self.look_up()

    def action_palette(self) -> None:
        """Ask for a name."""
        if self.shown is None:
            return
        self.place.prompt = Prompt("palette", "view, rank 17, host, figure, column, theme, setting, run, key")
        if self.runs is not None and self.place.choices is None:
            self.look_up()
        self.repaint()

    def palette(self, typed: str) -> list[PaletteEntry]:
        """What the palette offers for some letters."""
        ranks = len(self.shown.ranks.state) if self.shown is not None else 0
        return find_entries(
            typed,
            self.place.view,
            themes=self.themes(),
            ranks=ranks,
            hosts=self._hosts(),
            choices=self.place.choices or (),
            replay=self.playback is not None,
        )

    def _hosts(self) -> Sequence[str]:
        """The names of the run's hosts, where it has several."""
        names = () if self.shown is None else host_index(self.shown.ranks.host).names
        return names if len(names) > 1 else ()

    def action_run_palette(self, typed: str, index: int) -> None:
        """Do the chosen line of the palette."""
        self.place.prompt = None
        offered = self.palette(typed)
        if offered:
            self.act(offered[min(index, len(offered) - 1)].action)
        else:
            self.show_note("no match")

    def look_up(self) -> None:
        """Find the runs, repeatedly while the picker is open; in a thread, because it opens recordings."""
        runs, place, ended = self.runs, self.place, threading.Event()
        assert runs is not None
        if self._lookup_ended is not None:
            self._lookup_ended.set()
        self._lookup_ended = ended

        def find() -> None:
            while not ended.is_set():
                choices: tuple[RunChoice, ...] = ()
                note = ""
                try:
                    choices = tuple(runs.choices())
                except ValueError as problem:
                    note = str(problem)
                self.later(partial(self._found, place, choices, note))
                if not VIEWS[place.view].lists_runs or ended.wait(LOOKUP_INTERVAL_S):
                    return

        self.start_thread(find, "ddptop-runs")

    def _found(self, place: Place, choices: tuple[RunChoice, ...], note: str) -> None:
        """In the screen's thread: the cursor stays on its run."""
        before, place.choices = place.listed, choices
        if before and VIEWS[place.view].lists_runs:
            under = before[min(place.scroll.cursor, len(before) - 1)]
            names = [(choice.name, choice.path) for choice in place.listed]
            if (under.name, under.path) in names:
                place.scroll.cursor = names.index((under.name, under.path))
        if note:
            place.note = note
        self.repaint()

    def action_switch(self, index: int | None = None) -> None:
        """Open another run: the one under the cursor, or the one of this number."""
        choices = self.place.listed if index is None else self.place.choices or ()
        index = self.place.scroll.cursor if index is None else index
        if self.runs is None or not 0 <= index < len(choices) or self._opening:
            return
        choice, runs = choices[index], self.runs
        self._opening = choice.name

        def open_it() -> None:
            try:
                source = runs.open(choice)
                source.start()
                self._not_shown = source
            except (ValueError, OSError) as problem:
                note = str(problem)
                self.later(lambda: self._opened(None, note))
            else:
                self.later(lambda: self._opened(source, ""))

        self.show_note(f"opening {choice.name}")
        self.start_thread(open_it, "ddptop-open")

    def _opened(self, source: Source | None, note: str) -> None:
        """In the screen's thread: the new run replaces the old one, which is closed in a thread."""
        self._opening, self._not_shown = "", None
        if source is None:
            self.show_note(note)
            return
        old, self.source = self.source, source
        # Closing may wait for a socket or a file, and the screen must not.
        self.start_thread(old.close, "ddptop-close")
        kept = self.place
        self.place = Place(sort=kept.sort, inverted=kept.inverted, choices=kept.choices)
        self.place.columns = kept.columns
        self.place.charts.log_loss = kept.charts.log_loss
        self.shown, self.frozen = None, False
        self.repaint()

    def start_thread(self, work: Callable[[], object], name: str) -> None:
        """Do slow work."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # shown as a note, or the user would wait in vain
                line = error_line(error)
                self.later(lambda: self.thread_failed(line))

        thread = new_thread(run, name)
        self.threads = [running for running in self.threads if running.is_alive()] + [thread]
        thread.start()

    def thread_failed(self, line: str) -> None:
        """In the screen's thread: a thread ended by an internal error."""
        self.failures.append(line)
        self._opening = ""
        self.show_note(line)

    def wait_for_threads(self) -> None:
        """Wait for the threads that are left, and close a run that was opened and not shown."""
        if self._lookup_ended is not None:
            self._lookup_ended.set()
        wait_for_ends(self.threads)
        if self._not_shown is not None:
            self._not_shown.close()

    def later(self, do: Callable[[], object]) -> None:
        """Run something in the screen's thread; nothing once it has ended."""
        raise NotImplementedError
