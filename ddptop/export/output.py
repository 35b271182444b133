"""Writes an export in any format: nothing is replaced unless asked for, and a failed one leaves nothing."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast

from ddptop.export.formats import FORMATS
from ddptop.export.reading import ExportError
from ddptop.host.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddptop.export.reading import End, Selection
    from ddptop.recording.reader import Recording

STDOUT = Path("-")
"""Stands for standard output."""


def write_export(
    recording: Recording, form: str, path: Path, selection: Selection, *, force: bool = False
) -> End:
    """Export to `path` in one of the formats.

    Raises ExportError where the recording has no such step or rank, or the package for the format is missing;
    FileExistsError where something is there and not `force`; OSError where it cannot be written.
    """
    chosen = FORMATS[form]
    try:
        make_sink = resolve_name(chosen.sink)
    except ModuleNotFoundError:
        raise ExportError(f"--to {form} needs {chosen.package}: {install_command(form)}") from None
    with output_at(path, force, folder=chosen.is_folder) as to:
        if chosen.is_folder:
            with closing(make_sink(recording, selection, to)) as sink:
                return cast("End", sink.export())
        # A copy of the descriptor: closing this file must not close stdout.
        with os.fdopen(os.dup(sys.stdout.fileno()), "wb") if path == STDOUT else to.open("wb") as file:
            return cast("End", make_sink(recording, selection, file).export())


@contextmanager
def output_at(path: Path, force: bool, *, folder: bool) -> Iterator[Path]:
    """A path for a file or a folder, beside `path`, where it is put once the block has ended well.

    With `force`, a folder that is there keeps its other files. Raises OSError."""
    if path == STDOUT:
        yield path
        return
    into = force and folder and path.is_dir()
    _check_not_there(path, force and path.is_dir() == folder)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent))
    try:
        # In the same folder: a rename is atomic only within one file system.
        work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        written = work / path.name
        if folder:
            written.mkdir()
        yield written
        if into:
            for file in written.iterdir():
                file.replace(path / file.name)
        elif folder:
            # Once more: something may have appeared there while it was written.
            _check_not_there(path, force)
            written.rename(path)
        elif force:
            # Who reads `path` now goes on reading the file that was there.
            written.replace(path)
        else:
            _put_in_place(written, path)
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None  # as of a full disk
    finally:
        shutil.rmtree(work, ignore_errors=True)


def refuse_device(path: Path) -> None:
    """Raise FileExistsError where a device or a pipe would be replaced: root could replace /dev/null."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FileExistsError(errno.EEXIST, "is a device or a pipe, which is not replaced", str(path))


def _check_not_there(path: Path, force: bool) -> None:
    refuse_device(path)
    if os.path.lexists(path) and not force:
        raise FileExistsError(errno.EEXIST, "exists; --force replaces it", str(path))


def _put_in_place(written: Path, path: Path) -> None:
    """Put a file where nothing is, nor has appeared meanwhile."""
    try:
        # A hard link fails where something is there, and so replaces nothing.
        path.hardlink_to(written)
    except OSError:  # something is there, or the file system has no hard links
        _check_not_there(path, False)
        written.rename(path)
