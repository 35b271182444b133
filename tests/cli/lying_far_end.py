"""A far end of `ddptop --connect` that lies: `python lying_far_end.py MODE FILE`.

FILE gets a line at each start. Modes: sound: a frame for each one that is asked for; nan, infinity, escapes:
in such a frame; endless: each says that there is more history; wide: each has 16,384 ranks. Once it was
asked, frames, beats: sound ones without end; rubbish: random bytes; drip: a frame, byte by byte; errors: text
on stderr. banner: that on stdout, before it greets; refuses: it ends at once.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from ddptop.frames.codec import POINTS, encode_frame
from ddptop.frames.history import COLUMNS
from ddptop.protocol.codec import encode
from ddptop.protocol.limits import MAX_SHOWN_WORLD
from ddptop.protocol.messages import State
from ddptop.transport import stdio
from tests.tui.fake import live
from tests.tui.hostile import ESCAPES, changed

mode, starts = sys.argv[1:3]
with Path(starts).open("a") as file:
    file.write(f"{time.monotonic()}\n")


def write(kind: bytes, payload: bytes) -> None:
    data = stdio.pack_pipe_frame(kind, payload)
    while data:
        data = data[os.write(1, data) :]


if mode == "refuses":
    sys.exit("no such host")
while mode == "banner":
    os.write(1, b"welcome\n" * 1000)
frame = live(MAX_SHOWN_WORLD if mode == "wide" else 4)
points = {name: getattr(frame.history, name)[:500] for name in COLUMNS}
if mode == "endless":
    points = {name: np.resize(column, POINTS) for name, column in points.items()}
    points["time_s"] = np.arange(POINTS) / 10

times = np.array(points["time_s"])
if mode == "infinity":
    times[250] = np.inf
frame = replace(frame, history=replace(frame.history, **points | {"time_s": times}))
if mode == "nan":
    frame = replace(frame, unix_s=float("nan"))
if mode == "escapes":
    for path in (("run", "torch"), ("run", "script"), ("ranks", "host", 0), ("events", 0, "message")):
        frame = changed(frame, path, ESCAPES)
state = encode(State(1, 0, encode_frame(frame)))
os.write(1, stdio.GREETING)
hello = stdio.RelayHello(stdio.VERSION, "0", "abcd", "a run" if mode != "escapes" else ESCAPES, "far")
write(stdio.HELLO, stdio.to_json(hello))
asked = mode in ("sound", "nan", "infinity", "escapes", "endless", "wide") or os.read(0, 65_536)
while asked:
    if mode == "errors":
        os.write(2, b"no such host\n" * 1000)
    elif mode == "drip":
        for byte in stdio.pack_pipe_frame(stdio.STATE, state):
            os.write(1, bytes((byte,)))
    elif mode == "beats":
        os.write(1, stdio.pack_pipe_frame(stdio.BEAT, b"1") * 1000)
    elif mode == "rubbish":
        os.write(1, os.urandom(65_536))
    elif mode == "frames":
        write(stdio.STATE, state)
    else:
        if not os.read(0, 65_536):  # a credit, or the near end has gone
            sys.exit()
        write(stdio.STATE, state)
