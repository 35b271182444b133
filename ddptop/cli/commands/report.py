"""`ddptop report RUN-or-FILE`: what happened, in a page of text."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

from ddptop.cli.commands.base import Command, add_settings
from ddptop.cli.errors import CliError, Exit

PIPE_COLUMNS = 80
"""Width of a page that no terminal limits: that of a mail."""


class Report(Command):
    """Tells a run from its recording, also one that still goes on."""

    name = "report"
    summary = "Tell what happened in a run: who was slow, why, what it cost, what to try."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The run or the file, and in which form."""
        parser.add_argument(
            "run", metavar="RUN-or-FILE", help="a run's name or how it begins, or a recording"
        )
        parser.add_argument("--json", action="store_true", help="print it as JSON")
        add_settings(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Read the recording and print the page."""
        from ddptop.cli.recorded import opened
        from ddptop.cli.settings import load

        settings = load(vars(options)).settings
        with opened(recording_of(options.run)) as recording:
            from ddptop.cli.report_reading import read

            found = read(recording)
        if options.json:
            from ddptop.analysis.report.data import as_data

            print(json.dumps(as_data(found), indent=2, allow_nan=False))
        else:
            from ddptop.cli.report_text import page

            width = shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns
            print(page(found, width, settings.ascii, settings.color and sys.stdout.isatty()))
        return Exit.DONE


def recording_of(word: str) -> Path:
    """The recording that a person means by a path, or by the beginning of a run's name or id.

    Raises CliError: 3 where there is none, 1 where the run does not record.
    """
    from ddptop.cli.find import SUFFIX, Recorded, find

    if os.sep in word or word.endswith(SUFFIX):
        return Path(word)
    try:
        target = find(word)
    except CliError:
        if Path(word).exists():
            return Path(word)
        raise
    if isinstance(target, Recorded):
        return target.path
    if target.recording is None:
        raise CliError(f"{target.name} is not being recorded, so there is nothing to report; ddptop {word}")
    return Path(target.recording)
