"""`ddptop --web`: the screen in a browser, served by textual-serve on localhost.

The address has a token in its path, and everything outside that path is refused with 403: other users of the
machine, and pages of other sites in the same browser, can guess neither page nor websocket. Each page that is
opened starts the same command once more, whose screen textual-serve passes on (`ddptop/cli/web_sockets.py`).
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

from ddptop.cli.errors import CliError, Exit, note
from ddptop.host.installation import install_command

HOST = "127.0.0.1"

TOKEN_BYTES = 24

QUIT_S = 1.0
"""A screen that is asked to end, and has not ended after this time, is killed."""

SERVER_GONE = 1


def in_browser() -> bool:
    """Whether textual-serve has started this process: its screen is drawn into a pipe."""
    return "web_driver" in os.environ.get("TEXTUAL_DRIVER", "")


def end_with_server() -> None:
    """End this screen, which is drawn for a browser, when its server is gone, also by SIGKILL."""
    threading.Thread(target=_wait_for_server_end, daemon=True, name="ddptop-web-server").start()


def _wait_for_server_end() -> None:
    server = select.poll()
    server.register(0, 0)  # no event but POLLHUP: the server has closed its end of standard input
    server.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(QUIT_S)
    os._exit(SERVER_GONE)


def serve_screen(words: Sequence[str], port: int) -> int:
    """Serve the screen of `ddptop WORDS` until Ctrl-C. `port`: 0 for any free one.

    Raises CliError where textual-serve is not installed, and where the port cannot be had."""
    try:
        from aiohttp import web
        from textual_serve.server import Server

        from ddptop.cli.web_sockets import make_application
    except ModuleNotFoundError as error:
        raise CliError(f"--web needs the package textual-serve: {install_command('web')}") from error
    try:
        # Bound by us, so that no moment is left in which another process could take the port.
        listening = socket.create_server((HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise CliError(f"port {port} of {HOST}: {reason}; --port takes another one") from None
    # Whoever sends bytes to the port would write tracebacks to this terminal.
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL + 1)
    logging.getLogger("textual-serve").setLevel(logging.CRITICAL + 1)
    with listening:
        address = f"{HOST}:{listening.getsockname()[1]}"
        # `exec`: the process that the server ends is then the screen itself, and no shell.
        command = f"exec {shlex.join([sys.executable, '-m', 'ddptop', *words])}"
        server = Server(command, host=HOST, title="ddptop", public_url=f"http://{address}")
        # Made anew for each server, and never written anywhere but to this terminal.
        token = secrets.token_urlsafe(TOKEN_BYTES)
        note(f"the screen is at http://{address}/{token}/ (Ctrl-C ends it)")
        web.run_app(
            make_application(server, token, address, QUIT_S),
            sock=listening,
            print=None,
            access_log=None,
            # Ctrl-C is handled as in every command.
            handle_signals=False,
            shutdown_timeout=QUIT_S,
        )
    return Exit.INTERRUPTED
