"""`ddptop replay FILE`: the same screen over a recording."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from ddptop.cli import first_picture
from ddptop.cli.commands.base import Command, add_screen_options
from ddptop.cli.errors import CliError, Exit

MAX_SPEED = 1000.0
"""An hour in under four seconds; faster is `max`, or the key `g`."""


class Replay(Command):
    """Shows a recording, also one that is still being written."""

    name = "replay"
    summary = "Show a recording on the same screen: step back and forth, compare two."
    examples = (
        "ddptop replay train-k7qf",
        "ddptop replay --at 12480 --json",
        "ddptop replay --follow /shared/train-k7qf.ddptop",
        "ddptop replay new.ddptop --compare old.ddptop",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the file, where to begin and how fast."""
        parser.add_argument(
            "file",
            nargs="?",
            metavar="FILE",
            help="a recording, or the name of a run or its beginning (default: the newest)",
        )
        parser.add_argument("--at", type=_parse_step, metavar="STEP", help="begin at this step")
        parser.add_argument(
            "--speed",
            type=_parse_speed,
            default=1.0,
            metavar="X",
            help="play X times as fast as it happened (default 1); max: as fast as possible",
        )
        parser.add_argument(
            "--follow",
            action="store_true",
            help="show the end while the file grows, also if another host writes it",
        )
        parser.add_argument(
            "--compare", metavar="FILE", help="show this recording beside it, step by step, as the base"
        )
        add_screen_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Check the file and the step, then show it."""
        from ddptop.cli.find import recording_of

        if options.follow and (options.at is not None or options.compare is not None):
            raise CliError("--follow shows the end: leave --at and --compare out", Exit.USAGE)
        path = recording_of(options.file)
        compare = None if options.compare is None else recording_of(options.compare)
        return show_recording(
            path, options, at=options.at, speed=options.speed, compare=compare, follow=options.follow
        )


def show_recording(
    path: Path,
    options: argparse.Namespace,
    *,
    at: int | None = None,
    speed: float = 1.0,
    at_end: bool = False,
    compare: Path | None = None,
    follow: bool = False,
) -> int:
    """Show a recording from its beginning, from step `at`, or paused at its end; beside it `compare`.

    `follow`: at its end, as it grows.

    Raises CliError: 3 no such recording, 4 not allowed to read it, 2 no such step in it.
    """
    from ddptop.cli.find import read_whole
    from ddptop.cli.settings import load_settings
    from ddptop.cli.show import Mode, choose_mode, print_frame, show_source

    mode = choose_mode(options, live=follow)
    settings = load_settings(vars(options)).settings
    if mode is Mode.SCREEN:
        first_picture.show_first_page(f"reading {path.name}")
    steps = _check_recording(path, at)
    if compare is not None:
        base_steps = _check_recording(compare, None)
        # Both at the last step that both have.
        if at is None and None not in (*steps, *base_steps):
            at = min(last for last in (steps[1], base_steps[1]) if last is not None)
            at_end = True
        if mode is not Mode.SCREEN:
            raise CliError("--compare needs the screen; --at STEP --json of each gives the same", Exit.USAGE)
    if mode in (Mode.ONCE, Mode.JSON):
        with read_whole(path, follow=follow) as recording:
            recording.will_be_read()
            from ddptop.sources.replay import frame_of

            frame = frame_of(recording, at)
        return print_frame(frame, mode, settings)
    from ddptop.sources.replay import ReplaySource

    source = ReplaySource(path, at=at, speed=speed, playing=not at_end, follow=follow)
    if at_end and at is None:
        source.seek(share=1.0)
    if compare is not None:
        from ddptop.sources.replay import PairSource

        return show_source(PairSource(source, ReplaySource(compare, playing=False)), mode, settings)
    return show_source(source, mode, settings)


def _check_recording(path: Path, at: int | None) -> tuple[int | None, int | None]:
    """Say what is wrong before a screen opens. Returns the first and the last step; None: there is no
    step."""
    from ddptop.cli.find import open_recording, progress_shown

    with progress_shown(f"opening {path.name}"), open_recording(path) as recording:
        first, last = recording.first_step, recording.last_step
    if at is None:
        return first, last
    if first is None or last is None:
        raise CliError(f"--at {at}: {path} holds no step; leave --at out", Exit.USAGE)
    if not first <= at <= last:
        raise CliError(f"--at {at}: {path} holds steps {first} to {last}", Exit.USAGE)
    return first, last


def _parse_step(text: str) -> int:
    plain = text.replace(",", "").replace("_", "")  # as the screen shows it, or as Python writes it
    if not plain.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a step number")
    return int(plain)


def _parse_speed(text: str) -> float:
    if text.lower() == "max":
        return math.inf
    try:
        speed = float(text.lower().removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0.0 < speed <= MAX_SPEED:
        raise argparse.ArgumentTypeError(f"{text!r} is no speed; give a factor up to {MAX_SPEED:g}, like 4")
    return speed
