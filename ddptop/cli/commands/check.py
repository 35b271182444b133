"""`ddptop check NEW --against BASE`: whether a run is worse than another one, or than limits; for CI."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.cli.commands.base import Command
from ddptop.cli.errors import CliError, Exit, note
from ddptop.frames.numbers import percent, significant
from ddptop.protocol.outlets import print_json, print_text
from ddptop.protocol.texts import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from xml.etree import ElementTree as xml

    from ddptop.recording.reader import Recording
    from ddptop.report.check import Measured, Result

LEAST_TOLERANCE, MOST_TOLERANCE = 0.1, 100.0
"""Percent of the step."""

WORDS = {"within": "within", "regression": "REGRESSION", "unknown": "cannot tell"}


class CheckCommand(Command):
    """Compares a recording with another one or with limits; the exit code says whether it is worse."""

    name = "check"
    summary = "Compare a run with another one, or with limits: exit code 1 if it is worse."
    details = "Exit code 0: nothing is worse. Exit code 5: the recordings cannot tell."
    examples = (
        "ddptop check new.ddptop --against base.ddptop",
        "ddptop check train-k7qf --limits limits.toml --junit check.xml",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the runs, the limits, and the form of the result."""
        what = "a recording, or the name of a run or its beginning"
        parser.add_argument("new", metavar="NEW", help=what)
        parser.add_argument("--against", metavar="BASE", help=f"{what}; NEW may not be worse")
        parser.add_argument("--limits", metavar="TOML", help="a file of limits, such as: step_ms = 120")
        parser.add_argument(
            "--tolerance",
            type=_parse_tolerance,
            default=1.0,
            metavar="PCT",
            help="NEW may be worse by so many percent of BASE's step (default 1)",
        )
        parser.add_argument("--json", action="store_true", help="print the results as JSON")
        parser.add_argument("--junit", metavar="FILE", help="write the results as JUnit XML too")

    def run(self, options: argparse.Namespace) -> int:
        """Read the recordings, compare, print."""
        # Refused before a recording is read, which may take long.
        if options.against is None and options.limits is None:
            raise CliError("check needs --against BASE or --limits TOML", Exit.USAGE)
        if options.junit is not None:
            from ddptop.cli.find import keep_recording

            _check_writable(Path(options.junit))
            keep_recording(Path(options.junit), "give --junit another file")
        limits = {} if options.limits is None else _read_limits(Path(options.limits))
        from ddptop.report.check import against_base, against_limits, overall_outcome

        new = _read_measured(options.new)
        results = against_limits(new, limits)
        base = None
        if options.against is not None:
            base = _read_measured(options.against)
            if base.world_size != new.world_size:
                note(f"{new.name} has {new.world_size} ranks, {base.name} {base.world_size}")
            results += against_base(new, base, options.tolerance)
        whole = overall_outcome(results)
        names = {"new": new.name, "base": None if base is None else base.name}
        if options.json:
            checks = [{**asdict(result), "sentence": result_sentence(result)} for result in results]
            print_json({"schema": 1, "outcome": whole, **names, "checks": checks}, allow_nan=True)
        else:
            print_text("\n".join(_page_lines(results, names, whole)))
        if options.junit is not None:
            try:
                _junit_tree(results, new.name).write(options.junit, encoding="utf-8", xml_declaration=True)
            except OSError as error:  # the disk is full, or the folder has gone meanwhile
                raise CliError(f"--junit {options.junit}: {error.strerror}", Exit.USAGE) from None
        # Only where a job of GitHub runs: elsewhere such lines mean nothing.
        if os.environ.get("GITHUB_ACTIONS"):
            for line in _github_annotations(results, new.name):
                print_text(line, file=sys.stderr)
        if whole == "unknown":
            why = next(
                f"{result.words}: {result.reason}" for result in results if result.reason and result.decides
            )
            raise CliError(f"cannot tell whether {new.name} is worse: {why}", Exit.UNKNOWN)
        return Exit.DONE if whole == "within" else Exit.FAILED


def result_sentence(result: Result) -> str:
    """`step time 103.1 ms, 3.1 ms (3.1%) more (2.4 to 3.8) than the base's 100 ms`."""
    unit = {"": "", "%": "%"}.get(result.unit, f" {result.unit}")
    reference_words = "the limit of" if result.against == "limit" else "the base's"
    if result.new is None or result.reference is None or result.more is None:
        return f"{result.words}: {result.reason}"
    reference = f"{reference_words} {significant(result.reference, 4)}{unit}"
    if not result.more:
        return f"{result.words} {significant(result.new, 4)}{unit}, as {reference}"
    text = f"{result.words} {significant(result.new, 4)}{unit}, {significant(abs(result.more), 3)}{unit}"
    if result.reference and result.unit == "ms":
        text += f" ({percent(100 * abs(result.more) / result.reference, 1)})"
    text += " more" if result.more > 0 else " less"
    if result.low is not None and result.high is not None:
        ends = (result.low, result.high) if result.more > 0 else (-result.high, -result.low)
        text += f" ({significant(ends[0], 3)} to {significant(ends[1], 3)})"
    return f"{text} than {reference}"


