"""`ddptop --web`: only the address with the token answers, and its websocket draws the screen."""

from __future__ import annotations

import shlex
import socket
import sys
from pathlib import Path

import psutil
import pytest

from ddptop.cli.main import main
from ddptop.cli.web import POLICY, application

from .conftest import DEADLINE_S, MAIN
from .recordings import write_recording

TOKEN = "right-token"


def test_what_cannot_be_served_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--web", "--json"]) == 2
    assert main(["--port", "8000"]) == 2
    assert main(["--web", "--port", "65536"]) == 2
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    assert main(["--web"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[-1] == "ddptop: --web needs the package textual-serve: pip install 'ddptop[web]'"


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
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
    import asyncio

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
        app = application(server, TOKEN, POLICY.format(address="here"))
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
