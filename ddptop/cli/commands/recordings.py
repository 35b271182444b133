"""`ddptop ls`, `rm` and `prune`: list the runs and recordings of this machine, and remove recordings."""

from __future__ import annotations

import argparse
import os
import re
import stat
import time
from contextlib import suppress
from pathlib import Path

from ddptop.cli.commands.base import Command
from ddptop.cli.errors import CliError, Exit, note
from ddptop.protocol.outlets import print_json, print_text

_DUMP = re.compile(r"ddptop_\w+_rank_\d+")
"""Names of the files that `ddptop.training.evidence.flight_analysis` keeps."""

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


class Ls(Command):
    """Lists live runs, then recordings, newest first."""

    name = "ls"
    summary = "List live runs and recordings on this machine."
    examples = (
        "ddptop ls",
        "ddptop ls --json",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`--json`."""
        parser.add_argument("--json", action="store_true", help="print the list as JSON")

    def run(self, options: argparse.Namespace) -> int:
        """Print a line per run."""
        from ddptop.cli.find import find_live, find_meetings, find_recorded
        from ddptop.cli.runs import of_live, of_recording, run_as_json, table_lines

        running = find_live()
        entries = [of_live(run) for run in running]
        entries += [of_recording(item) for item in find_recorded(running)]
        if options.json:
            print_json({"schema": 1, "runs": [run_as_json(entry) for entry in entries]}, allow_nan=True)
            return 0
        meetings = find_meetings(running)
        if entries:
            print_text("\n".join(table_lines(entries)))
        for sentence in meetings:
            note(sentence)
        if not entries and not meetings:
            note("no runs and no recordings yet; start one with ddptop-run SCRIPT")
        return 0


class Rm(Command):
    """Removes recordings that a user names."""

    name = "rm"
    summary = "Remove recordings."
    examples = ("ddptop rm train-k7qf", "ddptop rm train-k7qf train-a9a9", "ddptop rm ./copied.ddptop")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the recordings."""
        parser.add_argument(
            "runs", nargs="+", metavar="RUN", help="the name of a run, its unique beginning, or a file"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Remove them; nothing is removed where one of them does not match."""
        for path in [_only_match(word) for word in options.runs]:
            _remove_recording(path, dry_run=False)
        return Exit.DONE


class Prune(Command):
    """Removes old recordings."""

    name = "prune"
    summary = "Remove old recordings, but none of a live run."
    examples = (
        "ddptop prune --keep 20",
        "ddptop prune --older-than 7d",
        "ddptop prune --older-than 7d --keep 5 --dry-run",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which ones."""
        parser.add_argument("--keep", type=_parse_count, metavar="N", help="keep the newest N")
        parser.add_argument(
            "--older-than", type=_age_s, metavar="AGE", help="remove only older ones: 12h, 7d, 2w"
        )
        parser.add_argument("-n", "--dry-run", action="store_true", help="only list what would be removed")

    def run(self, options: argparse.Namespace) -> int:
        """Remove the recordings that both options give up."""
        from ddptop.cli.find import find_live, find_recorded, modified_s

        if options.keep is None and options.older_than is None:
            raise CliError("give --keep N or --older-than AGE (or both); see ddptop prune --help", Exit.USAGE)
        before = time.time() - (options.older_than or 0.0)
        for item in find_recorded(find_live())[options.keep or 0 :]:
            # Also under another name than a live run's: its collector may just be started again.
            if modified_s(item.path) <= before and not _is_being_written(item.path):
                _remove_recording(item.path, dry_run=options.dry_run)
        return Exit.DONE


def _only_match(word: str) -> Path:
    """The recording of this name. Raises CliError: 3 for none or several, 1 while it is being written."""
    from ddptop.cli.find import SUFFIX, find_live, find_recorded

    running = find_live()
    if os.sep in word or word.endswith(SUFFIX):
        path = Path(word)
        if path.suffix != SUFFIX or not _is_regular(path):
            raise CliError(f"{word}: no recording of this name", Exit.NOT_FOUND)
    else:
        kept = find_recorded(running)
        # A whole name first, which may also be the beginning of others.
        matches = [item for item in kept if item.name == word] or [
            item for item in kept if item.name.startswith(word)
        ]
        if len(matches) > 1:
            names = ", ".join(item.name for item in matches)
            raise CliError(f"several recordings match {word!r}: {names}; give the whole name", Exit.NOT_FOUND)
        if not matches and not any(run.name == word for run in running):
            raise CliError(f"no recording is called {word!r}; ddptop ls lists them", Exit.NOT_FOUND)
        path = matches[0].path if matches else Path()
    for run in running:
        if run.name == word or (run.recording is not None and Path(run.recording) == path.absolute()):
            raise CliError(f"{run.name} is live and its recording is being written; nothing was removed")
    if _is_being_written(path):  # under another path, or while its collector is started again
        raise CliError(f"{path} is being written; nothing was removed")
    return path


def _remove_recording(path: Path, *, dry_run: bool) -> None:
    """Remove a recording and the flight recorder dumps that ddptop kept beside it; print a line."""
    from ddptop.frames.numbers import size

    freed = size(path.lstat().st_size)
    if not dry_run:
        path.unlink()
        kept = re.compile(re.escape(path.name) + r"\.flight(-\d+)?")
        for folder in [folder for folder in path.parent.iterdir() if kept.fullmatch(folder.name)]:
            _remove_dumps(folder)
    print_text(f"{'would remove' if dry_run else 'removed'} {path} ({freed})")


def _remove_dumps(folder: Path) -> None:
    """Remove the dumps in a folder and the folder itself, unless it is not ours or holds something else."""
    from ddptop.host.folders import RunDirectoryError, open_private

    with suppress(RunDirectoryError, OSError), open_private(folder) as opened:
        for name in filter(_DUMP.fullmatch, os.listdir(opened)):  # noqa: PTH208 - pathlib takes no descriptor
            os.unlink(name, dir_fd=opened)
        # Fails where something of another program is in it, and leaves that.
        folder.rmdir()
    if folder.exists():
        note(f"{folder} is left: it holds files that ddptop did not make")


def _is_being_written(path: Path) -> bool:
    from ddptop.host.folders import open_regular
    from ddptop.recording.disk import is_being_written

    try:
        descriptor = open_regular(path)
    except OSError:
        return False
    try:
        return is_being_written(descriptor)
    finally:
        os.close(descriptor)


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _parse_count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of recordings")
    return int(text)


def _age_s(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age: 12h, 7d, 2w")
    return float(match[1]) * _UNITS_S[match[2]]
