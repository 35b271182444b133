"""What is imported stays: the garbage collector is kept from looking at it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_for_good() -> Iterator[None]:
    """Do without collections meanwhile, and leave out of later ones whatever is there at the end.

    For imports. Those of the screen set off seventy collections, 36 of 200 ms, that find next to nothing; and
    every full collection afterwards would hold a key up for 23 ms to look at 50,000 objects that never die.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
