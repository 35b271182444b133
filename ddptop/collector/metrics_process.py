"""Exports the run's figures while it lives (`--ddptop-metrics`, `--ddptop-to`): `ddptop metrics` as a process
of its own for each.

It is a viewer like any other, so that a scrape that hangs or an endpoint that does not answer never holds up
the collector. It ends with the collector, whose pipe is its standard input; the next one starts its own.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from ddptop.host import processes

VARIABLE = "DDPTOP_METRICS"
"""`prometheus:[HOST:]PORT` or `otlp:URL`, in the environment of the collector: a URL may hold a secret."""

LOGGER_VARIABLE = "DDPTOP_TO"
"""`tensorboard:DIR`, `wandb` or `mlflow`, in the environment of the collector."""

MOST_LINES = 10
"""Most lines of its stderr that are passed on."""


class MetricsProcess:
    """A context manager. Never raises."""

    def __init__(self, target: str, run_id: str, notify: Callable[[Mapping[str, object]], None]) -> None:
        """`target`: empty for none. `notify` sends a line to the launcher, also from another thread."""
        self._process: subprocess.Popen[str] | None = None
        kind = target.partition(":")[0]
        if not target:
            return
        variables = processes.child_environment() | {VARIABLE: target}
        command = [sys.executable, "-m", "ddptop", "metrics", run_id, "--while-stdin"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                # Its output is for a shell; what it says to people is on stderr.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=variables,
                text=True,
                errors="replace",
            )
        except OSError as error:
            notify({"news": f"metrics {kind}", "text": f"no metrics: {error}"})
            return
        arguments = (self._process, kind, notify)
        # A thread, since a pipe that nobody reads would stop the process once it is full.
        threading.Thread(target=_pass_on, args=arguments, name="ddptop-metrics", daemon=True).start()

    def __enter__(self) -> MetricsProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Let it end; it is not waited for."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


def _pass_on(
    process: subprocess.Popen[str], kind: str, notify: Callable[[Mapping[str, object]], None]
) -> None:
    """Notify the launcher of what it prints: where it listens, or why it cannot; until its exit."""
    assert process.stderr is not None
    with suppress(OSError, ValueError):
        # Read on after the last line that is passed on, so that the pipe never fills.
        for number, line in enumerate(process.stderr):
            if number < MOST_LINES and line.strip():
                text = line.strip().removeprefix("ddptop: ")
                notify({"news": f"metrics {kind} {number}", "text": text})
    # Collected, or it would stay a zombie while the collector lives.
    process.wait()
