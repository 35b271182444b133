"""Finds the run or recording that the user names, and opens recordings."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.cli.commands.base import COMPARES
from ddptop.cli.errors import CliError, Exit, note
from ddptop.frames.numbers import percent
from ddptop.protocol.outlets import print_over

if TYPE_CHECKING:
    from ddptop.host.runs import RunFile
    from ddptop.protocol.messages import Run
    from ddptop.recording.reader import Recording

SUFFIX = ".ddptop"
"""Suffix of a recording's file name; the rest is the name of the run."""

WAIT_S = 10.0
"""How long a run is waited for while a launcher is starting it: importing torch takes two seconds, on a
loaded machine or a cold disk several times that."""

POLL_S = 0.2
"""Time between two checks whether the run is there."""


@dataclass(frozen=True)
class RecordingEntry:
    """A recording in the state directory."""

    name: str
    path: Path


def keep_recording(path: Path, use: str) -> None:
    """Raise CliError (2) if what is to be written would replace a recording. `use`: what to do instead."""
    from ddptop.recording.format import MAGIC

    with suppress(OSError):
        # A FIFO or a device is not read: it might be waited for, for ever.
        head = b""
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(len(MAGIC))
        if head == MAGIC:
            raise CliError(f"{path} is a recording, which is not replaced: {use}", Exit.USAGE)


def find_live() -> list[RunFile]:
    """Runs with a living collector, newest first, then runs of which only an agent is on this host.

    Raises CliError (4) if the run directory is not safe.
    """
    from ddptop.host.folders import RunDirectoryError
    from ddptop.host.runs import live_runs

    try:
        # Stable: within each kind they stay newest first.
        return sorted(live_runs(), key=lambda run: run.collector_host is not None)
    except RunDirectoryError as error:
        raise CliError(str(error), Exit.REFUSED) from None


def with_collector(running: Sequence[RunFile]) -> Sequence[RunFile]:
    """The runs that are collected on this host; if there are none, those with an agent here."""
    return [run for run in running if run.collector_host is None] or running


def collected_elsewhere(run: RunFile) -> str:
    """Where a run is shown that has only an agent on this host, in a sentence."""
    if not run.collector_host:
        return f"run {run.name} is collected on another host, which is not known here yet"
    host = run.collector_host
    return f"run {run.name} is collected on {host}: ddptop --connect {host}/{run.name}"


def find_recorded(running: Iterable[RunFile]) -> list[RecordingEntry]:
    """Recordings in the state directory, newest first, without those that the `running` runs still write."""
    from ddptop.host.folders import RunDirectoryError, state_directory, state_path

    try:
        folder = state_directory()
    except RunDirectoryError as error:
        if not state_path().exists():  # it cannot be made: a read-only home
            return []
        raise CliError(str(error), Exit.REFUSED) from None
    # A recording that is being written is listed as its live run.
    busy = {str(run.recording) for run in running}
    paths = [path for path in folder.glob(f"*{SUFFIX}") if str(path) not in busy]
    paths.sort(key=modified_s, reverse=True)
    return [RecordingEntry(path.name.removesuffix(SUFFIX), path) for path in paths]


def find_run(word: str, commands: Iterable[str] = ()) -> RunFile | RecordingEntry:
    """The run of this name or id, or of the beginning of one. A live run comes before a recording.

    If several match, it is the newest, and a line on stderr says so. Raises CliError (3) if none matches: its
    message has what that run waits for, or the run, recording or one of `commands` with the nearest name.
    """
    running = find_live()
    kept = find_recorded(running)
    for kind, matches in _match_rounds(word, running, kept):
        if matches:
            if len(matches) > 1:
                note(f"{len(matches)} {kind} match {word!r}; this is the newest, {matches[0].name}")
            return matches[0]
    if meetings := find_meetings(running, word):
        raise CliError("; ".join([*meetings, "look again later"]), Exit.NOT_FOUND)
    names = [run.name for run in running] + [item.name for item in kept]
    raise CliError(_no_such(word, [*names, *commands]), Exit.NOT_FOUND)


