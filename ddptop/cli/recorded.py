"""A recording that a person named, open, or the reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.cli.errors import CliError, Exit

if TYPE_CHECKING:
    from ddptop.recording.reader import Recording


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
