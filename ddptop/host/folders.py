"""Where runs and recordings are kept: folders that only this user can open.

They are checked by file descriptor, so that a check cannot be raced.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RunDirectoryError(Exception):
    """A run's folder cannot be used; the text is one clear line for a person."""


@contextmanager
def open_private(path: Path | str, *, create: bool = False, inside: int | None = None) -> Iterator[int]:
    """A descriptor of the folder `path` (relative to the folder `inside`, if given) while the context lasts.

    Raises RunDirectoryError if it is a link, no folder, another user's, or open to others, and
    FileNotFoundError if it is not there.
    """
    if create:
        try:
            os.mkdir(path, 0o700, dir_fd=inside)
        # Whose it is, the check below tells.
        except FileExistsError:
            pass
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RunDirectoryError(f"cannot make {path}: {error.strerror}") from error
    try:
        # By descriptor from here on: between a check by path and the use another user could swap the folder.
        descriptor = os.open(path, _OPEN, dir_fd=inside)
    except FileNotFoundError:
        raise
    except OSError as error:  # ELOOP or ENOTDIR, depending on the system, for a link
        reason = "is a link or no folder" if _is_no_folder(path, inside) else error.strerror
        raise RunDirectoryError(f"{path}: {reason}") from error
    try:
        check_private(descriptor, path)
        yield descriptor
    finally:
        os.close(descriptor)


def check_private(descriptor: int, path: Path | str) -> None:
    """Raise RunDirectoryError unless the opened folder or file is this user's alone."""
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise RunDirectoryError(f"{path} belongs to user {status.st_uid}, not to you")
    # No bit for others, not even for reading: arguments and paths are in these folders.
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise RunDirectoryError(f"{path} is open to other users (mode {mode:04o}); run: chmod 700 {path}")


NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
"""Flags for a file that must not be there yet."""


def open_regular(
    path: Path | str, flags: int = os.O_RDONLY, *, inside: int | None = None, follow: bool = False
) -> int:
    """A descriptor of the regular file `path` (relative to the folder `inside`, if given).

    A file that is made gets mode 0600. `follow`: the path may be a link to one. Raises OSError for anything
    else; never waits for a FIFO.
    """
    # Opening a FIFO would wait for its other end for ever.
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, 0o600, dir_fd=inside)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return descriptor


def open_log(path: Path) -> BinaryIO:
    """A private file to append to, made if it is not there. Raises OSError."""
    return os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def write_private(folder: int, name: str, data: bytes) -> None:
    """Put a file of mode 0600 in place in an opened folder, whole or not at all. Raises OSError."""
    # With the pid, so that two processes do not write the same unfinished file.
    unfinished = f"{name}.{os.getpid()}"
    # One of an earlier process with this pid, which died while it wrote.
    with suppress(FileNotFoundError):
        os.unlink(unfinished, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(open_regular(unfinished, flags, inside=folder), "wb") as file:
        file.write(data)
        file.flush()
        # Before the rename: after a power cut the name must not lead to an empty file.
        os.fsync(file.fileno())
    os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)


def read_private(folder: Path, name: str, most_bytes: int = -1) -> bytes:
    """The first `most_bytes` of a file in a folder; -1: all of it.

    Raises RunDirectoryError where the folder or the file is not this user's alone, else OSError.
    """
    with open_private(folder) as inside, os.fdopen(open_regular(name, inside=inside), "rb") as file:
        # Checked on the open descriptor: the name may lead to another file a moment later.
        check_private(file.fileno(), folder / name)
        return file.read(most_bytes)


def _is_no_folder(path: Path | str, inside: int | None) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(path, dir_fd=inside, follow_symlinks=False).st_mode)
    except OSError:
        return False


SHARED_TMP = Path("/tmp")
"""Not $TMPDIR: the other terminal may have another one."""


def run_roots() -> list[Path]:
    """Folders that may hold runs, the preferred one first. The variable may be set in one terminal only.

    One that belongs to another user, who was first in /tmp, is left out while another folder remains. Those
    that cannot be written, as on a read-only file system, come last.
    """
    return sorted(_all_run_roots(), key=_is_read_only)


def read_only_root() -> Path | None:
    """The folder that would be preferred if it could be written; None: it can, or no other can either."""
    preferred = _all_run_roots()[0]
    return preferred if preferred != run_roots()[0] else None


def _is_read_only(root: Path) -> bool:
    """Whether a folder can neither be written nor made. What is there and is no folder is refused later."""
    there = next((folder for folder in (root, *root.parents) if os.path.lexists(folder)), root)
    # By the effective ids: otherwise Linux leaves out the capabilities of a process that is not root.
    effective = os.access in os.supports_effective_ids
    with suppress(OSError):  # a link into a folder that may not be searched
        return there.is_dir() and not os.access(there, os.W_OK | os.X_OK, effective_ids=effective)
    return False


def _all_run_roots() -> list[Path]:
    folders = [SHARED_TMP / f"ddptop-{os.geteuid()}", state_path() / "run"]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    # In front: the system removes it when the user logs out, and no other user can be first in it.
    if runtime and _is_own_folder(Path(runtime)):
        folders.insert(0, Path(runtime) / "ddptop")
    # All of them where none is left, so that the refusal names one.
    return [folder for folder in folders if not _belongs_to_another(folder)] or folders


def _belongs_to_another(path: Path) -> bool:
    try:
        return path.lstat().st_uid != os.geteuid()
    except OSError:
        return False


def first_root(*, room: int) -> Path:
    """The preferred folder whose path takes at most `room` bytes. Raises RunDirectoryError."""
    for root in run_roots():
        if len(os.fsencode(root)) <= room:
            if root.parent == state_path():
                state_directory()
            return root
    raise RunDirectoryError(f"{run_roots()[0]}: path too long for a socket")


def home_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """This user's home folder: $HOME, else that of the user database.

    None where there is none that belongs to this user: a container may have neither, and under `sudo -E`
    $HOME is another user's.
    """
    try:
        database_home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        database_home = ""
    return next(
        (Path(text) for text in (environ.get("HOME"), database_home) if text and _is_own_folder(Path(text))),
        None,
    )


def state_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of recordings, there or not: in $XDG_STATE_HOME or below the home folder, else in /tmp."""
    base = environ.get("XDG_STATE_HOME")
    # The XDG standard requires absolute paths there; others are ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "ddptop"
    home_path = home_folder(environ)
    if home_path is not None:
        return home_path / ".local" / "state" / "ddptop"
    return SHARED_TMP / f"ddptop-{os.geteuid()}" / "recordings"


def state_directory() -> Path:
    """The folder of recordings, made 0700 if it is not there.

    Raises RunDirectoryError where it cannot be made, or is not this user's alone.
    """
    path = state_path()
    try:
        for folder in reversed(path.parent.parents):
            _make_folder(folder)
        if path.parent.parent == SHARED_TMP:  # where another user may have been first
            with open_private(path.parent, create=True):
                pass
        else:
            _make_folder(path.parent)
        with open_private(path, create=True):
            pass
    except OSError as error:
        raise RunDirectoryError(f"cannot make {path}: {error.strerror}") from error
    return path


def _make_folder(folder: Path) -> None:
    """Make it if nothing is there, for this user alone whatever the umask. Raises OSError."""
    # `lexists`, because a dangling link is something, too.
    if not os.path.lexists(folder):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)


def _is_own_folder(path: Path) -> bool:
    """Whether a folder is this user's: under `sudo -E` a variable names another user's, who could swap
    ours."""
    try:
        return path.is_absolute() and path.is_dir() and path.stat().st_uid == os.geteuid()
    except OSError:
        return False
