"""`ddptop metrics RUN`: the figures of a live run for Prometheus or an OpenTelemetry collector."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ddptop.cli.commands.base import Command
from ddptop.cli.errors import CliError, Exit, note
from ddptop.collector.metrics_process import VARIABLE
from ddptop.host.installation import install_command

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame
    from ddptop.host.runs import RunFile

ADDRESS, PORT = "127.0.0.1", 9472
"""Where it listens by default: only this machine can connect."""

WRITE_S = 1.0
"""Time between two versions of the file, and two exports to a URL."""

FRESH_S = 0.2
"""Longest pause between frames: ranks report within 0.5 s, so that a scrape is usually less than 1 s old."""

LAST_S = 15.0
"""Time for the last frame once the collector has ended. A port is given back at once: the next collector has
it served again."""


class Metrics(Command):
    """Serves or writes the figures of a run while it lives."""

    name = "metrics"
    summary = "Export the figures of a live run: to Prometheus, node-exporter or OpenTelemetry."
    examples = (
        "ddptop metrics",
        "ddptop metrics train-k7qf --listen 0.0.0.0:9472",
        "ddptop metrics --textfile /var/lib/node_exporter/ddptop.prom",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the run, and where its metrics go."""
        parser.add_argument(
            "run", nargs="?", metavar="RUN", help="name or id of a live run, or its beginning"
        )
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            "--listen",
            type=_parse_address,
            metavar="[HOST:]PORT",
            default=(ADDRESS, PORT),
            help=f"serve /metrics at this address (default {ADDRESS}:{PORT}; port 0: any free one)",
        )
        where.add_argument(
            "--textfile", metavar="FILE", help="write this file once a second, and open no port"
        )
        where.add_argument(
            "--otlp", type=_parse_url, metavar="URL", help="export to this URL once a second (OTLP over HTTP)"
        )
        where.add_argument("--while-stdin", action="store_true", help=argparse.SUPPRESS)

    def run(self, options: argparse.Namespace) -> int:
        """Serve, write or export until the run has ended."""
        from ddptop.cli.show import follow_frames, started_source
        from ddptop.sources.live import LiveSource

        if options.while_stdin:
            kind, _, where = os.environ[VARIABLE].partition(":")
            serving = kind == "prometheus"
            # The port is free again at once; what is only sent may still go out.
            _end_with_stdin(0.0 if serving else LAST_S)
            options.listen = _parse_address(where) if serving else None
            options.otlp = where if kind == "otlp" else None
        run = _find_live_run(options.run)
        source = LiveSource(run)
        # A scrape is to be fresh, also where a screen would ask for fewer frames.
        source.pace.slowest_s = FRESH_S
        with ExitStack() as stack:
            take: Callable[[Frame], None] | None = None
            if options.textfile is not None:
                from ddptop.cli.find import keep_recording

                keep_recording(Path(options.textfile), "give --textfile another name")
                take = _file_writer(Path(options.textfile))
            elif options.otlp is not None:
                from urllib.parse import urlsplit

                take = _otlp_exporter(options.otlp, stack)
                # The rest of the URL may hold a secret.
                note(f"metrics of {run.name} go to {urlsplit(options.otlp).hostname}")
            elif options.listen is None:
                take = _frame_logger(os.environ[VARIABLE], stack)
            stack.enter_context(started_source(source))
            if take is None:
                serve = _import_prometheus().serve_metrics
                address, port = options.listen
                try:
                    port, end = serve(source.latest, address, port)
                except OSError as error:
                    code = Exit.REFUSED if isinstance(error, PermissionError) else Exit.FAILED
                    raise CliError(f"port {port} of {address}: {error.strerror or error}", code) from None
                stack.callback(end)
                note(f"metrics of {run.name} at http://{address}:{port}/metrics")
            due, last = time.monotonic(), None
            for frame in follow_frames(source):
                last = frame
                if take is not None and time.monotonic() >= due:
                    take(frame)
                    last, due = None, time.monotonic() + WRITE_S
            # The run has ended between two versions: its last state is written.
            if take is not None and last is not None:
                take(last)
        return Exit.DONE


def _find_live_run(word: str | None) -> RunFile:
    """The run that is meant. Raises CliError."""
    from ddptop.cli.commands.look import choose_run
    from ddptop.cli.find import RecordingEntry, collected_elsewhere, find_run, wait_for_live, with_collector

    running = with_collector(wait_for_live(word, None))
    if not running:
        raise CliError("no live run", Exit.NOT_FOUND)
    only = running[0] if len(running) == 1 else None
    entry = find_run(word) if word is not None else only or choose_run(running)
    if isinstance(entry, RecordingEntry):
        raise CliError(f"{entry.name} has ended", Exit.NOT_FOUND)
    if entry.collector_host is not None:
        raise CliError(collected_elsewhere(entry))
    return entry


def _import_prometheus() -> ModuleType:
    try:
        from ddptop.export import prometheus
    except ModuleNotFoundError as error:
        command = install_command("metrics")
        raise CliError(f"metrics need the package prometheus_client: {command}") from error
    return prometheus


def _file_writer(path: Path) -> Callable[[Frame], None]:
    write = _import_prometheus().write_textfile
    return lambda frame: write(frame, path)


def _otlp_exporter(url: str, stack: ExitStack) -> Callable[[Frame], None]:
    """A function that sends a frame. It prints a line for the first frame that is not taken, and for the
    first one after that which is."""
    try:
        # Imported here, since the package is an extra.
        from ddptop.export.otlp import OtlpExporter
    except ModuleNotFoundError as error:
        raise CliError(
            "metrics over OTLP need the package opentelemetry-exporter-otlp-proto-http: "
            f"{install_command('otlp')}"
        ) from error
    exporter, taken = OtlpExporter(url), True
    stack.callback(exporter.close)

    def send(frame: Frame) -> None:
        nonlocal taken
        before, taken = taken, exporter.send_frame(frame)
        if taken != before:
            note("metrics are taken again" if taken else "metrics are not taken: no answer, or a refusal")

    return send


def _frame_logger(target: str, stack: ExitStack) -> Callable[[Frame], None]:
    """A function that writes a frame with a logger. A logger that fails or hangs ends this process with a
    line."""
    from ddptop.export.loggers import Logger, LoggerError

    logger = Logger(target)

    def checked(call: Callable[[], None]) -> None:
        try:
            call()
        except LoggerError as error:
            note(f"{error}; --ddptop-to is switched off")
            os._exit(Exit.FAILED)  # a thread may hang in it

    stack.callback(checked, logger.close)
    return lambda frame: checked(lambda: logger.log_frame(frame))


def _end_with_stdin(after_s: float) -> None:
    """End this process `after_s` seconds after its standard input is closed, whatever it does. The collector
    has ended then."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        time.sleep(after_s)
        os._exit(Exit.DONE)

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def _parse_url(text: str) -> str:
    """Raises ValueError where it is none."""
    from ddptop.cli.launch_options import metrics_target

    return metrics_target(f"otlp:{text}").partition(":")[2]


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not [HOST:]PORT")
    return host.strip("[]") or ADDRESS, int(port)
