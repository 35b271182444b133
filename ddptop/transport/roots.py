"""Where runs and recordings are kept on this machine."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ddptop.transport.private import RunDirectoryError, open_private

SHARED_TMP = Path("/tmp")
"""Not $TMPDIR: the other terminal may have another one."""


def roots() -> list[Path]:
    """Folders that may hold runs, the preferred one first. The variable may be set in one terminal only."""
    found = [SHARED_TMP / f"ddptop-{os.geteuid()}"]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_own_folder(Path(runtime)):
        found.insert(0, Path(runtime) / "ddptop")
    return found


def first_root(*, room: int) -> Path:
    """The preferred folder whose path takes at most `room` bytes. Raises RunDirectoryError."""
    for root in roots():
        if len(os.fsencode(root)) <= room:
            return root
    raise RunDirectoryError(f"{roots()[-1]}: path too long for a socket")


def home(environ: Mapping[str, str] = os.environ) -> Path | None:
    """This user's home folder: $HOME, else that of the user database.

    None where there is none that belongs to this user: a container may know neither, and under `sudo -E`
    $HOME is another's.
    """
    try:
        known = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        known = ""
    return next(
        (Path(text) for text in (environ.get("HOME"), known) if text and _is_own_folder(Path(text))), None
    )


def state_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of recordings, there or not: in $XDG_STATE_HOME or below the home folder, else in /tmp."""
    base = environ.get("XDG_STATE_HOME")
    # The standard wants absolute paths there and others ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "ddptop"
    own = home(environ)
    if own is not None:
        return own / ".local" / "state" / "ddptop"
    return SHARED_TMP / f"ddptop-{os.geteuid()}" / "recordings"


def state_directory() -> Path:
    """The folder of recordings, made 0700 if it is not there.

    Raises RunDirectoryError where it cannot be made, or is not this user's alone.
    """
    path = state_path()
    try:
        for folder in reversed(path.parent.parents):
            _make(folder)
        if path.parent.parent == SHARED_TMP:  # where another user may have been first
            with open_private(path.parent, create=True):
                pass
        else:
            _make(path.parent)
        with open_private(path, create=True):
            pass
    except OSError as error:
        raise RunDirectoryError(f"cannot make {path}: {error.strerror}") from error
    return path


def _make(folder: Path) -> None:
    """Make it if nothing is there, for this user alone whatever the umask. Raises OSError."""
    if not os.path.lexists(folder):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)


def _is_own_folder(path: Path) -> bool:
    """Under `sudo -E` a variable names another user's folder, where that user could swap ours."""
    try:
        return path.is_absolute() and path.is_dir() and path.stat().st_uid == os.geteuid()
    except OSError:
        return False
