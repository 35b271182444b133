"""The terminal below the screen, where it goes away."""

from __future__ import annotations

import os
import threading

from textual.drivers._writer_thread import WriterThread

from ddptop.tui.terminal import LastingStream


def test_a_screen_whose_terminal_was_closed_is_written_to_its_end() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # a write fails with EPIPE, as one to a closed terminal with EIO
    with os.fdopen(writing, "w", buffering=1) as stream:
        writer = WriterThread(LastingStream(stream))  # type: ignore[arg-type]
        writer.start()

        def write() -> None:
            for _ in range(100):  # more than the thread's queue holds
                writer.write("a line\n")
            writer.stop()

        screen = threading.Thread(target=write, daemon=True)
        screen.start()
        screen.join(30)
        assert not screen.is_alive()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # what is buffered goes somewhere
