"""A real terminal for tests: a tmux server of their own, its keys and its screen."""

from __future__ import annotations

import secrets
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.processes import DEADLINE_S, until


class Terminal:
    """One tmux window with a shell in it."""

    def __init__(self, server: str, columns: int, rows: int, env: Mapping[str, str], cwd: Path) -> None:
        self._server = server
        self._session = f"s{secrets.token_hex(3)}"
        environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        shell = f"exec env -i {environment} PS1='ready> ' bash --norc --noprofile"
        self._tmux(
            "new-session",
            "-d",
            "-s",
            self._session,
            "-x",
            str(columns),
            "-y",
            str(rows),
            "-c",
            str(cwd),
            shell,
        )
        self.wait_for("ready>")

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-L", self._server, "-f", "/dev/null", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE_S).stdout

    def type(self, line: str) -> None:
        """Type a line and Enter."""
        self._tmux("send-keys", "-t", self._session, "-l", line)
        self._tmux("send-keys", "-t", self._session, "Enter")

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names."""
        self._tmux("send-keys", "-t", self._session, *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Another size of the window."""
        self._tmux("resize-window", "-t", self._session, "-x", str(columns), "-y", str(rows))

    def screen(self) -> str:
        """What the terminal shows."""
        return self._tmux("capture-pane", "-t", self._session, "-p")

    def close(self) -> None:
        """Close the window, as a person does: its programs get SIGHUP."""
        self._tmux("kill-session", "-t", self._session)

    def modes(self) -> str:
        """Alternate screen, mouse reports and cursor, each 0 or 1: `0 0 1` at a shell's prompt."""
        wanted = "#{alternate_on} #{mouse_any_flag} #{cursor_flag}"
        return self._tmux("display-message", "-t", self._session, "-p", wanted).strip()

    def title(self) -> str:
        """The title that a program has given the window."""
        return self._tmux("display-message", "-t", self._session, "-p", "#{pane_title}").strip()

    def foreground(self) -> int | None:
        """Process id of the command that the shell runs; None: it runs none."""
        shell = int(self._tmux("display-message", "-t", self._session, "-p", "#{pane_pid}"))
        below = psutil.Process(shell).children()
        return below[0].pid if below else None

    def wait_for(self, text: str, deadline_s: float = DEADLINE_S) -> str:
        """The screen once `text` is on it; AssertionError with the last screen after the deadline."""
        last = ""

        def there() -> bool:
            nonlocal last
            last = self.screen()
            return text in last

        try:
            until(there, text, deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{last}") from None
        return last


@contextmanager
def terminals(env: Mapping[str, str], cwd: Path) -> Iterator[object]:
    """A factory of terminals `(columns, rows) -> Terminal`; they and their programs end with the block."""
    server = f"ddptop-{secrets.token_hex(4)}"
    try:
        yield lambda columns, rows: Terminal(server, columns, rows, env, cwd)
    finally:
        kill = ["tmux", "-L", server, "kill-server"]
        subprocess.run(kill, check=False, capture_output=True, timeout=DEADLINE_S)
