"""`ddptop demo`: a real training run made for looking at."""

from __future__ import annotations

import argparse
import sys

from ddptop.cli.commands.base import Command, add_screen_options
from ddptop.cli.errors import CliError, note
from ddptop.host.installation import own_command
from ddptop.protocol.outlets import print_text

MAX_DEMO_RANKS = 64
"""Each rank is a process with torch in it, about 200 MB."""


MAX_SIMULATED_RANKS = 8192
"""One process simulates all of them; 4096 at two steps a second are what it and the collector can do."""


OFFERED_RANKS = 8
"""Simulated where torch is missing: as many as a host has GPUs."""


class Demo(Command):
    """Trains a small model on this machine, or simulates that many ranks, and shows it."""

    name = "demo"
    summary = "Train a small model on this machine, one rank slow for a while, and watch it."
    examples = (
        "ddptop demo",
        "ddptop demo --ranks 4",
        "ddptop demo --simulate 4096",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Ranks, steps and how to show them."""
        parser.add_argument(
            "--ranks", type=_parse_ranks, default=2, metavar="N", help="processes (default 2)"
        )
        parser.add_argument(
            "--simulate",
            type=_parse_simulated,
            metavar="RANKS",
            help="no training: simulated messages of so many ranks through the real collector",
        )
        parser.add_argument(
            "--steps",
            type=_parse_steps,
            default=None,
            metavar="N",
            help="end after so many steps (default: go on)",
        )
        parser.add_argument("--headless", action="store_true", help="print a line a second, no screen")
        add_screen_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Run the demo. If torch is missing, offer the simulated one, which needs no torch."""
        if options.simulate is None:
            from ddptop.training.torch_compat import installed_version, why_unusable

            # Asked of the installed package: importing torch takes seconds.
            problem = why_unusable("ddptop demo", installed_version())
            if problem is None:
                from ddptop.cli import demo

                return demo.main(options)
            offer_simulated(problem, options)
        from ddptop.cli import simulate

        return simulate.main(options)


def offer_simulated(problem: str, options: argparse.Namespace) -> None:
    """Ask whether to simulate ranks instead, and set `options.simulate` where the user agrees.

    Raises CliError, with the command that does so, where nobody can be asked or the user does not want it.
    """
    from ddptop.cli.show import Mode, choose_mode, has_terminal

    offer = f"{own_command()} demo --simulate {OFFERED_RANKS}"
    # Only a person at a terminal can answer.
    if not options.headless and choose_mode(options, live=True) is Mode.SCREEN and has_terminal():
        note(problem)
        print_text(f"Show {OFFERED_RANKS} simulated ranks instead ({offer})? [Y/n] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() in ("", "y", "yes"):
            options.simulate = OFFERED_RANKS
            return
    raise CliError(f"{problem}, or {offer}, which needs none")


def _parse_ranks(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_DEMO_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks from 1 to {MAX_DEMO_RANKS}")
    return int(text)


def _parse_simulated(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_SIMULATED_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks from 1 to {MAX_SIMULATED_RANKS}")
    return int(text)


def _parse_steps(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps")
    return int(text)
