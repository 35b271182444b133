"""What every view of the screen declares and does, and the collection of them.

A view is one object in one module of `tui/views/`: it holds its keys, its picture, and what moving, Enter,
Esc, a click, a filter and a search do in it. The user's own state is in the `Place`. `tui/all_views.py` lists
the views.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from ddptop.tui.keys import COMMON_KEYS, RECORDING_KEYS, Do, PaletteEntry, ScreenKey
from ddptop.tui.page_figures import RANK_PAGE_FIGURES, PageFigures
from ddptop.tui.scene import Page, Place, Scene
from ddptop.tui.screen import Screen

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame

FAR = 1_000_000
"""More lines than any list has."""


class View:
    """A view of which only `name`, `answers` and `body` are its own: a list or a text with one cursor."""

    name: ClassVar[str]
    """By which it is opened: in the palette, by `--view`, in the name of a saved screen."""
    answers: ClassVar[str]
    """What it shows, for help and palette."""
    number: ClassVar[str] = ""
    """The key that opens it on every page; empty: it is opened in another way."""
    always_named: ClassVar[bool] = False
    """Whether the line of the views names it on every page; else only while it is open."""
    goes_back: ClassVar[bool] = False
    """Whether Esc leads to the page before instead of the overview."""
    left_by_its_key: ClassVar[bool] = False
    """Whether its key, pressed again, does what Esc does."""
    follows_start: ClassVar[bool] = False
    """Whether the page of the start takes its place once that is due, and the overview once it is not."""
    explains_start: ClassVar[bool] = False
    """Whether it says how far the start is: `w` leads on from it, to what the ranks wait for."""
    lists_runs: ClassVar[bool] = False
    """Whether the runs of this machine are looked up while it is open."""
    shows_single_steps: ClassVar[bool] = False
    """Whether frames need the single steps of the rank under the cursor."""
    filters_here: ClassVar[bool] = False
    """Whether a filter is typed on this page. Elsewhere `/` filters the ranks of the overview."""
    filter_hint: ClassVar[str] = "ranks to show: 3, 8-15, a host, a device, a state, !not, /regex/"
    marks_matches: ClassVar[bool] = True
    """Whether the matches of a filter or search are marked, and `n` and `N` go through them."""
    in_box: ClassVar[bool] = True
    """Whether a box closes its panels on a large screen."""
    figures: PageFigures = RANK_PAGE_FIGURES
    """Its figures, which F1 explains."""

    def __init__(self) -> None:
        self.keys: tuple[ScreenKey, ...] = self.own_keys()
        """Keys that mean something else here than on other pages, or nothing there."""

    def own_keys(self) -> tuple[ScreenKey, ...]:
        """Its keys, made once."""
        return ()

    @property
    def number_key(self) -> ScreenKey:
        """The key that opens it."""
        return ScreenKey(
            self.number, self.number, Do.VIEW(self.name), self.name, f"{self.name}: {self.answers}"
        )

    # What it shows.

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """The lines of the view, `height` at most, and where things are in them. Changes nothing."""
        raise NotImplementedError

    def requested_detail(self, place: Place) -> str:
        """What frames have to contain for the view, as a text for `Source.request`; empty: nothing."""
        del place
        return ""

    def text_to_save(self, frame: Frame) -> str | None:
        """What the key `s` writes instead of the page's own text; None: the page."""
        del frame
        return None

    def palette_entries(self) -> tuple[PaletteEntry, ...]:
        """What the palette offers of it on every page."""
        return ()

    # The key line.

    def exists(self, scene: Scene | None) -> bool:
        """Whether the run has such a page. None: no frame has come yet."""
        del scene
        return True

    def label(self, scene: Scene | None) -> str:
        """Its name in the key line."""
        del scene
        return self.name

    def keys_of_use(self, scene: Scene | None) -> tuple[ScreenKey, ...]:
        """Its own keys that do something now."""
        del scene
        return self.keys

    # Opening and leaving it.

    def on_open(self, screen: Screen) -> None:
        """Prepare the place when the view is opened from another one."""

    def on_close(self, place: Place) -> None:
        """Prepare the place when another view is opened."""

    def step_back(self, place: Place) -> bool:
        """Undo what was last chosen in the view (Esc); return False where there is nothing to undo."""
        if not self.filters_here or not self.filter_text(place):
            return False
        self.set_filter(place, "")
        return True

    # Cursor.

    def move(self, screen: Screen, lines: int) -> None:
        """Move the cursor down."""
        screen.place.scroll.cursor = max(0, screen.place.scroll.cursor + lines)
        screen.repaint()

    def move_pages(self, screen: Screen, pages: int) -> None:
        """Move the cursor by a screenful."""
        self.move(screen, pages * screen.place.scroll.page)

    def move_sideways(self, screen: Screen, by: int) -> None:
        """To the right or left: the neighbouring view, of those with a number."""
        if self.number:
            screen.act(Do.NEXT_VIEW(by))

    def move_to_end(self, screen: Screen, end: int) -> None:
        """To the start (0) or end (1) of the recording, else of the list."""
        if screen.playback is not None:
            screen.source.seek(share=float(end))
        else:
            self.move(screen, FAR if end else -FAR)

    def point_at(self, place: Place, target: int) -> None:
        """A click on a line with this target."""
        place.scroll.cursor = target

    def open_chosen(self, screen: Screen) -> None:
        """Enter: open what is under the cursor."""

    def rank_under_cursor(self, place: Place) -> int:
        """The rank that is followed or compared."""
        return place.rank

    def compare_rank(self, screen: Screen) -> None:
        """Mark the rank under the cursor; with another one marked, compare the two."""
        place = screen.place
        place.rank = self.rank_under_cursor(place)
        if place.marked is None:
            place.marked = place.rank
            screen.show_note(f"rank {place.rank} is marked: c on another rank compares the two")
        elif place.marked == place.rank:
            place.marked = None
            screen.show_note(f"rank {place.rank} is no longer marked")
        else:
            screen.open_view("compare")

    # Mouse.

    def hover(self, place: Place, x: int, y: int) -> bool:
        """Follow the mouse, whose button is held; return whether the picture has changed."""
        del place, x, y
        return False

    def click(self, screen: Screen, x: int, y: int, *, twice: bool) -> bool:
        """A click on a cell of the screen; False where a click on its line is meant."""
        del twice
        if not self.hover(screen.place, x, y):
            return False
        screen.repaint()
        return True

    # Filter, search and order.

    def filter_text(self, place: Place) -> str:
        """The filter of what it lists."""
        return place.filter

    def set_filter(self, place: Place, text: str) -> None:
        """Filter what it lists."""
        place.filter = text

    def go_to_match(self, screen: Screen, by: int) -> None:
        """Go to the next match of the last search, or to the one before. A page of text finds it when it
        is drawn."""
        screen.place.seek = by
        screen.repaint()

    def sort_by(self, place: Place, column: str, *, inverted: bool = False) -> None:
        """Sort what it lists; nothing where it has no order to choose."""

    def sorted_by(self, place: Place) -> tuple[str, bool] | None:
        """The column that the view is sorted by, and whether in reverse order; None where there is no
        choice."""
        del place
        return None

    def can_sort_by(self, column: str) -> bool:
        """Whether it can be sorted by a column with this title."""
        del column
        return False


