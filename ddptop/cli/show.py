"""Shows a source of frames: as the screen, a picture, JSON or a line a second.

Imported modules are kept out of garbage collections, which would delay keys.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.cli import first_picture
from ddptop.cli.errors import CliError, Exit, note
from ddptop.cli.web import in_browser
from ddptop.protocol.outlets import print_json, print_text
from ddptop.protocol.vocabulary import ENDED

if TYPE_CHECKING:
    from ddptop.cli.settings import Settings
    from ddptop.frames.frame import Frame
    from ddptop.sources.base import Source
    from ddptop.tui.app import DdptopApp, Guide


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Run the block without garbage collections, and leave its objects out of later ones.

    For imports. Those of the screen start seventy collections, 36 of 200 ms, that free next to nothing; and
    every full collection afterwards would delay a key by 23 ms for 50,000 objects that are never freed.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


ALLOCATIONS = 20_000
"""Time between two searches of Python's for unused cycles of objects while the screen is shown. A frame of
4,096 ranks makes some 2,000 objects, which are in none: at Python's own number these searches took 5 % of the
viewer's CPU time."""

FIRST_FRAME_S = 5.0
"""A collector sends its first frame within 0.25 s; one that is busy or being restarted gets some more."""

POLL_S = 0.05
"""How often a source is asked for a newer frame: asking costs nothing."""

PIPE_COLUMNS = 100
"""Width of a picture that no terminal limits."""

GONE_S = 10.0
"""A collector that died is restarted within seconds; after this it will not be."""

LAST_FRAME_S = 1.0
"""How long a frame is waited for once the run's launcher has ended: its collector has ended before it."""

BLIND_TERMINALS = frozenset({"", "dumb", "unknown"})
"""Values of TERM without cursor movement."""


class Mode(Enum):
    """What to do with the frames."""

    SCREEN = "screen"
    ONCE = "once"
    JSON = "json"
    WATCH = "watch"


def choose_mode(options: argparse.Namespace, *, live: bool) -> Mode:
    """What the options ask for, or else what the terminal allows. Raises CliError if they contradict."""
    if options.watch and (options.once or options.json):
        raise CliError("--watch goes on while --once and --json end at once: choose one", Exit.USAGE)
    if options.json:
        return Mode.JSON
    if options.once:
        return Mode.ONCE
    if options.watch:
        return Mode.WATCH
    # A browser has no terminal, and Textual's driver draws for it.
    if in_browser() or (has_terminal() and os.environ.get("TERM", "") not in BLIND_TERMINALS):
        return Mode.SCREEN
    # Without a screen: a live run goes on, a recording has a single end.
    return Mode.WATCH if live else Mode.ONCE


