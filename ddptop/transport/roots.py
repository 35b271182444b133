"""Where runs and recordings are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from ddptop.transport.private import RunDirectoryError

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


def state_directory() -> Path:
    """The folder of recordings, made 0700 if it is not there. Raises RunDirectoryError."""
    base = os.environ.get("XDG_STATE_HOME")
    # The standard wants absolute paths there and others ignored.
    path = (Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state") / "ddptop"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise RunDirectoryError(f"cannot make {path}: {error}") from error
    return path


def _is_own_folder(path: Path) -> bool:
    """Under `sudo -E` the variable names another user's folder, where that user could swap ours."""
    try:
        return path.is_absolute() and path.is_dir() and path.stat().st_uid == os.geteuid()
    except OSError:
        return False
