"""`ddptop config`: each setting, its value and where that came from."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ddptop.cli.commands.base import Command, add_settings
from ddptop.cli.errors import note
from ddptop.protocol.outlets import print_json, print_text


class Config(Command):
    """Shows the settings in force."""

    name = "config"
    summary = "Show each setting, its value and where it comes from."
    examples = (
        "ddptop config",
        "ddptop config --json",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`--json`, and the flags whose effect is to be seen."""
        parser.add_argument("--json", action="store_true", help="print them as JSON")
        add_settings(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Print one line a setting."""
        from ddptop.cli.settings import load_settings
        from ddptop.render.table import align_texts

        configuration = load_settings(vars(options))
        values = asdict(configuration.settings)
        if options.json:
            settings = {
                name: {"value": value, "from": configuration.origins[name]} for name, value in values.items()
            }
            print_json({"schema": 1, "file": str(configuration.file), "settings": settings}, allow_nan=True)
        else:
            rows = [
                [name, _format_value(value), configuration.origins[name]] for name, value in values.items()
            ]
            print_text("\n".join(align_texts(["setting", "value", "from"], rows)))
            print_text(
                f"\nfile: {configuration.file}{'' if configuration.file.is_file() else ' (not there)'}"
            )
        if configuration.unknown:
            note(f"{configuration.file}: unknown keys: {', '.join(configuration.unknown)}")
        return 0


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "-" if value is None else f"{value}"
