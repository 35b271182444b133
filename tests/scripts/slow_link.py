"""Two network namespaces joined by a link that takes its time: slow_link.py NAME DELAY_MS

Does in user space what `tc netem delay` does, for kernels without it: a TUN device in either namespace, and
this process, which hands on each packet DELAY_MS after it came. The namespaces and the devices in them are
called NAMEa and NAMEb. Needs root. Prints `up`; ends, and leaves nothing behind, when its stdin closes.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU = 65000
"""Large packets: there are few of them, and none need be cut."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def end_of(name: str, address: str) -> int:
    """One end of the link: a namespace, and a device in it whose packets we read and write."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    ip("netns", "add", name)
    ip("link", "set", name, "netns", name)
    ip("-n", name, "address", "add", f"{address}/24", "dev", name)
    ip("-n", name, "link", "set", name, "mtu", str(MTU), "up")
    ip("-n", name, "link", "set", "lo", "up")
    return fd


def forward(ends: tuple[int, int], delay_s: float) -> None:
    """Hand on packets until stdin closes."""
    stdin = sys.stdin.fileno()
    other = dict(zip(ends, reversed(ends), strict=True))
    pending: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait = max(0.0, pending[0][0] - time.monotonic()) if pending else None
        readable, _, _ = select.select([*ends, stdin], [], [], wait)
        if stdin in readable:
            return
        for fd in readable:
            pending.append((time.monotonic() + delay_s, other[fd], os.read(fd, MTU + 100)))
        while pending and pending[0][0] <= time.monotonic():
            _, fd, packet = pending.popleft()
            os.write(fd, packet)


def main() -> None:
    names = [sys.argv[1] + side for side in "ab"]
    try:
        first, second = (end_of(name, f"10.213.77.{n}") for n, name in enumerate(names, 1))
        print("up", flush=True)
        forward((first, second), float(sys.argv[2]) / 1e3)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
