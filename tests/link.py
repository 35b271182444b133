"""A TCP link that takes its time, in user space: listens, and forwards to a target.

Each way has a delay of its own; a lost chunk holds up all behind it, as a retransmission does; the rate is
bounded; the link can be cut for a while (nothing passes, nothing is lost, new connections get no answer) and
its connections killed. In a test:

    with Link(("127.0.0.1", port), delay_s=0.01) as link:
        client.connect(f"tcp://127.0.0.1:{link.port}")
        link.cut(); ...; link.restore()

As a process: python -m tests.link [LISTEN:]PORT TARGET:PORT [--delay-ms A] [--back-delay-ms B] [--loss P]
[--rate BYTES_PER_S]. It prints its port; then it takes `cut`, `restore`, `kill`, `delay A B` on stdin, one a
line, answers `ok` to each, and ends when stdin closes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import struct
import sys
import threading
import time
from contextlib import suppress

CHUNK_BYTES = 1 << 16
BUFFER_BYTES = 1 << 22
"""What is on the way at most, each way and connection; then the sender waits, as with a full TCP window."""

RESET = struct.pack("ii", 1, 0)

RETRANSMISSION_S = 0.2
"""Linux's least time until a lost segment is sent again."""


class Link:
    """`delay_s` is towards the target, `back_delay_s` from it. All attributes may be changed at any time."""

    def __init__(
        self,
        target: tuple[str, int],
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        delay_s: float = 0.0,
        back_delay_s: float = 0.0,
        loss: float = 0.0,
        rate_bytes_s: float | None = None,
        seed: int = 1,
    ) -> None:
        self.target = target
        self.delay_s = delay_s
        self.back_delay_s = back_delay_s
        self.loss = loss
        """Share of the chunks that come RETRANSMISSION_S later."""
        self.rate_bytes_s = rate_bytes_s
        self.accepted = 0
        """Connections made so far."""
        self.forwarded = 0
        """Bytes, both ways."""
        self._listen = listen
        self._random = random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()
        self._ready.wait(30)
        if self.port == 0:
            raise OSError(f"cannot listen at {listen}")

    port = 0

    def cut(self) -> None:
        """From now on nothing passes, either way; connections stay."""
        self._call(self._open.clear)

    def restore(self) -> None:
        """What has waited passes now."""
        self._call(self._open.set)

    def kill(self) -> None:
        """Reset all connections; what is on the way is lost."""
        self._call(self._abort)

    def close(self) -> None:
        """End it, and all connections."""
        if not self._loop.is_closed():
            self._call(self._stop.set)
            self._thread.join(30)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, function: object) -> None:
        done = threading.Event()

        def run() -> None:
            function()  # type: ignore[operator]
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(30)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        self._open, self._stop = asyncio.Event(), asyncio.Event()
        self._open.set()
        server = await asyncio.start_server(self._connect, *self._listen, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        self._abort()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _abort(self) -> None:
        for writer in [*self._writers]:
            # Without this, closing is an orderly end of the stream.
            with suppress(OSError):  # closed by its other end at this moment
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        self._writers.add(writer)
        far = None
        try:
            await self._open.wait()
            far_reader, far = await asyncio.open_connection(*self.target)
            self._writers.add(far)
            await asyncio.gather(
                self._pump(reader, far, back=False), self._pump(far_reader, writer, back=True)
            )
        except (OSError, asyncio.CancelledError):
            pass  # one end has closed: so does the other
        finally:
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()
                    self._writers.discard(end)
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(BUFFER_BYTES // CHUNK_BYTES)
        delivery = asyncio.create_task(self._deliver(waiting, writer))
        due = 0.0
        try:
            while not delivery.done():
                data = await reader.read(CHUNK_BYTES)
                due = max(due, time.monotonic() + (self.back_delay_s if back else self.delay_s))
                if self.rate_bytes_s:
                    due += len(data) / self.rate_bytes_s
                if self.loss and self._random.random() < self.loss:
                    due += RETRANSMISSION_S
                await waiting.put((due, data))
                if not data:
                    break
            await delivery
        finally:
            delivery.cancel()

    async def _deliver(
        self, waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due, data = await waiting.get()
            if (left := due - time.monotonic()) > 0:
                await asyncio.sleep(left)
            await self._open.wait()
            if not data:
                with suppress(OSError):
                    writer.write_eof()
                return
            writer.write(data)
            self.forwarded += len(data)
            await writer.drain()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host or "127.0.0.1", int(port)


def main() -> None:
    """The link as a process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("listen", type=_address)
    parser.add_argument("target", type=_address)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--back-delay-ms", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--rate", type=float)
    options = parser.parse_args()
    with Link(
        options.target,
        listen=options.listen,
        delay_s=options.delay_ms / 1e3,
        back_delay_s=options.back_delay_ms / 1e3,
        loss=options.loss,
        rate_bytes_s=options.rate,
    ) as link:
        print(link.port, flush=True)
        for line in sys.stdin:
            match line.split():
                case ["cut"]:
                    link.cut()
                case ["restore"]:
                    link.restore()
                case ["kill"]:
                    link.kill()
                case ["delay", there, back]:
                    link.delay_s, link.back_delay_s = float(there) / 1e3, float(back) / 1e3
                case _:
                    print("unknown", flush=True)
                    continue
            print("ok", flush=True)


if __name__ == "__main__":
    main()
