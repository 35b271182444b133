"""`ddptop merge FILES`: one recording from that of a run and those that several hosts kept by themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.cli.commands.base import Command
from ddptop.cli.errors import CliError, Exit
from ddptop.frames.numbers import counted
from ddptop.protocol.outlets import print_text

if TYPE_CHECKING:
    import argparse


class Merge(Command):
    """Completes a run's recording; the files that it reads stay as they are."""

    name = "merge"
    summary = "Join the recording of a run and those that its hosts kept while they were cut off."
    examples = (
        "ddptop merge train-k7qf.ddptop train-k7qf@node1.ddptop",
        "ddptop merge train-k7qf train-k7qf@node1 train-k7qf@node2 -o whole.ddptop",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Files, and `-o`."""
        parser.add_argument("files", nargs="+", metavar="FILE", help="recordings: paths or names")
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            default=None,
            metavar="OUT",
            help="the file to write (default: NAME-merged.ddptop)",
        )

    def run(self, options: argparse.Namespace) -> int:
        """Write the merged recording and print a line."""
        from ddptop.analysis.reducer import Reducer
        from ddptop.cli.find import progress_shown
        from ddptop.collector.new_history import NewHistory
        from ddptop.recording.format import RecordingError
        from ddptop.recording.merge import merge_recordings

        paths = [_recording_path(word) for word in options.files]
        # By where they lead: one file under two names would be merged with itself.
        if len({path.resolve() for path in paths}) < 2:
            raise CliError("give the recording of the run and at least one other", Exit.USAGE)
        out = options.output or paths[0].with_stem(f"{paths[0].stem}-merged")
        if os.path.lexists(out):
            raise CliError(f"{out} exists already; give another name with -o")
        try:
            reducer = Reducer()
            with progress_shown(f"merging {len(paths)} recordings"):
                merged = merge_recordings(paths, out, history=NewHistory(reducer), feed=reducer.feed)
        except RecordingError as error:
            raise CliError(f"cannot merge: {error}") from error
        except OSError as error:
            raise CliError(f"cannot merge: {error.filename or out}: {error.strerror}") from error
        print_text(
            f"{out}: {counted(merged.hosts, 'host')}, {counted(merged.added, 'record')} added, "
            f"{merged.known:,} known already"
        )
        return Exit.DONE


def _recording_path(word: str) -> Path:
    """A recording by its path, or by its name in the folder of recordings. Raises CliError (3, 1)."""
    from ddptop.host.folders import open_regular, state_path
    from ddptop.recording.disk import is_being_written

    path = Path(word)
    if os.sep not in word and not path.exists():
        path = state_path() / f"{word.removesuffix('.ddptop')}.ddptop"
    try:
        descriptor = open_regular(path, follow=True)
    except OSError as error:
        raise CliError(f"{word}: no recording of this name", Exit.NOT_FOUND) from error
    # A file that grows would be merged without its end.
    try:
        if is_being_written(descriptor):
            raise CliError(f"{path} is being written; merge when its run has ended")
    finally:
        os.close(descriptor)
    return path
