"""`ddptop --web`: only the address with the token answers, and its websocket draws the screen."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ddptop.cli.main import main
from ddptop.cli.web import QUIT_S
from ddptop.cli.web_sockets import MOST_SOCKETS, decode_message, make_application
from ddptop.host.installation import install_command
from tests.made_up_run import write_recording

from .conftest import DEADLINE_S, MAIN

TOKEN = "right-token"


def test_what_cannot_be_served_is_one_line(
    home_here, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--web", "--json"]) == 2
    assert main(["--port", "8000"]) == 2
    assert main(["--web", "--port", "65536"]) == 2
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    assert main(["--web"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[-1] == f"ddptop: --web needs the package textual-serve: {install_command('web')}"


def test_a_port_in_use_is_one_line(home_here, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("textual_serve.server")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--web", "--port", str(port)]) == 1
    said = f"ddptop: port {port} of 127.0.0.1: Address already in use; --port takes another one\n"
    assert capsys.readouterr() == ("", said)


def test_the_screen_is_drawn_for_the_token_alone(
    home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = pytest.importorskip("textual_serve.server")
    import aiohttp
    from aiohttp.test_utils import TestClient, TestServer

    write_recording(tmp_path / "train-k7qf.ddptop")
    monkeypatch.chdir(tmp_path)
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    words = ["replay", "train-k7qf.ddptop"]
    others = psutil.Process().children()  # of tests before this one: a template that is forked
    server = serving.Server(shlex.join([sys.executable, "-c", MAIN, *words]), public_url="http://here")

    async def browse() -> bytes:
        app = make_application(server, TOKEN, "here", QUIT_S)
        async with TestClient(TestServer(app)) as client:
            for path in ("/", "/ws", "/wrong/", "/wrong/ws", "/static/js/textual.js"):
                assert (await client.get(path)).status == 403
            page = await client.get(f"/{TOKEN}")
            assert page.status == 200 and f"ws://here/{TOKEN}/ws" in await page.text()
            assert "default-src 'self'" in page.headers["Content-Security-Policy"]
            assert (await client.get(f"/{TOKEN}/static/js/textual.js")).status == 200
            drawn = b""
            async with client.ws_connect(f"/{TOKEN}/ws?width=100&height=30") as screen:
                while b"train-k7qf" not in drawn:
                    message = await screen.receive(timeout=DEADLINE_S)
                    assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), drawn
                    drawn += message.data if isinstance(message.data, bytes) else message.data.encode()
                await screen.send_json(["stdin", "q"])
                while (await screen.receive(timeout=DEADLINE_S)).type is aiohttp.WSMsgType.BINARY:
                    pass
            while set(psutil.Process().children()) - set(others):  # asyncio has not reaped the screen
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.1)  # asyncio closes its pipes
            return drawn

    assert b"train-k7qf" in asyncio.run(browse())


HOSTILE = [
    "no JSON",
    "{}",
    "[]",
    "null",
    "7",
    "[" * 50_000,
    '["stdin"]',
    '["stdin", 7]',
    '["stdin", "\\ud800"]',
    '["resize", {"width": "wide", "height": 1}]',
    '["resize", {"width": NaN, "height": 1}]',
    '["resize", 80]',
    '["ping", [[]]]',
    '["open_url", "http://elsewhere"]',
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:24])
def test_what_no_page_sends_is_refused(text: str) -> None:
    assert decode_message(text) is None


@pytest.mark.parametrize(
    ("width", "height", "bounded"),
    [(100, 30, (100, 30)), (1e6, 1e6, (1_000, 500)), (0, -5, (1, 1)), (1e400, 3, (1_000, 3))],
)
def test_sizes_are_bounded(width: float, height: float, bounded: tuple[int, int]) -> None:
    message = decode_message(json.dumps(["resize", {"width": width, "height": height}]))
    assert message == {"type": "resize", "width": bounded[0], "height": bounded[1]}


STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdout.write("__GANGLION__\\n"); sys.stdout.flush()
packet = b"%s" % sys.argv[1].encode()
sys.stdout.buffer.write(b"D" + len(packet).to_bytes(4, "big") + packet); sys.stdout.flush()
while True: time.sleep(60)
"""
"""A screen that draws once, reads nothing, and does not end when it is asked to."""


