"""`ddptop [RUN]`: the live screen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop import __version__
from ddptop.cli import first_picture
from ddptop.cli.commands.base import Command, add_screen_options, wrap_text
from ddptop.cli.errors import CliError, Exit, note
from ddptop.protocol.outlets import print_text

if TYPE_CHECKING:
    from ddptop.cli.show import Mode
    from ddptop.host.runs import RunFile


MAX_WAIT_S = 86_400.0
"""A day: as long as a job may wait in a queue."""


class Look(Command):
    """Shows a run: live while it lives, from its recording afterwards."""

    name = ""
    summary = "Show a PyTorch DDP run: which rank is slow, why, and what it costs."
    details = "Start the training with ddptop-run in place of torchrun, and type ddptop in a second terminal."
    examples = (
        "ddptop",
        "ddptop train-k7qf --view timeline",
        "ddptop --connect me@gpu01/train-k7qf",
        "ddptop --web",
        "ddptop --json | jq .group.step_ms",
    )

    def __init__(self, others: Sequence[Command]) -> None:
        self.others = others

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the run, and all that goes with a screen."""
        parser.usage = "ddptop [RUN] [options]\n       ddptop COMMAND [options]"
        parser.add_argument(
            "run", nargs="?", metavar="RUN", help="a run's name or id, or its beginning; or a file"
        )
        parser.add_argument(
            "--wait",
            type=_parse_wait_s,
            metavar="SECONDS",
            help="wait so long for the run to start (default: 10 while a ddptop-run starts)",
        )
        parser.add_argument("-V", "--version", action="version", version=f"ddptop {__version__}")
        elsewhere = parser.add_argument_group("a run on another machine")
        elsewhere.add_argument(
            "--connect",
            metavar="TARGET",
            help="[user@]host[/RUN] over ssh; slurm:JOBID over srun; HOST:PORT with --key; or, at the end, "
            "any command that runs another one there: -- kubectl exec -i POD --",
        )
        elsewhere.add_argument(
            "--remote-command",
            metavar="PROGRAM",
            help="path of ddptop on that machine, if its PATH does not have it; also DDPTOP_REMOTE",
        )
        elsewhere.add_argument(
            "--key", metavar="FILE", help="key for --connect HOST:PORT, made by: ddptop key new FILE"
        )
        browser = parser.add_argument_group("in a browser")
        browser.add_argument(
            "--web", action="store_true", help="serve the screen on localhost, and print its URL"
        )
        browser.add_argument(
            "--port",
            type=_parse_web_port,
            metavar="PORT",
            help="port of --web, to forward with ssh -L (default: any free one)",
        )
        add_screen_options(parser)
        width = max(len(command.name) for command in self.others)
        listed = "\n".join(
            wrap_text(f"  {command.name:<{width}}  {command.summary}", " " * (width + 4))
            for command in self.others
        )
        parser.description = f"{parser.description}\n\ncommands (each has --help):\n{listed}"

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The options; `command`: of `--connect -- COMMAND`, None without; `words`: all of them."""
        from ddptop.cli.connect import split_command

        before_command, command = split_command(words)
        options = super().parse(before_command)
        options.command, options.words = command, words
        return options

    def run(self, options: argparse.Namespace) -> int:
        """Find the run and show it; without a live one, the end of the newest recording."""
        from ddptop.cli.find import (
            RecordingEntry,
            find_run_or_file,
            is_path,
            newest_recording,
            wait_for_live,
            with_collector,
        )
        from ddptop.cli.show import Mode, choose_mode
        from ddptop.cli.web import in_browser, serve_screen

        if options.port is not None and not options.web:
            raise CliError("--port goes with --web", Exit.USAGE)
        if options.web and (options.once or options.json or options.watch):
            raise CliError("--web opens a screen: leave --once, --json and --watch out", Exit.USAGE)
        # In the browser's own process the screen itself runs.
        if options.web and not in_browser():
            return serve_screen(options.words, options.port or 0)
        mode = choose_mode(options, live=True)  # contradicting options are refused before anything else
        if options.connect is not None or options.command is not None:
            from ddptop.cli.connect import show_remote

            return show_remote(options, mode)
        if options.run is not None and is_path(options.run):
            return _show_file(Path(options.run), options, mode)
        running = with_collector(wait_for_live(options.run, options.wait))
        if options.run is not None:
            target = find_run_or_file(options.run, [command.name for command in self.others])
        elif not running:
            return _show_end(newest_recording(), options)
        # Without a screen the user chooses by number, or has to name one.
        elif len(running) > 1 and mode is Mode.SCREEN:
            return show_picker(options)
        else:
            target = running[0] if len(running) == 1 else choose_run(running)
        if isinstance(target, RecordingEntry):
            return _show_end(target.path, options)
        if isinstance(target, Path):
            return _show_file(target, options, mode)
        return show_live(target, options, mode)


def _show_file(path: Path, options: argparse.Namespace, mode: Mode) -> int:
    """Show a recording from its end, or the live run that still writes it."""
    from ddptop.cli.find import find_live

    whole_path = path.resolve()
    for run in find_live():
        if run.recording is not None and Path(run.recording).resolve() == whole_path:
            return show_live(run, options, mode)
    return _show_end(path, options)


def _show_end(recording: Path, options: argparse.Namespace) -> int:
    from ddptop.cli.commands.replay import show_recording

    return show_recording(recording, options, at_end=True)


def _parse_web_port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _parse_wait_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= MAX_WAIT_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to {MAX_WAIT_S:g}")
    return seconds


def show_live(run: RunFile, options: argparse.Namespace, mode: Mode) -> int:
    """Show a live run until it ends or the user quits. Raises CliError where it is collected elsewhere."""
    from ddptop.cli.show import Mode

    if run.collector_host is not None:
        return _show_part(run, options)
    if mode is Mode.SCREEN:
        # Before the imports, which take most of the time until the screen is there.
        first_picture.show_first_page(f"waiting for the first report of run {run.name}")
    from ddptop.cli.find import find_live
    from ddptop.cli.settings import load_settings
    from ddptop.cli.show import show_source
    from ddptop.sources.live import LiveSource

    try:
        return show_source(LiveSource(run), mode, load_settings(vars(options)).settings)
    except CliError:
        has_ended = all(other.run_id != run.run_id for other in find_live())
        if mode not in (Mode.ONCE, Mode.JSON) or run.recording is None or not has_ended:
            raise
    return _show_end(Path(run.recording), options)  # it has ended while its frame was waited for


def _show_part(run: RunFile, options: argparse.Namespace) -> int:
    """Show what the agent of this host records while it does not reach the collector."""
    from ddptop.cli.commands.replay import show_recording
    from ddptop.cli.find import collected_elsewhere

    if run.collector_reached or run.recording is None:
        raise CliError(collected_elsewhere(run))
    note(f"{collected_elsewhere(run)}; it is not reached: this is what the agent of this host records")
    return show_recording(Path(run.recording), options, follow=True)


def show_picker(options: argparse.Namespace) -> int:
    """Let the user choose on the screen, and show one run after the other."""
    first_picture.show_first_page("looking for runs")
    from ddptop.cli.settings import load_settings
    from ddptop.cli.show import Mode, show_source
    from ddptop.tui.runs import NoSource

    return show_source(NoSource(), Mode.SCREEN, load_settings(vars(options)).settings, view="picker")


def choose_run(running: Sequence[RunFile]) -> RunFile:
    """Let the user choose by number. Without a terminal raises CliError (3) with the list."""
    from ddptop.cli.runs import of_live, table_lines
    from ddptop.cli.show import has_terminal

    lines = table_lines([of_live(run) for run in running])
    if not has_terminal():
        listed = "\n".join(f"  {line}" for line in lines)
        raise CliError(f"{len(running)} live runs; name one: ddptop RUN\n{listed}", Exit.NOT_FOUND)
    print_text(f"    {lines[0]}", file=sys.stderr)
    for number, line in enumerate(lines[1:], start=1):
        print_text(f"{number:3} {line}", file=sys.stderr)
    while True:
        print_text("Number of the run to look at [1]: ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            raise KeyboardInterrupt  # Ctrl-D
        text = answer.strip() or "1"
        if text.isdecimal() and 1 <= int(text) <= len(running):
            return running[int(text) - 1]