def _page_lines(results: Sequence[Result], names: Mapping[str, str | None], whole: str) -> list[str]:
    against = " and ".join(
        [
            *([f"against {names['base']}"] if names["base"] else []),
            *(["limits"] if _is_limited(results) else []),
        ]
    )
    lines = [f"check of {names['new']}, {against}: {WORDS[whole]}"]
    for result in results:
        reason = f" ({result.reason})" if result.reason and result.more is not None else ""
        lines.append(f"  {WORDS[result.outcome]:<12}{result_sentence(result)}{reason}")
    return [printable(line) for line in lines]


def _is_limited(results: Sequence[Result]) -> bool:
    return any(result.against == "limit" for result in results)


def _read_measured(word: str) -> Measured:
    from ddptop.cli.find import SUFFIX, read_whole, recording_of
    from ddptop.report.check import measure_recording

    with read_whole(recording_of(word)) as recording:
        measured = measure_recording(recording, recording.path.name.removesuffix(SUFFIX))
        if recording.damage is not None:
            note(f"{recording.path.name}: {recording.damage}; the rest was read")
        if (end := _bad_end(recording)) is not None:
            note(f"{recording.path.name}: {end}; the steps before that are compared")
    return measured


def _bad_end(recording: Recording) -> str | None:
    """How a run ended that did not end well; None: it did, goes on, or is told by the damage."""
    run = recording.latest_run
    if run.state == "failed":
        return "the run failed" if not run.exit_code else f"the run failed with exit code {run.exit_code}"
    is_told = recording.growing or recording.damage is not None or run.state == "finished"
    return None if is_told else "how the run ended is unknown"


def _read_limits(path: Path) -> dict[str, float]:
    """The limits of a file. Raises CliError (2) where it is not there or one of them means nothing."""
    from ddptop.cli.settings import read_toml
    from ddptop.report.check import FIGURES

    names = [figure.name for figure in FIGURES]
    if not path.is_file():
        raise CliError(f"{path}: no such file", Exit.USAGE)
    limits = read_toml(path)
    for name, value in limits.items():
        if name not in names:
            raise CliError(f"{path}: {name} is no figure; choose from {', '.join(names)}", Exit.USAGE)
        # A bool is an int, and no limit.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise CliError(f"{path}: {name} = {value!r} is no limit; give a number", Exit.USAGE)
    if not limits:
        raise CliError(f"{path} has no limits; one is step_ms = 120", Exit.USAGE)
    return {name: float(str(value)) for name, value in limits.items()}


def _check_writable(path: Path) -> None:
    """Raise CliError (2) if no file can be written at `path`. Called before recordings are read, which takes
    long."""
    if path.is_dir():
        why = "is a folder; give a file"
    elif not path.parent.is_dir():
        why = "no such folder"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "cannot be written"
    else:
        return
    raise CliError(f"--junit {path}: {why}", Exit.USAGE)


def _junit_tree(results: Sequence[Result], name: str) -> xml.ElementTree[xml.Element[str]]:
    """A test case per figure. An unknown result is an error if it decides the outcome, else skipped."""
    from xml.etree import ElementTree as xml

    kinds = {
        id(result): "failure" if result.outcome == "regression" else "error" if result.decides else "skipped"
        for result in results
        if result.outcome != "within"
    }
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    totals = {key: str([*kinds.values()].count(kind)) for key, kind in counts.items()}
    suite = xml.Element("testsuite", {"name": "ddptop check", "tests": str(len(results)), **totals})
    for result in results:
        attributes = {"classname": printable(name), "name": f"{result.figure} against {result.against}"}
        case = xml.SubElement(suite, "testcase", attributes)
        if id(result) in kinds:
            xml.SubElement(case, kinds[id(result)], {"message": printable(_result_with_reason(result))})
    return xml.ElementTree(suite)


def _github_annotations(results: Sequence[Result], name: str) -> list[str]:
    """Lines that GitHub shows beside the job: errors, and warnings for what is unknown."""
    lines = []
    for result in results:
        if result.outcome == "regression" or (result.outcome == "unknown" and result.decides):
            level = "error" if result.outcome == "regression" else "warning"
            # Percent signs begin escapes in these lines.
            text = printable(f"{name}: {_result_with_reason(result)}").replace("%", "%25")
            lines.append(f"::{level} title=ddptop check::{text}")
    return lines


def _result_with_reason(result: Result) -> str:
    text = result_sentence(result)
    return text if not result.reason or result.more is None else f"{text}: {result.reason}"


def _parse_tolerance(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = 0.0
    if not LEAST_TOLERANCE <= value <= MOST_TOLERANCE:
        allowed = f"{LEAST_TOLERANCE:g} to {MOST_TOLERANCE:g}"
        raise argparse.ArgumentTypeError(f"{text!r} is no tolerance; give percent, {allowed}")
    return value
