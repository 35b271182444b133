"""`ddptop ls`: what there is to look at on this machine."""

from __future__ import annotations

import argparse
import json

from ddptop.cli.commands.base import Command
from ddptop.cli.errors import note


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
        from ddptop.cli.catalog import as_json, of_live, of_recording, table
        from ddptop.cli.find import live, recorded

        running = live()
        entries = [of_live(run) for run in running]
        entries += [of_recording(item) for item in recorded(running)]
        if options.json:
            print(json.dumps({"schema": 1, "runs": [as_json(entry) for entry in entries]}, indent=2))
        elif entries:
            print("\n".join(table(entries)))
        else:
            note("no runs and no recordings yet; start one with ddptop-run SCRIPT")
        return 0