class Views:
    """The views of the screen, by name and in the order of their number keys."""

    def __init__(self, *views: View) -> None:
        self._views = {view.name: view for view in views}

    def add(self, view: View) -> None:
        """Have one more view."""
        self._views[view.name] = view

    def remove(self, name: str) -> None:
        """Have one view less."""
        del self._views[name]

    def __getitem__(self, name: str) -> View:
        """The view of a name."""
        return self._views[name]

    def __iter__(self) -> Iterator[View]:
        """All views."""
        return iter(self._views.values())

    @property
    def numbered(self) -> tuple[View, ...]:
        """The views with a number key, in the order of the numbers."""
        return tuple(view for view in self if view.number)

    @property
    def numbered_names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(view.name for view in self.numbered)

    @property
    def shared_keys(self) -> tuple[ScreenKey, ...]:
        """The keys that mean the same on every page, in the order of the help."""
        return (*(view.number_key for view in self.numbered), *COMMON_KEYS)

    @property
    def all_keys(self) -> tuple[ScreenKey, ...]:
        """Every key of every view and of recordings."""
        return (*self.shared_keys, *RECORDING_KEYS, *(key for view in self for key in view.keys))

    def has_key(self, name: str) -> bool:
        """Whether a key, by Textual's name, does something in some view."""
        return any(key.keys == name for key in self.all_keys)

    def meaning(self, name: str, view: str, *, replay: bool) -> ScreenKey | None:
        """What a key, by Textual's name, does in a view; None where it does nothing.

        `replay`: whether a recording is played. The view's own meaning comes first, then a recording's.
        """
        # In this order: `g` goes to a step in a recording and to the top of the list elsewhere.
        keys = (*self[view].keys, *(RECORDING_KEYS if replay else ()), *self.shared_keys)
        return next((key for key in keys if key.keys == name), None)

    def views_with_key(self, name: str) -> tuple[str, ...]:
        """The names of the views that have a meaning of their own for a key, by Textual's name."""
        return tuple(view.name for view in self if any(key.keys == name for key in view.keys))

    def next_numbered(self, name: str, by: int) -> View:
        """The neighbour of a view with a number; from any other page, the first view."""
        names = self.numbered_names
        index = names.index(name) + by if name in names else 0
        return self.numbered[index % len(names)]
