"""NCCL's RAS service, asked over its text protocol; a made-up server speaks as NCCL's source has it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack

import pytest

from ddptop.host import nccl_ras
from ddptop.host.nccl_ras import (
    DEFAULT_ADDRESS,
    NOTHING_KNOWN,
    NOTHING_WRONG,
    RasClient,
    RasError,
    query_ras,
    ras_address,
    ras_findings,
)
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.messages import Event

HEAD = """NCCL version 2.28.9+cuda13.0 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  MISMATCH

"""
HEALTHY = HEAD + "Errors\n======\n\nWarnings\n========\n\n"
TROUBLED = (
    HEAD
    + """Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.210 managing GPU 5

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 412
  Rank 1 has launched up to operation 411 -- GPU 1 managed by process 48307 on node 172.16.64.209

"""
)
TOLD = [
    "DEAD: 1 job process is considered dead (unreachable via the RAS network); "
    "Process 3487984 on node 172.16.64.210 managing GPU 5",
    "TIMEOUT: Encountered 2 communication timeouts while gathering communicator data",
    "#0-0 MISMATCH: Communicator ranks have different AllReduce operation counts; 3 ranks have launched up "
    "to operation 412; Rank 1 has launched up to operation 411 -- GPU 1 managed by process 48307 on node "
    "172.16.64.209",
]

Serve = Callable[[str], tuple[str, int]]


def answer(connection: socket.socket, status: str, heard: list[str]) -> None:
    """One client, as `rasClientEventLoop` treats it: STATUS ends with the connection."""
    with connection, connection.makefile("rw", newline="\n") as lines:
        for line in lines:
            command = line.strip()
            heard.append(command)
            if command.lower().startswith("client protocol "):
                reply = "SERVER PROTOCOL 2\n"
            elif command.lower().startswith("timeout "):
                reply = "OK\n"
            elif command.lower() == "verbose status":
                lines.write(status)
                return
            else:
                reply = f"ERROR: Unknown command {command}\n"
            lines.write(reply)
            lines.flush()


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture
def serve(heard: list[str]) -> Iterator[Serve]:
    """Start a server with this status; returns where it listens."""
    with ExitStack() as stack:

        def start(status: str) -> tuple[str, int]:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def accept() -> None:
                while True:
                    try:
                        connection, _ = server.accept()
                    except OSError:
                        return
                    answer(connection, status, heard)

            thread = threading.Thread(target=accept, daemon=True)
            thread.start()
            stack.callback(thread.join, 5)
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            return "127.0.0.1", server.getsockname()[1]

        yield start


def test_the_status_is_asked_for_as_ncclras_does(serve: Serve, heard: list[str]) -> None:
    assert query_ras(serve(TROUBLED), {os.getpid()}) == TROUBLED
    assert heard == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "VERBOSE STATUS"]


def test_errors_and_warnings_become_lines() -> None:
    assert ras_findings(TROUBLED) == TOLD
    assert ras_findings(HEALTHY) == []
    assert ras_findings("") == []


def test_another_jobs_service_is_not_believed(serve: Serve, heard: list[str]) -> None:
    with pytest.raises(RasError, match="other jobs"):
        query_ras(serve(TROUBLED), ())
    assert set(heard) == {"CLIENT PROTOCOL 2"}


def test_what_is_no_ras_service_or_breaks_off_or_never_ends_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RasError, match="broke off"):
        query_ras(serve(HEAD), {os.getpid()})
    monkeypatch.setattr(nccl_ras, "MAX_BYTES", 500)
    with pytest.raises(RasError, match="too long"):
        query_ras(serve(TROUBLED), {os.getpid()})
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        monkeypatch.setattr(nccl_ras, "DEADLINE_S", 0.05)
        with pytest.raises(OSError, match=r"time|timed out"):
            query_ras(("127.0.0.1", silent.getsockname()[1]), {os.getpid()})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, DEFAULT_ADDRESS),
        ({"NCCL_RAS_ADDR": "10.0.0.7:12345"}, ("10.0.0.7", 12345)),
        ({"NCCL_RAS_ADDR": "[::1]:28029"}, ("::1", 28029)),
        ({"NCCL_RAS_ADDR": "nonsense"}, DEFAULT_ADDRESS),
        ({"NCCL_RAS_ENABLE": "0"}, None),
    ],
)
def test_where_to_ask_is_where_nccl_was_told_to_listen(
    variables: dict[str, str], expected: tuple[str, int] | None
) -> None:
    assert ras_address(variables) == expected


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        (TROUBLED, TOLD),
        (HEALTHY, [NOTHING_WRONG]),
        ("No communicator data collected!\n\nErrors\n======\n\nWarnings\n========\n", [NOTHING_KNOWN]),
    ],
)
def test_what_nccl_says_is_recorded_as_an_event(status: str, lines: list[str]) -> None:
    said: list[Event] = []
    asked: list[Collection[int]] = []

    def query(_where: tuple[str, int], pids: Collection[int]) -> str:
        asked.append(pids)
        return status

    client = RasClient(lambda event, _now_ns: said.append(event), query=query, where=("nowhere", 1))
    client.query_at_stall(1, None, {7})  # no stall, no question
    client.query_at_stall(2, (5, 77), ())  # no NCCL, no question
    client.query_at_stall(3, (5, 77), {7, 8})
    wait_for(lambda: client.query_at_stall(4, None, {7, 8}) or bool(said))
    assert asked == [{7, 8}]
    (event,) = said
    assert event.kind == "ras"
    texts = {f"text{number}": line for number, line in enumerate(lines)}
    assert event.fields == {"asked_ns": 5, **texts}
    assert decode(encode(event)) == event


def test_without_ras_the_verdict_stands_alone_and_one_line_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[Event] = []
    asked: list[Collection[int]] = []

    def refuse(_where: tuple[str, int], pids: Collection[int]) -> str:
        asked.append(pids)
        raise ConnectionRefusedError("[Errno 111] Connection refused")

    client = RasClient(lambda event, _now_ns: said.append(event), query=refuse, where=("nowhere", 1))
    # A query starts only once the one before has ended and was reported.
    wait_for(lambda: client.query_at_stall(9, (8, 78), {7}) or len(asked) == 3)
    assert said == []
    assert capfd.readouterr().err.count("NCCL RAS: [Errno 111] Connection refused") == 1
