"""What a browser sends to `ddptop --web` is checked here, and a screen ends with its page.

textual-serve does neither: it takes any message and any size, and waits for a screen however long that takes.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import web

POLICY = (
    "default-src 'self' data:; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self' ws://{address}"
)
"""The page of textual-serve asks Google for a font: a browser must request nothing from elsewhere."""

MOST_SOCKETS = 8
"""Screens at a time: each is a process of some 60 MB."""

MOST_COLUMNS, MOST_ROWS = 1_000, 500
"""A screen of a million cells a side takes gigabytes."""

MOST_MESSAGE_BYTES = 64 * 1024
"""A paste is the longest message of a browser."""

MOST_UNREAD_BYTES = 1024 * 1024
"""Input that a screen has not read yet; what comes beyond is left out."""


class ScreenSockets:
    """The websockets of open pages, and the process of each, which ends with its page."""

    def __init__(self, server: Any, origins: frozenset[str], quit_s: float) -> None:
        """`origins`: pages that may open one. What is no browser sends no origin; it has the token.
        `quit_s`: a screen that has not ended so long after it was asked to is killed."""
        self._server = server
        self._origins = origins
        self._quit_s = quit_s
        self._open: set[web.WebSocketResponse] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def handle_request(self, request: web.Request) -> web.StreamResponse:
        """Start a screen and pass on what it and the page send, until either ends."""
        from aiohttp import web

        origin = request.headers.get("Origin")
        # A page of another site may open websockets to any port of this machine.
        if origin is not None and origin not in self._origins:
            return web.Response(status=403, text="403: a page of another site\n")
        # Before a process is started for it.
        if len(self._open) >= MOST_SOCKETS:
            return web.Response(status=503, text=f"503: {MOST_SOCKETS} screens are open, which is the most\n")
        websocket = web.WebSocketResponse(heartbeat=15, max_msg_size=MOST_MESSAGE_BYTES)
        self._open.add(websocket)
        try:
            await websocket.prepare(request)
            await self._run_screen(websocket, _screen_size(request))
        finally:
            self._open.discard(websocket)
        return websocket

    async def close_all(self, _: web.Application) -> None:
        """The server ends: so do all pages, and with them their screens."""
        for websocket in list(self._open):
            # A browser that is gone answers no close.
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(websocket.close(code=1001), self._quit_s)

    async def wait_for_screens(self, _: web.Application) -> None:
        """Until all screens of closed pages have ended."""
        await asyncio.gather(*self._ending)

    async def _run_screen(self, websocket: web.WebSocketResponse, size: tuple[int, int]) -> None:
        from textual_serve.app_service import AppService

        service = AppService(
            self._server.command,
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=websocket.close,
            download_manager=self._server.download_manager,
        )
        try:
            await service.start(*size)
        except OSError:  # no process can be started
            await websocket.close(code=1011)
            return
        try:
            async for message in websocket:
                packet = decode_message(message.data) if isinstance(message.data, str) else None
                if packet is None:
                    # No page of ours sends such a message: it is closed, not guessed at.
                    await websocket.close(code=1008)
                elif isinstance(packet, Pong):
                    await websocket.send_json(["pong", packet.data])
                else:
                    self._pass_on(service, packet)
        except ConnectionError:
            pass
        finally:
            # A task of its own: aiohttp may cancel this one when the page is gone.
            ending = asyncio.ensure_future(_end_screen(service, self._quit_s))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            await asyncio.shield(ending)

    def _pass_on(self, service: Any, packet: bytes | dict[str, object]) -> None:
        """Never waits for the screen: one that does not read would keep its page's end from being noticed."""
        if service.stdin.transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
            return
        kind, payload = (b"D", packet) if isinstance(packet, bytes) else (b"M", json.dumps(packet).encode())
        with suppress(RuntimeError):  # it has ended
            service.stdin.write(service.encode_packet(kind, payload))


class Pong:
    """The answer to a page that asks how long a message takes."""

    def __init__(self, data: str | float | None) -> None:
        self.data = data


def decode_message(text: str) -> bytes | dict[str, object] | Pong | None:
    """What a page has sent: bytes for the screen's standard input, a message for its driver, or a ping.

    None for what a page of ours does not send.
    """
    try:
        name, *values = json.loads(text)
        if name == "stdin":
            return str.encode(values[0])
        if name == "resize":
            width, height = values[0]["width"], values[0]["height"]
            return {
                "type": "resize",
                "width": _bounded_size(width, MOST_COLUMNS),
                "height": _bounded_size(height, MOST_ROWS),
            }
        if name in ("blur", "focus"):
            return {"type": name}
        if name == "ping" and isinstance(values[0], (str, int, float, type(None))):
            return Pong(values[0])
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
        return None  # no JSON, no list, a surrogate, a size that is no number
    return None


def _screen_size(request: web.Request) -> tuple[int, int]:
    sizes = []
    for name, usual, most in (("width", 80, MOST_COLUMNS), ("height", 24, MOST_ROWS)):
        try:
            sizes.append(_bounded_size(int(request.query.get(name, usual)), most))
        except ValueError:
            sizes.append(usual)
    return sizes[0], sizes[1]


def _bounded_size(size: float, most: int) -> int:
    return int(min(max(size, 1), most))


async def _end_screen(service: Any, quit_s: float) -> None:
    """Ask the process of a screen to end; kill it where it does not."""
    process = service._process  # textual-serve 1.1 has no public name for it
    with suppress(Exception):  # whatever the screen sent at last
        await asyncio.wait_for(service.stop(), quit_s)
    if process is not None and process.returncode is None:
        try:
            await asyncio.wait_for(process.wait(), quit_s / 2)
        except asyncio.TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def make_application(server: Any, token: str, address: str, quit_s: float) -> web.Application:
    """The application of a textual-serve `server` below the path of the token; 403 everywhere else.

    `address`: host and port that it is served at."""
    import aiohttp_jinja2
    import jinja2
    from aiohttp import web

    port = address.rpartition(":")[2]
    sockets = ScreenSockets(server, frozenset({f"http://{address}", f"http://localhost:{port}"}), quit_s)

    async def forbidden(_: web.Request) -> web.Response:
        return web.Response(status=403, text="403: the address of ddptop --web has a token\n")

    async def slash(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"{request.path}/")

    async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
        response.headers["Content-Security-Policy"] = POLICY.format(address=address)
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Cache-Control"] = "no-store"

    screen = web.Application()  # with the routes and their names of textual-serve
    aiohttp_jinja2.setup(screen, loader=jinja2.FileSystemLoader(server.templates_path))
    screen.router.add_get("/", server.handle_index, name="index")
    screen.router.add_get("/ws", sockets.handle_request, name="websocket")
    screen.router.add_get("/download/{key}", server.handle_download, name="download")
    screen.router.add_static("/static", server.statics_path, name="static")
    app = web.Application()
    app.router.add_get(f"/{token}", slash)
    app.add_subapp(f"/{token}", screen)
    # Last, so that it takes what no other route has.
    app.router.add_route("*", "/{path:.*}", forbidden)
    # On each response, also those of textual-serve's own.
    app.on_response_prepare.append(add_headers)
    app.on_shutdown.append(sockets.close_all)
    app.on_cleanup.append(sockets.wait_for_screens)
    return app
