"""`ddptop env`: the variables that make the DDP processes of a job report, whatever starts them."""

from __future__ import annotations

import argparse
import os
import shlex

from ddptop.cli.commands.base import Command
from ddptop.cli.errors import CliError, Exit
from ddptop.protocol.outlets import print_json, print_text


class Env(Command):
    """Prints variables for an engine that starts the processes itself."""

    name = "env"
    summary = "Print the variables that make the DDP processes of a job report to ddptop."
    details = (
        "They are for a Ray runtime_env, a pod template, or any launcher. Every host must have ddptop at the "
        "same path."
    )
    examples = (
        "env $(ddptop env --name llama) python train.py",
        'ray job submit --runtime-env-json "{\\"env_vars\\": $(ddptop env --json)}" -- python train.py',
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`--name` and `--json`."""
        parser.add_argument("--name", help="name of the run, for: ddptop NAME")
        parser.add_argument("--json", action="store_true", help="print them as JSON")

    def run(self, options: argparse.Namespace) -> int:
        """Print one variable a line, quoted for a shell where it has to be."""
        from ddptop.cli.launch_options import UsageError

        try:
            variables = _training_variables(options.name)
        except UsageError as mistake:
            raise CliError(str(mistake).removeprefix("--ddptop-"), Exit.USAGE) from None
        if options.json:
            print_json(variables, indent=None)
        else:
            print_text("\n".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()))
        return Exit.DONE


def _training_variables(run: str | None) -> dict[str, str]:
    """The variables that ranks need, with the settings that this environment has for `ddptop-run`. Raises
    UsageError."""
    from ddptop.cli.launch_options import LaunchOptions, prepend_path
    from ddptop.cli.watched_run import INJECT

    options = LaunchOptions.from_words([] if run is None else ["--ddptop-name", run])
    settings = options.as_environment(options.name or "")
    # Only what this environment sets: defaults are those of the ddptop over there.
    given = {name: value for name, value in settings.items() if name in os.environ}
    if options.name:
        given["DDPTOP_NAME"] = options.name
    return {"DDPTOP": "1", "PYTHONPATH": prepend_path("PYTHONPATH", str(INJECT)), **given}
