"""How a process that reads a whole recording uses its memory."""

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = {_M_TRIM_THRESHOLD: 1 << 30, _M_MMAP_THRESHOLD: 32 << 20}
"""Bytes; 32 MiB is the most that glibc takes."""


def keep_freed_memory() -> None:
    """Memory that this process frees stays its own: for one that ends soon and often drops large arrays.

    The system has to find and clear each page that is asked for again, a tenth of what reading a recording
    takes. Where the C library is not glibc nothing changes."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for option, limit in _KEPT.items():
            libc.mallopt(option, limit)