def is_path(word: str) -> bool:
    """Whether a word is a path rather than the name of a run: it has a slash, or the suffix of recordings."""
    return os.sep in word or word.endswith(SUFFIX)


def find_run_or_file(word: str, commands: Iterable[str] = ()) -> RunFile | RecordingEntry | Path:
    """The run of `find_run`, or the path that a word is. A run comes before a file of the current folder that
    has the same name, but not the suffix of recordings.

    Raises CliError (3) where there is neither.
    """
    if is_path(word):
        return Path(word)
    try:
        return find_run(word, commands)
    except CliError:
        if Path(word).exists() and word not in OTHER_WORDS:
            return Path(word)
        raise


def newest_recording() -> Path:
    """The recording that was written to last, also that of a live run. A line on stderr names it.

    Files that cannot be read are passed over. Raises CliError (3) if there is none.
    """
    running = find_live()
    # That of a live run is the newest of all, though its file is left out of the others.
    being_written = [Path(run.recording) for run in running if run.recording is not None]
    paths = sorted(being_written, key=modified_s, reverse=True) + [
        item.path for item in find_recorded(running)
    ]
    for path in paths:
        if is_readable(path):
            note(f"the newest recording: {path.name.removesuffix(SUFFIX)}")
            return path
    if running:
        raise CliError(f"no recording on this machine: {_why_none_here(running[0])}", Exit.NOT_FOUND)
    raise CliError(
        "no live run and no recording on this machine; start one with ddptop-run SCRIPT", Exit.NOT_FOUND
    )


def _why_none_here(run: RunFile) -> str:
    """Why this machine has no recording of a live run, in a sentence without its full stop."""
    if run.collector_host is not None:
        return f"{collected_elsewhere(run)}; its recording is there"
    return f"{run.name} is live and not being recorded"


def recording_of(word: str | None) -> Path:
    """The recording that a user means by a path, by a run's name or id or how it begins; None: the newest.

    Raises CliError: 3 where there is none, 1 where the run does not record.
    """
    if word is None:
        return newest_recording()
    target = find_run_or_file(word)
    if isinstance(target, Path):
        return target
    if isinstance(target, RecordingEntry):
        return target.path
    if target.collector_host is not None:
        raise CliError(_why_none_here(target))
    if target.recording is None:
        raise CliError(f"{target.name} is not being recorded; ddptop {word} shows it live")
    return Path(target.recording)


def wait_for_live(word: str | None, wait_s: float | None) -> list[RunFile]:
    """The live runs, once one of them is called `word` (None: any) or none can be expected any more.

    `wait_s`: how long to wait at most; None: WAIT_S, and only while a launcher is starting a run.
    Raises CliError (3) where no name is given and a launcher has not started its ranks in that time: an older
    recording would be taken for its run.
    """
    deadline = time.monotonic() + (WAIT_S if wait_s is None else wait_s)
    announced = False
    while True:
        running = find_live()
        if any(word is None or _begins_with(run, word) for run in running):
            return running
        if time.monotonic() >= deadline:
            if _run_is_starting(running):
                _tell_of_late_start(word, running)
            return running
        # Nobody is starting one: waiting would be for nothing.
        if wait_s is None and not _run_is_starting(running):
            return running
        if not announced:
            note(f"waiting for {'a run to start' if word is None else f'run {word}'}")
            announced = True
        time.sleep(POLL_S)


LATE_START = "a run is starting, but has no ranks yet: ddptop-run loads torch or waits for its other hosts"


def _tell_of_late_start(word: str | None, running: Sequence[RunFile]) -> None:
    reasons = find_meetings(running) or [LATE_START]
    if word is None:
        ways = "look again later; ddptop replay shows the newest recording"
        raise CliError("; ".join([*reasons, ways]), Exit.NOT_FOUND)
    note("; ".join(reasons))


