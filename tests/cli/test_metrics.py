"""`ddptop metrics`: what cannot be served, written or sent is one line with an exit code."""

from __future__ import annotations

import socket
import sys

import pytest

import ddptop.export
from ddptop.cli.main import main
from ddptop.frames.frame import Frame

from .test_look import FakeSource


@pytest.fixture(autouse=True)
def run(live_run) -> None:
    """One that seems to be live; its collector never answers."""
    live_run("train-k7qf", "aa11")


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client", reason="pip install 'ddptop[metrics]'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["metrics", "--listen", str(port)]) == 1
    assert capsys.readouterr() == ("", f"ddptop: port {port} of 127.0.0.1: Address already in use\n")


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        ([], "prometheus_client", "metrics"),
        (["--textfile", "ddptop.prom"], "prometheus_client", "metrics"),
        (["--otlp", "http://127.0.0.1:1/v1/metrics"], "opentelemetry", "otlp"),
    ],
)
def test_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    package: str,
    extra: str,
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("prometheus", "otlp"):
        monkeypatch.delitem(sys.modules, f"ddptop.export.{name}", raising=False)
        monkeypatch.delattr(ddptop.export, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["metrics", *words]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.endswith(f"pip install 'ddptop[{extra}]'\n")


def test_a_file_that_cannot_be_written(
    frame: Frame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client", reason="pip install 'ddptop[metrics]'")
    monkeypatch.setattr("ddptop.sources.live.LiveSource", lambda run: FakeSource(frame))
    assert main(["metrics", "--textfile", "/proc/none/ddptop.prom"]) == 1
    assert capsys.readouterr() == ("", "ddptop: /proc/none/ddptop.prom: No such file or directory\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["train-9999"], 3, "no run is called"),
        (["--listen", "x"], 2, "not [HOST:]PORT"),
        (["--otlp", "localhost"], 2, "--otlp"),
    ],
)
def test_what_is_not_there_or_means_nothing(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert main(["metrics", *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("ddptop: ") and said in err and err.count("\n") == 1
