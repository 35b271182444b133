"""`ddptop --web`: the screen in a browser, served by textual-serve on localhost.

The address has a token in its path, and everything outside that path is refused with 403: other users of the
machine, and pages of other sites in the same browser, can guess neither page nor websocket. Each page that is
opened starts the same command once more, whose screen textual-serve passes on.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddptop.cli.errors import CliError, Exit, note

if TYPE_CHECKING:
    from aiohttp import web

HOST = "127.0.0.1"

TOKEN_BYTES = 24

POLICY = (
    "default-src 'self' data:; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self' ws://{address}"
)
"""The page of textual-serve asks Google for a font: a browser must request nothing from elsewhere."""


def in_browser() -> bool:
    """Whether textual-serve has started this process: its screen is drawn into a pipe."""
    return "web_driver" in os.environ.get("TEXTUAL_DRIVER", "")


def serve(words: Sequence[str], port: int) -> int:
    """Serve the screen of `ddptop WORDS` until Ctrl-C. `port`: 0 for any free one.

    Raises CliError where textual-serve is not installed, and where the port cannot be had."""
    try:
        from aiohttp import web
        from textual_serve.server import Server
    except ModuleNotFoundError as error:
        raise CliError("--web needs the package textual-serve: pip install 'ddptop[web]'") from error
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise CliError(f"port {port} of {HOST}: {reason}; --port takes another one") from None
    with listening:
        address = f"{HOST}:{listening.getsockname()[1]}"
        command = shlex.join([sys.executable, "-m", "ddptop", *words])
        server = Server(command, host=HOST, title="ddptop", public_url=f"http://{address}")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        note(f"the screen is at http://{address}/{token}/ (Ctrl-C ends it)")
        web.run_app(
            application(server, token, POLICY.format(address=address)),
            sock=listening,
            print=None,
            access_log=None,
            handle_signals=False,
        )
    return Exit.INTERRUPTED


def application(server: Any, token: str, policy: str) -> web.Application:
    """The application of a textual-serve `server` below the path of the token; 403 everywhere else."""
    import aiohttp_jinja2
    import jinja2
    from aiohttp import web

    async def forbidden(_: web.Request) -> web.Response:
        return web.Response(status=403, text="403: the address of ddptop --web has a token\n")

    async def slash(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"{request.path}/")

    async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
        response.headers["Content-Security-Policy"] = policy
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Cache-Control"] = "no-store"

    screen = web.Application()  # with the routes and their names of textual-serve
    aiohttp_jinja2.setup(screen, loader=jinja2.FileSystemLoader(server.templates_path))
    screen.router.add_get("/", server.handle_index, name="index")
    screen.router.add_get("/ws", server.handle_websocket, name="websocket")
    screen.router.add_get("/download/{key}", server.handle_download, name="download")
    screen.router.add_static("/static", server.statics_path, name="static")
    app = web.Application()
    app.router.add_get(f"/{token}", slash)
    app.add_subapp(f"/{token}", screen)
    app.router.add_route("*", "/{path:.*}", forbidden)
    app.on_response_prepare.append(add_headers)
    return app
