"""Several hosts on one machine: namespaces of the kernel, joined by a switch.

Each host has its own network, host name, process ids, /tmp, XDG folders, and on request its own monotonic
clock. A host's namespaces belong to one process, its first, which ends when the test process does; the kernel
then kills the host's processes and removes its network. So nothing is left, however a test ends.

    with hosts(3, tmp_path) as (a, b, c):
        with a.started(["python", "train.py"]) as process:
            b.cut()
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests import warm
from tests.processes import DEADLINE_S, environment, until

CLONE = Path(__file__).parents[2]
NETWORK = "10.78.0"
NAMES = "abcdefghijklmnop"

_NAMESPACES = ("--net", "--uts", "--mount", "--pid", "--time")
"""Options of nsenter; for unshare, beside `--fork`."""

_FIRST = """
set -e
trap '' CHLD  # processes whose parent has exited are reaped by the kernel
mount --make-rprivate /
mount -t tmpfs tmp /mnt
n=0
for folder in {kept}; do n=$((n + 1)); mkdir /mnt/$n; mount --bind "$folder" /mnt/$n; done
mount -t tmpfs -o mode=1777 tmp /tmp
n=0
for folder in {kept}; do n=$((n + 1)); mkdir -p "$folder"; mount --move /mnt/$n "$folder"; done
umount /mnt
mount --bind {hosts_file} /etc/hosts
hostname {name}
ip link set lo up
echo ready
exec cat >/dev/null
"""
"""The first process of a host: ends when its standard input is closed, and all others of the host with it."""

_SWITCH = "set -e; ip link add br0 type bridge; ip link set br0 up; echo ready; exec cat >/dev/null"


class Host:
    """One host of a test."""

    def __init__(self, number: int, base: Path, keeper: subprocess.Popen[str], switch: int) -> None:
        self.number = number
        self.name = f"node-{NAMES[number]}"
        self.address = f"{NETWORK}.{number + 1}"
        self.folder = base / self.name
        """Home and XDG folders. Other hosts can read it, too: the test's folder is a shared file system."""
        self.env = environment(self.folder) | {"HOME": str(self.folder), "HOSTNAME": self.name}
        self.env.pop("TMPDIR", None)  # it has a /tmp of its own
        self._keeper = keeper
        self._switch = switch
        self._port = f"port{number}"

    @property
    def first_pid(self) -> int:
        """Of the host's first process, as seen from the test."""
        return psutil.Process(self._keeper.pid).children()[0].pid

    def entering(self, command: Sequence[str | Path]) -> list[str]:
        """The command line that runs a command on this host."""
        enter = ["nsenter", "--target", str(self.first_pid), *_NAMESPACES, f"--wd={self.folder}", "--"]
        return [*enter, *(str(word) for word in command)]

    def start(self, command: Sequence[str | Path], env: dict[str, str] | None = None) -> Process:
        """Start a command; it is killed with the host at the latest."""
        return Process(self, command, self.env if env is None else env)

    @contextmanager
    def started(self, command: Sequence[str | Path], env: dict[str, str] | None = None) -> Iterator[Process]:
        """A running command, which is killed with all its children at the end of the block."""
        process = self.start(command, env)
        try:
            yield process
        finally:
            process.kill_all()

    def run(
        self,
        command: Sequence[str | Path],
        env: dict[str, str] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with self.started(command, env) as process:
            out, err = process.communicate(timeout=deadline_s)
            return subprocess.CompletedProcess(command, process.returncode, out, err)

    def processes(self) -> list[psutil.Process]:
        """All processes of this host but the first, as seen from the test; without those that have exited."""
        first = self.first_pid
        own = Path(f"/proc/{first}/ns/pid").readlink()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                here = Path(f"/proc/{process.pid}/ns/pid").readlink() == own
                if here and process.pid != first and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def cut(self) -> None:
        """Pull the cable of this host: packets are lost in silence, both ways."""
        ip_inside(self._switch, "link", "set", self._port, "down")

    def mend(self) -> None:
        """Put it back."""
        ip_inside(self._switch, "link", "set", self._port, "up")

    def unplug(self) -> None:
        """Take its cable away, for another one."""
        ip_inside(self._switch, "link", "delete", self._port)

    def plug(self, inner: str, outer: str) -> None:
        """Join it to the switch by these two devices, which are here."""
        ip_inside(os.getpid(), "link", "set", inner, "netns", str(self.first_pid))
        ip_inside(os.getpid(), "link", "set", outer, "netns", str(self._switch))
        ip_inside(self.first_pid, "link", "set", inner, "name", "eth0")
        ip_inside(self.first_pid, "address", "add", f"{self.address}/24", "dev", "eth0")
        ip_inside(self.first_pid, "link", "set", "eth0", "up")
        ip_inside(self._switch, "link", "set", outer, "name", self._port)
        ip_inside(self._switch, "link", "set", self._port, "master", "br0", "up")

    def refuse(self, port: int) -> None:
        """A firewall: what other hosts send to this TCP port is not answered, from now on."""
        rule = ["rule", "add", "ipproto", "tcp", "sport", str(port), "blackhole"]
        ip_inside(self.first_pid, *rule)

    def lose(self, percent: int) -> None:
        """Of the packets that arrive here so many are lost, at random. Skips the test without nftables."""
        for words in (
            "add table inet loss",
            "add chain inet loss input { type filter hook input priority 0; }",
            f"add rule inet loss input iifname eth0 numgen random mod 100 < {percent} drop",
        ):
            command = ["nsenter", "--target", str(self.first_pid), "--net", "nft", words]
            if shutil.which("nft") is None or subprocess.run(command, capture_output=True).returncode:
                pytest.skip("needs nft, and a kernel with nftables")

    def kill(self) -> None:
        """Power off: all processes are killed, the network is gone."""
        os.kill(self.first_pid, signal.SIGKILL)
        self._keeper.wait(DEADLINE_S)


class Process(warm.WarmInside):
    """A process on a host; `pid` is that of `nsenter`, or of what does as it, which exits as it does."""

    def __init__(self, host: Host, command: Sequence[str | Path], env: dict[str, str]) -> None:
        warm.begin()
        super().__init__(
            [str(word) for word in command],
            host.first_pid,
            host.entering(command),
            env=env,
            cwd=host.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def inner_pid(self) -> int:
        """Of the command, as seen from the test; waits until `nsenter` has begun it."""

        def begun() -> int | None:
            for child in psutil.Process(self.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.name() != "nsenter":
                        return child.pid
            return None

        return int(str(until(begun, "nsenter has begun the command")))

    def signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        os.kill(self.inner_pid(), number)

    def kill_all(self) -> None:
        """Kill it and everything it has started, unless it has exited; close its pipes; wait for all.

        `nsenter` exits once it has reaped the command. Were it killed too, the command would be left to the
        first process of this machine, which may take its time to reap it, or never do it.
        """
        below = []
        if self.poll() is None:
            below = psutil.Process(self.pid).children(recursive=True)
            for process in below or [self]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.communicate()
        until(lambda: not any(_runs(process) for process in below), "the end of what was killed")


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@functools.cache
def why_no_hosts() -> str | None:
    """Why this machine cannot have them, in one line; None where it can."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "mount") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    if os.geteuid() != 0:
        return "needs root for namespaces"
    command = ["unshare", *_NAMESPACES, "--fork", "--mount-proc", "sh", "-c"]
    script = "ip link add type veth && mount -t tmpfs tmp /tmp && hostname node"
    done = subprocess.run([*command, script], capture_output=True, text=True, timeout=30)
    return f"needs namespaces: {done.stderr.strip()}" if done.returncode else None


@contextmanager
def hosts(number: int, base: Path, *, clocks_s: Sequence[int] = ()) -> Iterator[tuple[Host, ...]]:
    """That many hosts with one network; the test is skipped where it cannot have them.

    `base`: a folder that all of them see, by the same path. `clocks_s`: seconds by which the monotonic clock
    of each is ahead of this machine's.
    """
    reason = why_no_hosts()
    if reason is not None:
        pytest.skip(reason)
    hosts_file = base / "hosts"
    lines = [f"{NETWORK}.{n + 1} node-{NAMES[n]}" for n in range(number)]
    hosts_file.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
    with contextlib.ExitStack() as ends:
        switch = ends.enter_context(_keeper(["--net"], _SWITCH))
        switch_pid = psutil.Process(switch.pid).children()[0].pid
        made = []
        for n in range(number):
            name = f"node-{NAMES[n]}"
            kept = (base, *(folder for folder in (CLONE, Path(sys.prefix)) if folder.is_relative_to("/tmp")))
            script = _FIRST.format(
                kept=shlex.join(str(folder) for folder in kept),
                hosts_file=shlex.quote(str(hosts_file)),
                name=name,
            )
            ahead = clocks_s[n] if n < len(clocks_s) else 0
            options = [*_NAMESPACES, "--mount-proc", f"--monotonic={ahead}", f"--boottime={ahead}"]
            host = Host(n, base, ends.enter_context(_keeper(options, script)), switch_pid)
            _connect(switch_pid, host)
            made.append(host)
        yield tuple(made)


@contextmanager
def _keeper(options: Sequence[str], script: str) -> Iterator[subprocess.Popen[str]]:
    """Namespaces with their first process, for the time of the block or of this process."""
    keeper = subprocess.Popen(
        ["unshare", *options, "--fork", "--kill-child", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    assert keeper.stderr is not None
    try:
        if keeper.stdout.readline() != "ready\n":
            raise RuntimeError(keeper.stderr.read())
        yield keeper
    finally:
        keeper.kill()  # and its child with it
        keeper.communicate()


def _connect(switch: int, host: Host) -> None:
    """Join a host to the switch by a cable."""
    port, pid = f"port{host.number}", str(host.first_pid)
    ip_inside(switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", pid)
    ip_inside(switch, "link", "set", port, "master", "br0", "up")
    ip_inside(host.first_pid, "address", "add", f"{host.address}/24", "dev", "eth0")
    ip_inside(host.first_pid, "link", "set", "eth0", "up")


def ip_inside(inside: int, *words: str) -> None:
    """`ip WORDS` in the network of a process."""
    command = ["nsenter", "--target", str(inside), "--net", "ip", *words]
    subprocess.run(command, check=True, timeout=30)
