"""`ddptop report RUN-or-FILE`: what happened, in a page of text."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from ddptop.cli.commands.base import Command, add_settings
from ddptop.cli.errors import Exit
from ddptop.protocol.outlets import print_json, print_text, write_text

PIPE_COLUMNS = 80
"""Width of a page that no terminal limits: that of a mail."""


class ReportCommand(Command):
    """Reports a run from its recording, also one that is still running."""

    name = "report"
    summary = "Report what happened in a run: who was slow, why, what it cost, what to try."
    examples = (
        "ddptop report",
        "ddptop report train-k7qf > report.txt",
        "ddptop report --html report.html",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the run or the file, and the form of the report."""
        parser.add_argument(
            "run",
            nargs="?",
            metavar="RUN-or-FILE",
            help="the name of a run or its beginning, or a recording (default: the newest)",
        )
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="print it as JSON")
        form.add_argument(
            "--html", metavar="FILE", help="write it as one HTML file with pictures, to send to somebody"
        )
        add_settings(parser, shown=("ascii",))

    def run(self, options: argparse.Namespace) -> int:
        """Read the recording and print the page."""
        from ddptop.cli.find import keep_recording, read_whole, recording_of
        from ddptop.cli.settings import load_settings

        if options.html:
            keep_recording(Path(options.html), "ddptop report RECORDING --html PAGE.html")
        settings = load_settings(vars(options)).settings
        with read_whole(recording_of(options.run)) as recording:
            recording.will_be_read()
            from ddptop.report.build import read_report

            content = read_report(recording)
        if options.html:
            from ddptop.report.html import html_page

            # As it is printed: a relative name means little in a log.
            path = Path(options.html).absolute()
            try:
                write_text(path, html_page(content))
            except OSError as error:  # a full disk has no name of its own
                raise OSError(error.errno, error.strerror, str(path)) from None
            print_text(f"report written to {path}")
        elif options.json:
            from ddptop.report.content import as_data

            print_json(as_data(content))
        else:
            from ddptop.report.text import text_page

            width = shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns
            color = settings.color and sys.stdout.isatty()
            print_text(text_page(content, width, settings.ascii, color), color=color)
        return Exit.DONE
