"""A recording that a person named, open, or the reason why not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.cli.errors import CliError, Exit

if TYPE_CHECKING:
    from ddptop.recording.reader import Recording


PATIENCE_S, RENEW_S = 1.0, 0.25
"""Reading that takes longer is announced, and how often the announcement is renewed."""


@contextmanager
def progress_shown(recording: Recording) -> Iterator[None]:
    """While the recording is read: a line on stderr, where that is a terminal; erased at the end."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()

    def show() -> None:
        pause_s = PATIENCE_S
        while not done.wait(pause_s):
            pause_s = RENEW_S
            share = f"{100 * recording.share_read:.0f}%"
            print(f"\r\x1b[Kreading {recording.path.name}: {share}", end="", file=sys.stderr, flush=True)
        if pause_s == RENEW_S:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, name="ddptop-progress")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def opened(path: Path) -> Recording:
    """The recording, for the caller to close. Raises CliError: 3 no such one, 4 not allowed to read it."""
    from ddptop.recording.reader import Recording, RecordingError

    try:
        return Recording.open(path)
    except FileNotFoundError:
        raise CliError(f"{path}: no such file; ddptop ls lists the recordings", Exit.NOT_FOUND) from None
    except IsADirectoryError:
        raise CliError(f"{path} is a folder, not a recording", Exit.NOT_FOUND) from None
    except PermissionError:
        raise CliError(f"{path}: permission denied; it belongs to another user?", Exit.REFUSED) from None
    except RecordingError as error:
        raise CliError(f"{error}; ddptop ls lists the recordings", Exit.NOT_FOUND) from None