def _run_is_starting(running: Sequence[RunFile]) -> bool:
    """Whether a launcher is about to begin a run, or has begun one whose collector is not there yet."""
    from ddptop.host.runs import launcher_is_starting

    # Without a launcher of ours a run shows by its members before its collector is there.
    return launcher_is_starting() or any(_starting_folders(running))


def _starting_folders(running: Sequence[RunFile]) -> Iterator[Path]:
    """The folders of runs that have been begun, but have no collector yet."""
    from ddptop.host.collector_start import has_members
    from ddptop.host.folders import run_roots

    served = {run.directory for run in running}
    folders = (folder for root in run_roots() if root.is_dir() for folder in root.iterdir())
    return (folder for folder in folders if folder not in served and has_members(folder))


def find_meetings(running: Sequence[RunFile], word: str = "") -> list[str]:
    """What launchers of this host wait for whose hosts have not met, each in a sentence: of all runs whose
    name begins with `word`."""
    from ddptop.host.meeting import read_meeting

    meetings = (read_meeting(folder) for folder in _starting_folders(running))
    return sorted(
        meeting.sentence for meeting in meetings if meeting is not None and meeting.run.startswith(word)
    )


def modified_s(path: Path) -> float:
    """Unix seconds of the last write; 0 for a file that has just vanished."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _match_rounds(
    word: str, running: Sequence[RunFile], kept: Sequence[RecordingEntry]
) -> Iterator[tuple[str, Sequence[RunFile | RecordingEntry]]]:
    """Ways to match a name, from strict to loose. The last one opens the recordings, only if no other one
    matches."""
    yield "live runs", [run for run in running if word in (run.name, run.run_id)]
    yield "recordings", [item for item in kept if is_of_run(item, word)]
    yield "live runs", [run for run in running if _begins_with(run, word)]
    yield "recordings", [item for item in kept if item.name.startswith(word)]
    yield "recordings", [item for item in kept if recorded_id(item.path).startswith(word)]


def is_of_run(item: RecordingEntry, name: str) -> bool:
    """Whether a recording is of a run of this name.

    The recordings of a name that is used again are called `NAME-2`, `NAME-3`. A run may have such a name of
    its own, so the name in the recording decides.
    """
    if item.name == name:
        return True
    stem, _, number = item.name.rpartition("-")
    return stem == name and number.isdecimal() and recorded_name(item.path) == name


def _begins_with(run: RunFile, word: str) -> bool:
    return run.name.startswith(word) or run.run_id.startswith(word)


_LISTS = "ddptop ls lists live runs and recordings"
_STARTS = "ddptop-run SCRIPT starts a training"
_OPENS = "ddptop RUN opens a live run, ddptop FILE a recording"
_ENDS = "ddptop ends no training: press Ctrl-C where it was started"

OTHER_WORDS = {
    "compare": COMPARES,
    "diff": COMPARES,
    "open": _OPENS,
    "show": _OPENS,
    "view": _OPENS,
    "stop": _ENDS,
    "kill": _ENDS,
    "list": _LISTS,
    "runs": _LISTS,
    "run": _STARTS,
    "launch": _STARTS,
    "watch": "ddptop RUN --watch prints a line a second, ddptop RUN opens the screen",
    "delete": "ddptop rm RUN removes a recording",
    "html": "ddptop report RUN --html FILE writes a page",
    "help": "ddptop --help lists the commands",
    "version": "ddptop --version prints it",
}
"""Words that are commands of other programs, and what does the same here."""


def _no_such(word: str, names: Sequence[str]) -> str:
    if word in OTHER_WORDS:
        return f"no run is called {word!r}; {OTHER_WORDS[word]}"
    if word.endswith(".py"):
        return f"no run is called {word!r}; ddptop-run {word} starts it"
    near = get_close_matches(word, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"no run is called {word!r}; {hint}ddptop ls lists live runs and recordings"


PATIENCE_S, RENEW_S = 1.0, 0.25
"""Reading that takes longer is announced, and how often the announcement is renewed."""


@contextmanager
def read_whole(path: Path, doing: str = "reading", *, follow: bool = False) -> Iterator[Recording]:
    """The recording, open while the block reads all of it, with a bar on stderr where that is a terminal.

    Raises CliError as `open_recording` does, and where no writer of ours can have made the file.
    """
    from ddptop.recording.format import RecordingError

    # Filled once it is open: the bar is shown before.
    recordings: list[Recording] = []

    def share_read() -> float | None:
        return recordings[0].share_read if recordings else None

    with (
        progress_shown(f"{doing} {path.name}", share_read),
        open_recording(path, follow=follow) as recording,
    ):
        recordings.append(recording)
        try:
            yield recording
        except RecordingError as error:
            raise CliError(f"{path}: {error}", Exit.NOT_FOUND) from None


@contextmanager
def progress_shown(doing: str, share: Callable[[], float | None] = lambda: None) -> Iterator[None]:
    """While the block lasts: a line on stderr, where that is a terminal; erased at the end.

    `share`: how much is done (0..1), for a bar; None: not known, then the seconds are counted.
    """
    # No line that is overwritten belongs into a file or a pipe.
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    begin_s = time.monotonic()
    done = threading.Event()

    def show() -> None:
        pause_s = PATIENCE_S
        while not done.wait(pause_s):
            pause_s = RENEW_S
            part = share()
            if part is None:
                state = f"{int(time.monotonic() - begin_s)} s"
            else:
                state = f"[{'#' * round(20 * min(1.0, part)):<20}] {percent(100 * min(1.0, part), 0)}"
            print_over(_fit_progress(doing, state, _terminal_columns()))
        # Something was shown: it is erased before the result is printed.
        if pause_s == RENEW_S:
            print_over("")

    thread = threading.Thread(target=show, name="ddptop-progress", daemon=True)
    try:  # a signal may come while it starts
        thread.start()
        yield
    finally:
        done.set()
        # A thread that was never started cannot be joined.
        if thread.ident is not None:
            thread.join()


def _fit_progress(doing: str, state: str, columns: int) -> str:
    """The line of progress, short enough for the terminal: a line that wraps cannot be replaced as a whole.
    What is done is cut, not how far it is."""
    from ddptop.render.text import clean_text, fit_text  # imports Rich, which most commands do without

    room = max(0, columns - len(state) - 2)
    return f"{fit_text(clean_text(doing), room).rstrip()} {state}"


def _terminal_columns() -> int:
    """Width of the terminal that stderr is; 80 if it does not tell."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def open_recording(path: Path, *, follow: bool = False) -> Recording:
    """The recording, for the caller to close. Raises CliError: 3 no such one, 4 not allowed to read it."""
    from ddptop.recording.reader import Recording, RecordingError

    try:
        return Recording.open(path, follow=follow)
    except FileNotFoundError:
        raise CliError(f"{path}: no such file; ddptop ls lists the recordings", Exit.NOT_FOUND) from None
    except IsADirectoryError:
        raise CliError(f"{path} is a folder, not a recording", Exit.NOT_FOUND) from None
    except PermissionError:
        raise CliError(f"{path}: permission denied; it belongs to another user?", Exit.REFUSED) from None
    except RecordingError as error:
        raise CliError(f"{error}; ddptop ls lists the recordings", Exit.NOT_FOUND) from None


def recorded_id(path: Path) -> str:
    """Id of the run that a recording is of; empty for what cannot be read."""
    run = _recorded_run(path)
    return "" if run is None else run.run_id


def recorded_name(path: Path) -> str:
    """Name of the run that a recording is of; empty for what cannot be read."""
    run = _recorded_run(path)
    return "" if run is None else run.name


def _recorded_run(path: Path) -> Run | None:
    from ddptop.recording.reader import Recording, RecordingError

    try:
        with Recording.open(path) as recording:
            return recording.run
    except (RecordingError, OSError):
        return None


def is_readable(path: Path) -> bool:
    """Whether the file is a recording that can be opened."""
    from ddptop.recording.reader import Recording, RecordingError

    try:
        Recording.open(path).close()
    except (RecordingError, OSError):
        return False
    return True
