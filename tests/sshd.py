"""A real sshd on the loopback interface: own keys, configuration and port, and an `ssh` that uses them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import ddptop
from tests.processes import DEADLINE_S, free_port, until

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
needs_sshd = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client"
)

PRIVILEGE_SEPARATION = Path("/run/sshd")
"""An empty folder that an sshd of root wants."""

REPOSITORY = Path(ddptop.__file__).parents[1]


class Sshd:
    """One server, reached by `ssh far`, and through itself as a jump host by `ssh jumped`."""

    def __init__(
        self,
        place: Path,
        env: Mapping[str, str],
        *,
        address: str = "127.0.0.1",
        entering: Callable[[Sequence[str]], Sequence[str]] = list,
    ) -> None:
        """`env`: what the server gives to the commands that it runs.

        `address`: where it listens; `entering`: the command line that runs a command on its host.
        """
        self.place = place
        self.address = address
        self._entering = entering
        self.port = free_port()
        self.log = place / "sshd.log"
        self.known_hosts = place / "known_hosts"
        self.programs = place / "bin"
        """Folder with `ssh` for the near end, first on its PATH."""
        far = place / "far"
        """Folder with `ddptop` for the far end."""
        for folder in (self.programs, far):
            folder.mkdir()
        for name in ("user_key", "host_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(place / name)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=DEADLINE_S)
        shutil.copy(place / "user_key.pub", place / "authorized")
        self.trust_host()
        names = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
        given = " ".join([f"PATH={far}:/usr/bin:/bin", *(f"{name}={env[name]}" for name in names)])
        (place / "sshd_config").write_text(
            f"ListenAddress {address}\nPort {self.port}\nHostKey {place}/host_key\nPidFile none\n"
            f"AuthorizedKeysFile {place}/authorized\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nPermitRootLogin yes\nMaxStartups 100\nSetEnv {given}\n"
        )
        (place / "ssh_config").write_text(
            f"Host far jump jumped\n  HostName {address}\n  Port {self.port}\nHost jumped\n  ProxyJump jump\n"
            f"Host *\n  IdentityFile {place}/user_key\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking ask\n"
        )
        script(self.programs / "ssh", f'exec {shutil.which("ssh")} -F {place}/ssh_config "$@"')
        script(far / "ddptop", f'PYTHONPATH={REPOSITORY} exec {sys.executable} -m ddptop.cli.main "$@"')
        self._process: subprocess.Popen[bytes] | None = None

    def trust_host(self, trusted: bool = True) -> None:
        """Whether the near end knows the key of this server."""
        kind, text, _ = (self.place / "host_key.pub").read_text().split()
        self.known_hosts.write_text(f"[{self.address}]:{self.port} {kind} {text}\n" if trusted else "")

    def start(self) -> None:
        """Listen, at the same port each time."""
        if os.geteuid() == 0:
            PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        assert SSHD is not None
        self.log.unlink(missing_ok=True)
        command = [SSHD, "-D", "-f", str(self.place / "sshd_config"), "-E", str(self.log)]
        self._process = subprocess.Popen(self._entering(command), stdin=subprocess.DEVNULL)
        until(lambda: self.log.exists() and "Server listening" in self.log.read_text(), "sshd listens")

    def stop(self) -> None:
        """End the server and every connection."""
        process, self._process = self._process, None
        if process is None:
            return
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in below:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait(DEADLINE_S)


def script(path: Path, line: str) -> Path:
    """An executable shell script of one line."""
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path
