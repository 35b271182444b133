"""`--ddptop-to`: what a logger is given, and that one which fails or hangs is given up."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddptop.export import loggers
from ddptop.export.loggers import Logger, LoggerError, figures_to_log
from ddptop.frames.frame import Frame, LoggedScalar
from ddptop.host.installation import install_command
from ddptop.recording.reader import Recording
from ddptop.sources.replay import frame_of
from tests.made_up_run import write_recording


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> Frame:
    path = tmp_path_factory.mktemp("loggers") / "train-k7qf.ddptop"
    write_recording(path)
    with Recording.open(path) as recording:
        found = frame_of(recording, None)
    known = LoggedScalar("acc top:1", 2, 0.5, 0.4, 0.6, 0, 1, None)
    unknown = LoggedScalar("nan", 2, None, None, None, None, None, None)
    return replace(found, logged=(known, unknown))


def scalars(file: Path) -> Iterator[tuple[str, int, float]]:
    """Tag, step and value of every scalar of a TensorBoard file: records of a length, its CRC, data, CRC."""
    from tensorboardX.proto.event_pb2 import Event

    data, at = file.read_bytes(), 0
    while at + 12 < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        if at + 16 + size > len(data):  # it is being written
            return
        event = Event.FromString(data[at + 12 : at + 12 + size])
        yield from ((one.tag, event.step, one.simple_value) for one in event.summary.value)
        at += 16 + size


def test_unknown_figures_are_left_out(frame: Frame) -> None:
    found = figures_to_log(frame)
    assert found["ddptop/step_ms_p50"] == frame.group.step_ms_p50
    assert found["logged/acc top_1"] == 0.5
    assert "logged/nan" not in found and None not in found.values()


def test_tensorboard_has_each_step_once(frame: Frame, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    logger = Logger(f"tensorboard:{tmp_path}")
    logger.log_frame(frame)
    logger.log_frame(frame)
    logger.close()
    (file,) = (tmp_path / "train-k7qf").iterdir()
    found = [*scalars(file)]
    assert len(found) == len(figures_to_log(frame))
    assert {step for _, step, _ in found} == {frame.group.step}


def test_a_logger_that_hangs_is_given_up(frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(loggers, "open_wandb", lambda run: ended.wait())
    try:
        with pytest.raises(LoggerError, match=r"wandb has not answered for 0\.05 s"):
            Logger("wandb", timeout_s=0.05).log_frame(frame)
    finally:
        ended.set()


@pytest.mark.parametrize(
    ("target", "package"), [("tensorboard:logs", "tensorboardX"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_missing_package_is_named(
    frame: Frame, monkeypatch: pytest.MonkeyPatch, target: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LoggerError) as raised:
        Logger(target).log_frame(frame)
    kind = target.partition(":")[0]
    assert str(raised.value) == f"{kind} needs {package}: {install_command(kind)}"


def test_a_logger_that_fails_is_named(frame: Frame, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    with pytest.raises(LoggerError, match="tensorboard: NotADirectoryError"):
        Logger(f"tensorboard:{tmp_path / 'file'}").log_frame(frame)


@pytest.mark.slow  # W&B starts a process of its own: 5 s
def test_wandb_has_the_figures(frame: Frame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'ddptop[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    logger = Logger("wandb")
    logger.log_frame(frame)
    logger.close()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    written = file.read_bytes()
    for name in figures_to_log(frame):
        assert name.encode() in written


@pytest.mark.slow  # MLflow makes its tables in SQLite: 15 s
def test_mlflow_has_the_figures(frame: Frame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'ddptop[mlflow]'")
    pytest.importorskip("sqlalchemy", reason="MLflow's store in SQLite: pip install mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    logger = Logger("mlflow")
    logger.log_frame(frame)
    logger.close()
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("ddptop").experiment_id])
    assert (run.info.run_name, run.info.status) == (frame.run.name, "FINISHED")
    assert run.data.metrics == pytest.approx(figures_to_log(frame))
    assert client.get_metric_history(run.info.run_id, "ddptop/step_ms_p50")[0].step == frame.group.step
