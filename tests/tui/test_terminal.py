"""The terminal below the screen, where it goes away."""

from __future__ import annotations

import os
import threading

from hypothesis import given
from hypothesis import strategies as st
from textual.drivers._writer_thread import WriterThread

from ddptop.tui.terminal import InputDecoder, LastingStream


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


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\x1b"), max_size=3).map(str.encode)
NO_KEYS = st.one_of(
    st.binary(min_size=3, max_size=3).map(lambda place: b"\x1b[M" + place),  # a mouse report of X10
    st.integers(0x80, 0xFF).map(lambda byte: bytes([byte, ord("-")])),  # a key of a Latin-1 terminal
)


@given(st.lists(st.tuples(KEYS, NO_KEYS), max_size=8), KEYS, st.integers(3, 5))
def test_what_is_no_key_is_left_out(parts: list[tuple[bytes, bytes]], last: bytes, cut: int) -> None:
    sent = b"".join(key + other for key, other in parts)
    expected = "".join(key.decode() + ("-" if len(other) == 2 else "") for key, other in parts)
    decoder = InputDecoder()
    assert decoder.decode(sent) == expected
    report = b"\x1b[M !\xe9"
    assert decoder.decode(report[:cut]) + decoder.decode(report[cut:] + last) == last.decode()
