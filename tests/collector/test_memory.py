"""Memory of a collector of many hosts."""

import subprocess
import sys

import pytest

ALLOCATE = """
import ctypes, threading
{share}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.fdopen.restype, libc.fdopen.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_char_p]
libc.malloc_info.argtypes, libc.fflush.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
thread = threading.Thread(target=lambda: [libc.malloc(1000) for _ in range(1000)])
thread.start()
thread.join()
stdout = libc.fdopen(1, b"w")
libc.malloc_info(0, stdout)
libc.fflush(stdout)
"""
SHARE = "from ddptop.collector.remote_hosts import share_free_memory; share_free_memory()"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of the C library of Linux")
def test_what_a_thread_frees_is_not_kept_for_it_alone():
    def heaps(share: str) -> int:
        code = ALLOCATE.format(share=share)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.count("<heap nr=")

    assert heaps("") == 2
    assert heaps(SHARE) == 1