def test_sockets_are_few_of_our_pages_only_and_no_screen_outlives_its_own() -> None:
    serving = pytest.importorskip("textual_serve.server")
    import aiohttp
    from aiohttp.test_utils import TestClient, TestServer

    others = set(psutil.Process().children())
    command = f"exec {shlex.join([sys.executable, '-c', STUBBORN, 'drawn'])}"
    server = serving.Server(command, public_url="http://here")

    def screens() -> set[psutil.Process]:
        return set(psutil.Process().children()) - others

    async def browse() -> None:
        app = make_application(server, TOKEN, "here:80", QUIT_S)
        async with TestClient(TestServer(app)) as client:
            path = f"/{TOKEN}/ws?width=1000000000000&height=x"
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await client.ws_connect(path, headers={"Origin": "http://elsewhere"})
            own = {"headers": {"Origin": "http://here:80"}}
            pages = [await client.ws_connect(path, **own) for _ in range(MOST_SOCKETS)]
            for page in pages:
                assert (await page.receive(timeout=DEADLINE_S)).data == b"drawn"
            with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                await client.ws_connect(path, **own)
            for page in pages:  # more than the pipe to the screen holds: it reads nothing
                for _ in range(40):
                    await page.send_json(["stdin", "x" * 30_000])
            assert len(screens()) == MOST_SOCKETS
            await pages[0].send_str("no JSON")
            while not pages[0].closed:
                await pages[0].receive(timeout=DEADLINE_S)
            assert pages[0].close_code == 1008
            for page in pages[1:4]:
                await page.close()
            while len(screens()) > MOST_SOCKETS - 4:
                await asyncio.sleep(0.05)
            again = await client.ws_connect(path, **own)
            assert (await again.receive(timeout=DEADLINE_S)).data == b"drawn"
        # The server has ended with five pages open.
        while screens():
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(browse(), 2 * DEADLINE_S))


def test_a_killed_server_leaves_no_screen_and_strangers_write_nothing_to_its_terminal(
    home: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("textual_serve.server")
    import aiohttp

    kept = tmp_path / "state" / "ddptop"
    kept.mkdir(mode=0o700)
    write_recording(kept / "train-k7qf.ddptop")
    words = [sys.executable, "-c", MAIN, "train-k7qf", "--web"]
    served = subprocess.Popen(words, cwd=tmp_path, env=home, stderr=subprocess.PIPE, text=True)

    async def browse(address: str) -> list[psutil.Process]:
        async with aiohttp.ClientSession() as client, client.ws_connect(f"{address}ws") as page:
            drawn = b""
            while b"train-k7qf" not in drawn:
                drawn += await page.receive_bytes(timeout=DEADLINE_S)
            for text in HOSTILE[: MOST_SOCKETS - 1]:  # as many as there can be beside the first
                async with client.ws_connect(f"{address}ws") as hostile:
                    await hostile.send_str(text)
                    while not hostile.closed:
                        await hostile.receive(timeout=DEADLINE_S)
            screens = psutil.Process(served.pid).children(recursive=True)
            served.kill()
            return screens

    try:
        said = served.stderr.readline()
        match = re.search(r"http://127\.0\.0\.1:(\d+)/\S+/", said)
        with socket.create_connection(("127.0.0.1", int(match[1]))) as stranger:
            stranger.sendall(b"\x00\xff no HTTP\r\n\r\n")
            stranger.recv(1000)
        screens = asyncio.run(browse(match[0]))
        assert screens
        _, alive = psutil.wait_procs(screens, DEADLINE_S)
        assert alive == []
        assert served.communicate(timeout=DEADLINE_S)[1] == ""
    finally:
        served.kill()
        served.communicate()
