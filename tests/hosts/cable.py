"""A host's cable in user space, with what `tc netem` does for kernels without it: delay, loss, a cut.

Two TAP devices, one in the host as its `eth0` and one at the switch, and a thread that hands on each frame.

    with hosts(3, tmp_path) as (a, b, c), Cable(b, peer=a) as cable:
        cable.delay_s = 0.02

All attributes may be changed at any time.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import socket
import struct
import threading
import time
from contextlib import suppress

from tests.hosts.namespaces import Host, ip_inside

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
LARGEST = 2048
IPV4, ENDS = b"\x08\x00", slice(26, 34)
"""Of an Ethernet frame: its type, and the addresses of both ends."""


class Cable:
    """Delays and loses frames between a host and one other (`peer`), or all others."""

    def __init__(self, host: Host, peer: Host | None = None, *, seed: int = 1) -> None:
        self.delay_s = 0.0
        """Towards the host."""
        self.back_delay_s = 0.0
        self.loss = 0.0
        """Share of the frames, towards the host."""
        self.back_loss = 0.0
        self.is_cut = False
        """Frames are lost, both ways."""
        self._random = random.Random(seed)
        ends = [] if peer is None else [socket.inet_aton(one.address) for one in (peer, host)]
        self._to, self._back = (b"".join(ends), b"".join(reversed(ends)))
        host.unplug()
        name = f"tap{os.getpid() % 100_000}{host.number}"
        self._inner, self._outer = _tap(name + "a"), _tap(name + "b")
        host.plug(name + "a", name + "b")
        self._end_r, self._end_w = os.pipe()
        self._thread = threading.Thread(target=self._forward, name="cable", daemon=True)
        self._thread.start()

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._end_w)
        self._thread.join(30)
        for descriptor in (self._inner, self._outer, self._end_r):
            os.close(descriptor)

    def _forward(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        number = 0
        ends = [self._inner, self._outer]
        while True:
            wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            readable, _, _ = select.select([*ends, self._end_r], [], [], wait)
            if self._end_r in readable:
                return
            for descriptor in readable:
                frame, inwards = os.read(descriptor, LARGEST), descriptor == self._outer
                delay_s = self._fate(frame, inwards)
                if delay_s is not None:
                    number += 1
                    other = self._inner if inwards else self._outer
                    heapq.heappush(waiting, (time.monotonic() + delay_s, number, other, frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, descriptor, frame = heapq.heappop(waiting)
                with suppress(OSError):  # the host has just ended
                    os.write(descriptor, frame)

    def _fate(self, frame: bytes, inwards: bool) -> float | None:
        """By how much a frame is delayed, s; None: it is lost."""
        if self._to and (frame[12:14] != IPV4 or frame[ENDS] != (self._to if inwards else self._back)):
            return 0.0
        loss = self.loss if inwards else self.back_loss
        if self.is_cut or (loss and self._random.random() < loss):
            return None
        return self.delay_s if inwards else self.back_delay_s


def _tap(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
        ip_inside(os.getpid(), "link", "set", name, "mtu", "1500")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
