"""`ddptop export FILE --to FORMAT`: a recording for other tools."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from ddptop.cli.commands.base import Command
from ddptop.cli.errors import CliError, Exit, note
from ddptop.export.formats import FORMATS
from ddptop.protocol.outlets import print_text

FOLDERS = " and ".join(name for name, form in FORMATS.items() if form.is_folder)
FILES = " or ".join(name for name, form in FORMATS.items() if not form.is_folder)


class Export(Command):
    """Writes a recording in the format of another tool, also one that is still being written."""

    name = "export"
    summary = "Write a recording as a trace for ui.perfetto.dev, or as tables (Parquet, CSV, JSON)."
    examples = (
        "ddptop export --to perfetto --steps 1000:1200",
        "ddptop export train-k7qf --to parquet -o /data/train-k7qf",
        "ddptop export train-k7qf --to csv --ranks 0,8-15",
        "ddptop export train-k7qf --to json -o - | jq 'select(.table == \"events\")'",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the file, the format, what of it is exported, and where to."""
        what = "a recording, or the name of a run or its beginning (default: the newest)"
        parser.add_argument("file", nargs="?", metavar="FILE", help=what)
        parser.add_argument("--to", choices=FORMATS, required=True, metavar="FORMAT", help=", ".join(FORMATS))
        where = f"the file, or the folder for {FOLDERS}; -: standard output (default: the recording's name)"
        parser.add_argument("-o", "--output", metavar="PATH", help=where)
        which = "only steps A to B - 1; A or B may be left out"
        parser.add_argument(
            "--steps", type=_parse_step_range, default=(None, None), metavar="A:B", help=which
        )
        parser.add_argument("--ranks", type=_parse_rank_list, metavar="LIST", help="only these ranks: 0,8-15")
        parser.add_argument("--force", action="store_true", help="replace an existing file or folder")

    def run(self, options: argparse.Namespace) -> int:
        """Read the recording and write it."""
        from ddptop.cli.find import SUFFIX, keep_recording, read_whole, recording_of

        if options.output is not None:
            keep_recording(Path(options.output), "give -o another name")

        with read_whole(recording_of(options.file), "exporting") as recording:
            from ddptop.export.output import STDOUT, write_export
            from ddptop.export.reading import ExportError, Selection

            name = recording.path.name.removesuffix(SUFFIX)
            form = FORMATS[options.to]
            path = Path(options.output or f"{name}{form.ending}")
            if path == STDOUT and (form.is_folder or sys.stdout.isatty()):
                raise CliError(f"-o - is for {FILES}, into a pipe or a file", Exit.USAGE)
            first, stop = options.steps
            selection = Selection(first, stop, options.ranks)
            code = Exit.USAGE
            try:
                # A wrong selection is the user's mistake; an error while writing is not.
                selection.check_recording(recording)
                code = Exit.FAILED
                end = write_export(recording, options.to, path, selection, force=options.force)
            except ExportError as error:
                raise CliError(str(error), code) from None
            if recording.damage is not None:
                note(f"{recording.path.name}: {recording.damage}; the rest was exported")
            if end.refused:
                note(f"{end.refused} messages could not be evaluated")
        if path != STDOUT:
            print_text(path)
        return Exit.DONE


def _parse_step_range(text: str) -> tuple[int | None, int | None]:
    plain = text.replace(",", "").replace("_", "")
    if not re.fullmatch("[0-9]{0,15}:[0-9]{0,15}", plain):
        raise argparse.ArgumentTypeError(f"{text!r} is no range of steps; give A:B, like 1000:1200")
    first, stop = (int(part) if part else None for part in plain.split(":"))
    if stop is not None and stop <= (first or 0):
        raise argparse.ArgumentTypeError(f"{text!r} is empty: B itself is left out")
    return first, stop


def _parse_rank_list(text: str) -> frozenset[int]:
    if not re.fullmatch("[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of ranks; give one like 0,8-15")
    ends = [(part.split("-")[0], part.split("-")[-1]) for part in text.split(",")]
    return frozenset(rank for first, last in ends for rank in range(int(first), int(last) + 1))
