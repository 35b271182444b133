"""A live run's figures for the loggers that people use: TensorBoard (tensorboardX), W&B and MLflow.

Each is written by a process of its own, never by a rank (`ddptop/collector/metrics_process.py`).
"""

from __future__ import annotations

import math
import os
import re
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ddptop.frames.figures import GROUP_FIGURES
from ddptop.host.installation import install_command
from ddptop.protocol.outlets import safe_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ddptop.frames.frame import Frame, RunInfo

    Write: TypeAlias = Callable[[Mapping[str, float], int], None]
    """Writes the figures of a step."""
    Opened: TypeAlias = tuple[Write, Callable[[], object]]
    """A logger: how it writes, and how it is closed."""

PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
"""By the name of the logger, the package that it needs."""

TIMEOUT_S = 60.0
"""Longest time of one write. Opening takes W&B some seconds over a slow line."""

NOT_IN_NAMES = re.compile(r"[^\w./ -]")
"""MLflow refuses these characters."""


class LoggerError(Exception):
    """The logger has failed, or has not answered; the text is for a person."""


def figures_to_log(frame: Frame) -> dict[str, float]:
    """What is written of a frame, by name: the known figures of the group and the logged values' means."""
    values = {
        f"ddptop/{figure.name}": getattr(frame.group, figure.name)
        for figure in GROUP_FIGURES
        if figure.is_logged
    }
    # MLflow takes letters, digits and these signs.
    values |= {f"logged/{NOT_IN_NAMES.sub('_', value.name)}": value.mean for value in frame.logged}
    return {
        name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)
    }


class Logger:
    """Writes frames with one logger; what hangs in it holds up a thread and nothing else."""

    def __init__(self, target: str, timeout_s: float = TIMEOUT_S) -> None:
        """`target`: `tensorboard:DIR`, `wandb` or `mlflow`."""
        self.kind, _, self._folder = target.partition(":")
        self._timeout_s = timeout_s
        # One thread: figures must be written in the order of their steps.
        self._thread = ThreadPoolExecutor(1, "ddptop-logger")
        self._opened: Opened | None = None
        self._newest = (0, -1)
        """Incarnation and step that were written last."""

    def log_frame(self, frame: Frame) -> None:
        """Write the figures if the run has made a step since the last ones.

        Raises LoggerError where that fails or takes longer than the timeout."""
        step, values = frame.group.step, figures_to_log(frame)
        # In this order: after a restart the steps count from 0 again.
        if step is None or (frame.group.incarnation, step) <= self._newest or not values:
            return
        self._newest = (frame.group.incarnation, step)
        self._call_with_timeout(lambda: self._write_figures(frame.run, values, step))

    def close(self) -> None:
        """Have what was written reach its place. Raises LoggerError."""
        if self._opened is not None:
            self._call_with_timeout(self._opened[1])

    def _call_with_timeout(self, call: Callable[[], object]) -> None:
        try:
            # In its thread, so that a logger that hangs can be given up.
            self._thread.submit(call).result(self._timeout_s)
        except NoAnswer:
            raise LoggerError(f"{self.kind} has not answered for {self._timeout_s:g} s") from None
        except ModuleNotFoundError as error:
            package = error.name or PACKAGES[self.kind]
            raise LoggerError(f"{self.kind} needs {package}: {install_command(self.kind)}") from None
        except Exception as error:  # noqa: BLE001 - whatever a logger raises
            # The first line only: the rest of such an error is a traceback or a page of HTML.
            text = str(error).partition("\n")[0]
            raise LoggerError(f"{self.kind}: {type(error).__name__}: {text}") from None

    def _write_figures(self, run: RunInfo, values: Mapping[str, float], step: int) -> None:
        # Opened with the first figures: a run that makes no step leaves nothing there.
        if self._opened is None:
            opening = {"tensorboard": self._open_tensorboard, "wandb": open_wandb, "mlflow": _open_mlflow}
            self._opened = opening[self.kind](run)
        self._opened[0](values, step)

    def _open_tensorboard(self, run: RunInfo) -> Opened:
        from tensorboardX import SummaryWriter

        writer = SummaryWriter(str(Path(self._folder) / safe_text(run.name)), flush_secs=1)

        def write_values(values: Mapping[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        return write_values, writer.close


def open_wandb(run: RunInfo) -> Opened:
    """A run of its own, in the project of the user's variables (WANDB_PROJECT, WANDB_MODE and so on)."""
    import wandb

    project = os.environ.get("WANDB_PROJECT", "ddptop")
    opened = wandb.init(
        project=project,
        name=safe_text(run.name),
        job_type="ddptop",
        settings={"console": "off", "silent": True},
    )
    return lambda values, step: opened.log(dict(values), step=step), opened.finish


def _open_mlflow(run: RunInfo) -> Opened:
    """The user's run where MLFLOW_RUN_ID names it, or else one of its own."""
    import mlflow

    client = mlflow.MlflowClient()
    # A run that the user has begun is not ended with ours.
    given = run_id = os.environ.get("MLFLOW_RUN_ID")
    if run_id is None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "ddptop")
        experiment_there = client.get_experiment_by_name(name)
        experiment = (
            client.create_experiment(name) if experiment_there is None else experiment_there.experiment_id
        )
        run_id = client.create_run(experiment, run_name=safe_text(run.name)).info.run_id

    def write_values(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            client.log_metric(run_id, name, value, step=step)

    return write_values, lambda: given or client.set_terminated(run_id)