def has_terminal() -> bool:
    """Whether a user is at a terminal. stderr counts too: that is where Textual draws."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def show_source(
    source: Source,
    mode: Mode,
    settings: Settings,
    *,
    until: threading.Event | None = None,
    view: str | None = None,
    guide: Guide | None = None,
) -> int:
    """Start the source, show it until it ends or the user quits, close it. Returns the exit code.

    `until`: set when the process that makes the frames has ended. A screen stays after the end of a run, but
    closes then; everything else waits for frames at least until then.
    `view`: the one that the screen begins with, whatever the settings say. `guide`: what the screen is to say
    of a frame in a line above its keys; empty: nothing.
    """
    with started_source(source):
        if mode is Mode.SCREEN:
            return _show_screen(source, settings, until, view, guide)
        if mode is Mode.WATCH:
            return _print_changes(source, settings, until)
        return print_frame(first_frame(source, until=until), mode, settings)


def print_frame(frame: Frame, mode: Mode, settings: Settings) -> int:
    """Print one frame: as JSON, or as a picture."""
    if mode is Mode.JSON:
        from ddptop.frames.snapshot import snapshot

        print_json(snapshot(frame))
    else:
        from ddptop.render.plain import draw_frame

        width = shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns
        color = settings.color and sys.stdout.isatty()
        print_text(draw_frame(frame, width, settings.ascii, color), color=color)
    return Exit.DONE


def first_frame(
    source: Source, patience_s: float = FIRST_FRAME_S, until: threading.Event | None = None
) -> Frame:
    """Wait for a frame, at least until the event `until`.

    Raises CliError, with the reason that the source gives, when none comes in time.
    """
    deadline = time.monotonic() + patience_s
    while (frame := source.latest()) is None:
        if time.monotonic() > deadline and _is_over(until):
            reason = f" ({status})" if (status := source.status()) else ""
            raise CliError(f"no answer from the run in {patience_s:g} s{reason}; try again")
        time.sleep(POLL_S)
    return frame


def _is_over(until: threading.Event | None) -> bool:
    """Whether there is no event to wait for, or it is set."""
    return until is None or until.is_set()


@contextmanager
def started_source(source: Source) -> Iterator[None]:
    """The source works in the block, and is closed after it."""
    source.start()
    try:
        yield
    finally:
        source.close()


def _show_screen(
    source: Source,
    settings: Settings,
    until: threading.Event | None,
    view: str | None,
    guide: Guide | None,
) -> int:
    if not settings.color:
        # The screen asks Textual, and that reads it on import.
        os.environ["NO_COLOR"] = "1"
    gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
    with without_garbage_collection():
        from ddptop.cli import settings as remembered
        from ddptop.cli.runs import MachineRuns
        from ddptop.tui.app import DdptopApp
        from ddptop.tui.scene import Place
        from ddptop.tui.terminal import letters_in_their_cells, title_given_back

    place = Place(view or settings.view)
    place.sort, place.inverted = settings.sort.removeprefix("-"), settings.sort.startswith("-")
    place.columns = {word[1:]: word[0] == "+" for word in settings.columns.split(",") if word}
    place.charts.log_loss = {"on": True, "off": False}.get(settings.log)
    try:
        app = DdptopApp(
            source,
            rate_hz=settings.rate,
            ascii_only=settings.ascii,
            theme=settings.theme,
            mouse=settings.mouse,
            bell=settings.bell,
            place=place,
            runs=MachineRuns(),
            save_to=None if settings.save_to is None else Path(settings.save_to),
            guide=guide,
        )
    except ValueError as problem:  # no such theme
        raise CliError(f"{problem}; ddptop config shows where it was set", Exit.USAGE) from None
    try:
        with ExitStack() as stack:
            stack.enter_context(letters_in_their_cells(sys.__stderr__))
            stack.enter_context(title_given_back(sys.__stderr__ if settings.bell else None))
            stack.enter_context(_closed_on(until, app))
            stack.enter_context(failures_shown(app))
            # The terminal's second page stays: the screen draws on it.
            first_picture.leave_to_screen()
            app.run()
    # Also after an error, so that the terminal has what the screen could not show.
    finally:
        for line in app.failures:
            note(line)
        app.wait_for_threads()
        # The user has opened another run, whose source nobody else closes.
        if app.source is not source:
            app.source.close()
    try:
        remembered.remember_settings(app, settings)
    except OSError as problem:
        note(f"theme and columns cannot be remembered: {problem}")
    return app.return_code or Exit.DONE


@contextmanager
def failures_shown(app: DdptopApp) -> Iterator[None]:
    """Show on the screen when an internal error ends some thread: a traceback would be drawn over it."""
    from ddptop.sources.base import error_line

    def show_failure(ended: threading.ExceptHookArgs) -> None:
        if ended.exc_value is not None:
            app.later(partial(app.thread_failed, error_line(ended.exc_value)))

    before, threading.excepthook = threading.excepthook, show_failure
    try:
        yield
    finally:
        threading.excepthook = before


@contextmanager
def _closed_on(until: threading.Event | None, app: DdptopApp) -> Iterator[None]:
    """Close the app when the event comes, whatever thread sets it."""
    if until is None:
        yield
        return
    from textual.messages import ExitApp

    has_left = threading.Event()

    def wait() -> None:
        # Polled, because nothing else can wait for two events.
        while not has_left.wait(POLL_S):
            if until.is_set() and app.is_running:
                app.post_message(ExitApp())
                return

    thread = threading.Thread(target=wait, name="ddptop-until")
    thread.start()
    try:
        yield
    finally:
        has_left.set()
        thread.join()


def _print_changes(source: Source, settings: Settings, until: threading.Event | None) -> int:
    from ddptop.render.plain import watch_line
    from ddptop.render.text import to_ascii

    due = time.monotonic()
    for frame in follow_frames(source, until):
        if _is_last_frame(frame) or time.monotonic() >= due:
            line = watch_line(frame)
            print_text(to_ascii(line) if settings.ascii else line, flush=True)
            # Counted from the last due moment, so that a line a second stays one.
            due += 1.0
    return Exit.DONE


def follow_frames(source: Source, until: threading.Event | None = None) -> Iterator[Frame]:
    """The newest frame, every POLL_S, until the run's last one.

    Raises CliError where no frame comes, and where its collector is gone for good.
    """
    frame = first_frame(source, until=until)
    well = time.monotonic()
    yield frame
    while not _is_last_frame(frame):
        time.sleep(POLL_S)
        newer, now_s = source.latest() or frame, time.monotonic()
        trouble = source.status()
        # A frame that is only older, marked as lost, is no sign of life.
        if trouble is None or (newer is not frame and newer.run.state != "lost"):
            well = now_s
        elif now_s - well > (GONE_S if until is None else LAST_FRAME_S) and _is_over(until):
            if frame.run.state in ENDED:
                return
            raise CliError(trouble)
        frame = newer
        yield frame


def _is_last_frame(frame: Frame) -> bool:
    from ddptop.sources.base import is_over

    played = frame.playback
    if played is not None and not played.growing:
        return played.position_s >= played.duration_s
    return is_over(frame.run)
