"""`python -m ddptop.cli.agent FOLDER RUN_ID PID:START [--several-hosts]`: serves a run without a launcher.

Started by a rank (`ddptop.training.join_run`) or by one of several launchers
(`ddptop.cli.watched_run`), it reads the same settings from the environment as `ddptop-run`, and ends when
the run's processes are gone. It is the collector; where the run has several hosts it is this host's agent,
until the file `role` makes it the collector (`host.collector_address`): then it executes this command anew.
So does a collector of one host when ranks of other hosts have joined (elastic torchrun).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddptop.cli.errors import note
from ddptop.cli.launch_options import LaunchOptions, run_name
from ddptop.cli.watched_run import collector_arguments, recording_path
from ddptop.host.collector_address import read_role
from ddptop.host.collector_start import write_summary
from ddptop.host.folders import RunDirectoryError
from ddptop.host.runs import read_command, read_run_file


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the run; the exit code is the collector's."""
    words = list(sys.argv[1:] if argv is None else argv)
    folder, run_id, launcher, *several = words
    # From the environment: the command that started this process has put its options there.
    options = LaunchOptions.from_words()
    try:
        arguments = collector_command_arguments(options, Path(folder), run_id)
    except RunDirectoryError as error:
        note(f"cannot record: {error}")
        return 1
    os.chdir("/")  # so that no folder of the training is kept in use
    arguments += ["--alone", launcher]
    serve = read_role(Path(folder)) if several else ""
    if several and not serve:
        from ddptop.agent.__main__ import main as relay

        # The command that this process executes if it is to be the collector: this one anew, with `role`
        # written.
        return relay(arguments, _write_summary, collector=[sys.executable, "-m", "ddptop.cli.agent", *words])
    from ddptop.collector.__main__ import AGAIN
    from ddptop.collector.__main__ import main as collect

    code = collect([*arguments, *(["--serve", serve] if serve else [])], _write_summary)
    # Ranks of other hosts have joined: the collector goes on, as one that receives them.
    if code == AGAIN and not serve and read_role(Path(folder)):
        again = [sys.executable, "-m", "ddptop.cli.agent", folder, run_id, launcher, "--several-hosts"]
        os.execv(again[0], again)
    return code


def collector_command_arguments(options: LaunchOptions, folder: Path, run_id: str) -> list[str]:
    """The arguments of the collector. If an earlier collector has failed, they are those of that one."""
    before = read_run_file(folder)
    if before is not None and before.run_id == run_id:
        name, record = before.name, before.recording or "off"
        if before.collector_host is not None:  # an agent's: what it names is a recording of its own
            record = recording_path(options, name)
    else:
        name = run_name(options, read_command(folder))
        record = recording_path(options, name)
    return collector_arguments(options, name, run_id, folder, record)


def _write_summary(summary: Mapping[str, object]) -> None:
    # Its other lines are for a launcher, and there is none.
    if "steps" in summary:
        write_summary(json.dumps(summary))


if __name__ == "__main__":
    sys.exit(main())
