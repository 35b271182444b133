"""`--ddptop-on-alert`: incidents from alerts; a real collector calls a real command and a real URL."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ddptop.cli.launch_options import UsageError, add_options
from ddptop.collector.alert_calls import CALL_S, FAILED, SENT, VARIABLE, Caller
from ddptop.collector.incidents import LASTS_NS, OVER_NS, AlertIncidents, IncidentChange
from ddptop.frames.frame import Alert
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Event
from ddptop.recording.reader import Recording
from tests.run_processes import DEADLINE_S

SOON = ("ddptop.host.rank_processes.SILENCE_NS=0.5", "ddptop.collector.incidents.LASTS_NS=0.2")
"""For `stage.collector`: of a process whose end nobody can tell, the silence is taken for its end sooner, and
alerts are incidents sooner."""

APPEND = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read())"


def alert(kind: str = "straggler", rank: int | None = 1) -> Alert:
    return Alert(kind, "warning", rank, 7, 1.0, "text", {})  # type: ignore[arg-type]


def told(changes) -> list[tuple[int, bool, int | None]]:
    return [(change.number, change.begins, change.alert.rank) for change in changes]


def test_an_incident_begins_and_ends_once_however_its_alert_flickers() -> None:
    incidents = AlertIncidents()
    assert told(incidents.note_alerts([alert()], 0)) == []
    assert told(incidents.note_alerts([alert()], LASTS_NS)) == [(1, True, 1)]
    for second in range(4, 20, 4):  # gone for less than OVER_NS each time
        assert told(incidents.note_alerts([], second * NS)) == []
        assert told(incidents.note_alerts([alert()], (second + 2) * NS)) == []
    assert told(incidents.note_alerts([], 18 * NS + OVER_NS)) == [(1, False, 1)]
    assert told(incidents.note_alerts([], 60 * NS)) == []


def test_an_alert_of_a_moment_is_no_incident_and_another_straggler_is_another_one() -> None:
    incidents = AlertIncidents()
    incidents.note_alerts([alert(rank=1), alert("stall", 0)], 0)
    incidents.note_alerts([], NS)
    assert told(incidents.note_alerts([alert(rank=2), alert("stall", 0)], LASTS_NS)) == []
    incidents.note_alerts([alert(rank=2), alert("stall", 3)], 2 * LASTS_NS)
    later = incidents.note_alerts([alert(rank=3), alert("stall", 4)], 3 * LASTS_NS)
    assert later == [], "rank 2's may come back, the stall's rank is not what makes it another one"
    ends = incidents.note_alerts([alert(rank=3), alert("stall", 4)], 2 * LASTS_NS + OVER_NS)
    assert sorted(told(ends)) == [(1, False, 2), (3, True, 3)]


def test_at_the_end_what_is_new_begins_and_only_a_good_end_is_the_end_of_all() -> None:
    for well in (False, True):
        incidents = AlertIncidents()
        changes = told(incidents.note_last_alerts([alert()], 5, well=well))
        assert changes == [(1, True, 1), (1, False, 1)][: 1 + well]


def test_what_an_earlier_collector_has_called_for_is_not_called_for_again() -> None:
    incidents = AlertIncidents()
    incidents.recall_change(IncidentChange(4, True, alert()))
    incidents.recall_change(IncidentChange(3, True, alert("stall", 0)))
    incidents.recall_change(IncidentChange(3, False, alert("stall", 0)))
    assert told(incidents.note_alerts([alert(), alert("stall", 0)], 0)) == []
    assert told(incidents.note_alerts([alert(), alert("stall", 0)], LASTS_NS)) == [(5, True, 0)]
    assert told(incidents.note_alerts([], LASTS_NS + OVER_NS)) == [(4, False, 1), (5, False, 0)]


def test_what_was_over_while_there_was_no_collector_ends() -> None:
    incidents = AlertIncidents()
    incidents.recall_change(IncidentChange(4, True, alert()))
    assert told(incidents.note_alerts([], 60 * NS)) == [], "it may be there at the next look"
    assert told(incidents.note_alerts([], 60 * NS + OVER_NS)) == [(4, False, 1)]


def events(path: Path, kind: str) -> list[Event]:
    with Recording.open(path) as recording:
        return [r.message for r in recording.records() if getattr(r.message, "kind", "") == kind]


def calls(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_command_gets_each_incident_once_also_from_the_next_collector(stage, monkeypatch, tmp_path):
    log = tmp_path / "calls"
    monkeypatch.setenv(VARIABLE, shlex.join([sys.executable, "-c", APPEND, str(log)]))
    collector = stage.collector(haste=SOON)
    ranks = stage.ranks(steps=100_000)
    source = stage.source()
    stage.until(source, lambda frame: frame.group.step is not None and frame.group.step > 20)
    ranks[1].kill()
    stage.wait_for(lambda: calls(log))
    [call] = calls(log)
    assert call["event"] == "begin" and call["incident"] == 1
    assert call["run"]["name"] == "name" and call["run"]["world_size"] == 2
    assert (call["alert"]["kind"], call["alert"]["rank"]) == ("lost_rank", 1)
    assert "SIGKILL" in call["alert"]["message"]
    stage.wait_for(lambda: stage.recording.exists() and events(stage.recording, SENT))
    collector.kill()
    collector.wait()
    collector = stage.collector(haste=SOON)
    ranks[0].kill()
    stage.finish(collector, 1)
    assert [event.fields["incident"] for event in events(stage.recording, SENT)] == [1], "told again"
    assert len(calls(log)) == 1


def test_a_command_that_fails_is_reported(stage, monkeypatch):
    monkeypatch.setenv(VARIABLE, "cat >/dev/null; exit 3")
    collector = stage.collector(haste=SOON)
    stage.ranks(steps=50, end="crash")
    lines: list[str] = []
    while not any("exit code 3" in line for line in lines):
        lines.append(collector.stdout.readline())
        assert lines[-1], lines
    assert json.loads(lines[-1])["news"] == "on-alert"
    stage.finish(collector, 1)
    assert "exit code 3" in events(stage.recording, FAILED)[0].fields["message"]


@pytest.mark.slow
def test_a_command_that_hangs_holds_nothing_up(stage, monkeypatch, tmp_path):
    pid_file = tmp_path / "pid"
    words = f"echo $$ >{shlex.quote(str(pid_file))}.new; mv {pid_file}.new {pid_file}; exec sleep 600"
    monkeypatch.setenv(VARIABLE, words)
    collector = stage.collector()
    stage.ranks(steps=50, end="crash")
    began_s = time.monotonic()
    stage.wait_for(pid_file.exists)
    collector.stdin.write('{"exit_code": 1}\n')
    collector.stdin.close()
    alive = os.pidfd_open(int(pid_file.read_text()))
    try:
        collector.wait(DEADLINE_S)
        if time.monotonic() - began_s < CALL_S:  # later it has been killed, on a machine this busy
            signal.pidfd_send_signal(alive, signal.SIGKILL)
    finally:
        os.close(alive)


def test_a_url_is_sent_the_same(stage, monkeypatch):
    got: list[tuple[str, dict[str, object]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{server.server_port}/hook?token=secret")
        collector = stage.collector(haste=SOON)
        stage.ranks(steps=50, end="crash")
        stage.wait_for(lambda: got)
        stage.finish(collector, 1)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    path, body = got[0]
    assert path == "/hook?token=secret"
    assert body["event"] == "begin" and body["alert"]["kind"] in ("lost_rank", "failed_rank")
    with Recording.open(stage.recording) as recording:
        assert "secret" not in repr(list(recording.records())), "a URL may hold a secret"


def test_why_a_url_cannot_be_called_does_not_have_it() -> None:
    assert Caller("http://127.0.0.1:1/a b?token=secret").call_target(b"{}") == "InvalidURL"
    refused = Caller("http://127.0.0.1:1/?token=secret").call_target(b"{}")
    assert "refused" in refused and "secret" not in refused


@pytest.fixture
def receiver():
    """A function that begins to answer connections, in parts; it returns a URL and what arrives there."""
    listening: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(answer: list[bytes], pause: threading.Event | None = None) -> tuple[str, list[bytes]]:
        server = socket.create_server(("127.0.0.1", 0))
        arrived: list[bytes] = []

        def loop() -> None:
            while True:
                try:
                    connection = server.accept()[0]
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    arrived.append(connection.recv(65_536))
                    for part in answer:
                        connection.sendall(part)
                        if pause is not None:
                            pause.wait(0.2)

        listening.append(server)
        threads.append(threading.Thread(target=loop))
        threads[-1].start()
        return f"http://127.0.0.1:{server.getsockname()[1]}/hook", arrived

    yield serve
    for server in listening:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("target", ["{}", "ftp://127.0.0.1:1/x", "file:///etc/hostname"])
def test_a_redirect_is_a_failure_and_nothing_else_is_requested(monkeypatch, receiver, target: str) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    elsewhere, got_elsewhere = receiver([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
    place = target.format(elsewhere).encode()
    for status in (b"301", b"302", b"307", b"308"):
        head = b"HTTP/1.1 " + status + b" Moved\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n"
        url, _ = receiver([head])
        why = Caller(url).call_target(b"{}")
        assert f"({status.decode()})" in why, why
    assert got_elsewhere == []


def test_a_receiver_that_answers_a_byte_at_a_time_has_one_deadline(monkeypatch, receiver) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    pause = threading.Event()
    url, _ = receiver([b"HTTP/1.1 200 OK\r\nX-A: ", *[b"a"] * 100_000], pause)
    try:
        assert Caller(url).call_target(b"{}", 2.0) == "the receiver did not answer within 2 s"
    finally:
        pause.set()


def test_an_alert_that_has_waited_too_long_is_counted_and_nothing_outlives_the_run_for_long() -> None:
    shortened = (
        "import sys; from ddptop.collector import alert_calls; alert_calls.LONGEST_WAIT_S = 0.5;"
        "alert_calls.CALL_S = 1.5; alert_calls.LAST_S = {}; sys.exit(alert_calls.main())"
    )
    call = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {VARIABLE: "exec sleep 600"}
    process = subprocess.Popen([sys.executable, "-c", shortened.format(300)], env=environment, **call)
    lines = process.communicate("{}\n{}\n{}\n", DEADLINE_S)[0].splitlines()
    assert lines[0] == "the command did not end within 1.5 s"
    assert lines[1:] == ["2 calls waited for more than 0.5 s and were left out"]
    words = shortened.replace("CALL_S = 1.5", "CALL_S = 600").format(0.5)
    process = subprocess.Popen([sys.executable, "-c", words], env=environment, stderr=subprocess.PIPE, **call)
    assert "2 alerts are not sent" in process.communicate("{}\n{}\n", DEADLINE_S)[1]


@pytest.mark.parametrize("text", ["", "  "])
def test_nothing_to_call_is_a_mistake(text: str) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    with pytest.raises(UsageError, match="--ddptop-on-alert"):
        parser.parse_args(["--ddptop-on-alert", text])
