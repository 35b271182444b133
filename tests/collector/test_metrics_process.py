"""`--ddptop-metrics`: a real collector starts `ddptop metrics`, which ends with it."""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ddptop.cli.launch_options import UsageError, add_options
from ddptop.collector.metrics_process import LOGGER_VARIABLE, VARIABLE
from ddptop.host import folders
from ddptop.host.runs import create_run_directory
from tests.collector.conftest import Stage
from tests.export.test_loggers import scalars
from tests.processes import free_port
from tests.run_processes import RUN_ID

STEPS = 200


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """In a runtime folder that every process finds."""
    runtime = tmp_path / "r"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr(folders, "SHARED_TMP", tmp_path)
    made = Stage(create_run_directory(RUN_ID), tmp_path / "run.ddptop")
    yield made
    made.close()


def said(collector, about: str) -> str:
    """The collector's first notice about metrics, which has these words."""
    while line := collector.stdout.readline():
        notice = json.loads(line)
        if str(notice.get("news")).startswith("metrics"):
            assert about in notice["text"]
            return notice["text"]
    raise AssertionError("the collector has ended")


def test_a_runs_figures_are_served_until_its_collector_ends(stage, monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setenv(VARIABLE, "prometheus:0")
    collector = stage.collector()
    ranks = stage.ranks(steps=STEPS, end="hang")
    url = said(collector, "/metrics").rpartition(" ")[2]
    assert url.startswith("http://127.0.0.1:")  # only this machine, unless asked

    def page() -> str:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read().decode()

    stage.wait_for(lambda: all(line in page() for line in (f"ddptop_step {STEPS - 1}.0", "ddptop_up 1.0")))
    collector.kill()

    def refused() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(url.split(":")[2].partition("/")[0]))) != 0

    stage.wait_for(refused)
    for rank in ranks:
        rank.kill()


@pytest.mark.slow
def test_a_port_in_use_is_a_line_and_the_run_is_recorded(stage, monkeypatch):
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv(VARIABLE, f"prometheus:{port}")
        collector = stage.collector()
        ranks = stage.ranks(steps=STEPS)
        assert f"port {port} of 127.0.0.1: Address already in use" in said(collector, "in use")
        stage.ended(ranks)
        stage.finish(collector)


@pytest.mark.slow
def test_figures_go_to_an_otlp_receiver(stage, monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    steps: list[float] = []
    up: list[float] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportMetricsServiceRequest()
            request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
            for metric in request.resource_metrics[0].scope_metrics[0].metrics:
                if metric.name == "ddptop.step":
                    steps.append(metric.gauge.data_points[0].as_double)
                elif metric.name == "ddptop.up":
                    up.append(metric.gauge.data_points[0].as_double)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv(VARIABLE, f"otlp:http://127.0.0.1:{server.server_port}/v1/metrics")
    collector = stage.collector()
    ranks = stage.ranks(steps=STEPS, end="hang")
    stage.wait_for(lambda: STEPS - 1 in steps)
    for rank in ranks:
        rank.kill()
    stage.finish(collector, 1)
    stage.wait_for(lambda: up[-1] == 0)  # the last frame too, although the collector has ended
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
def test_figures_go_to_a_receiver_without_opentelemetrys_python(stage, monkeypatch, tmp_path):
    """rotel: an OTLP collector in Rust, which prints what it has received."""
    rotel = pytest.importorskip("rotel", reason="pip install rotel (glibc 2.34 and newer)")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    http, grpc, log = free_port(), free_port(), tmp_path / "rotel.log"
    words = [
        "start",
        "--exporter",
        "blackhole",
        "--debug-log",
        "metrics",
        "--debug-log-verbosity",
        "detailed",
    ]
    words += ["--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"]
    with log.open("w") as file:
        receiver = subprocess.Popen([Path(rotel.__file__).with_name("rotel-agent"), *words], stdout=file)
    monkeypatch.setenv(VARIABLE, f"otlp:http://127.0.0.1:{http}/v1/metrics")
    newest = re.compile(
        rf"Name: ddptop\.step\n(?: .*\n)+NumberDataPoints #0\n(?:\w.*\n)+?Value: {STEPS - 1}\n"
    )
    try:
        collector = stage.collector()
        ranks = stage.ranks(steps=STEPS, end="hang")
        stage.wait_for(lambda: newest.search(log.read_text()))
    finally:
        receiver.terminate()
        receiver.wait()
    for rank in ranks:
        rank.kill()
    assert {f"-> rank: Str({rank})" in log.read_text() for rank in (0, 1)} == {True}
    stage.finish(collector, 1)


@pytest.mark.slow
def test_a_logger_has_the_steps_of_a_live_run(stage, monkeypatch, tmp_path):
    pytest.importorskip("tensorboardX")
    monkeypatch.setenv(LOGGER_VARIABLE, f"tensorboard:{tmp_path / 'board'}")
    collector = stage.collector()
    ranks = stage.ranks(steps=STEPS, end="hang")

    def has_last_step() -> bool:
        return STEPS - 1 in {step for file in tmp_path.glob("board/*/*") for _, step, _ in scalars(file)}

    stage.wait_for(has_last_step)
    for rank in ranks:
        rank.kill()
    stage.finish(collector, 1)


@pytest.mark.slow
def test_a_logger_that_fails_is_a_line(stage, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(LOGGER_VARIABLE, f"tensorboard:{tmp_path / 'file'}")
    collector = stage.collector()
    ranks = stage.ranks(steps=STEPS, end="hang")
    assert said(collector, "tensorboard").endswith("; --ddptop-to is switched off")
    for rank in ranks:
        rank.kill()
    stage.finish(collector, 1)


def test_a_logger_of_no_known_kind_is_a_mistake(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    add_options(parser)
    for text in ("tensorboard", "tensorboard:", "wandb:x", "csv"):
        with pytest.raises(UsageError, match="--ddptop-to"):
            parser.parse_args(["--ddptop-to", text])
    assert parser.parse_args(["--ddptop-to", "tensorboard:runs"]).ddptop_to == f"tensorboard:{tmp_path}/runs"


@pytest.mark.parametrize(
    "text",
    ["9472", "prometheus:", "prometheus:70000", "otlp:localhost:4318", "otlp:http://[::1", "statsd:8125"],
)
def test_a_target_of_no_known_kind_is_a_mistake(text: str) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    with pytest.raises(UsageError, match="--ddptop-metrics"):
        parser.parse_args(["--ddptop-metrics", text])
