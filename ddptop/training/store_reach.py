"""Whether the address at which the ranks meet can be reached, while a rank waits for that.

Importing this module costs next to nothing.
"""

from __future__ import annotations

import socket
import threading
import time

FIRST_S, EVERY_S = 2.0, 5.0
"""From the start of waiting to the first attempt, and between two."""

TIMEOUT_S = 3.0


class StoreProbe:
    """Tries to connect, in a thread for each attempt: the name service may take long."""

    def __init__(self, address: str, port: str) -> None:
        self.address, self.port = address, port
        self._due_s = time.monotonic() + FIRST_S
        self._thread: threading.Thread | None = None
        self._result = self._taken = ""

    def poll(self) -> str:
        """Begin an attempt if one is due; returns the newest result if it is another one, else nothing:
        `reached`, `refused`, `silent`, `no_route`, `no_name`."""
        runs = self._thread is not None and self._thread.is_alive()
        if not runs and time.monotonic() >= self._due_s and self.port.isdecimal():
            self._due_s = time.monotonic() + EVERY_S
            self._thread = threading.Thread(target=self._try_once, name="ddptop-probe", daemon=True)
            self._thread.start()
        result = self._result
        if result == self._taken:
            return ""
        self._taken = result
        return result

    def _try_once(self) -> None:
        self._result = reach(self.address, int(self.port))


def reach(address: str, port: int) -> str:
    """Connect once, and close: nothing is sent."""
    try:
        socket.create_connection((address, port), TIMEOUT_S).close()
    except (socket.gaierror, UnicodeError):
        # UnicodeError: a part of the name is empty or too long.
        return "no_name"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"
    except OSError:
        return "no_route"
    return "reached"
