import os
import sys
from pathlib import Path

from tests.processes import run


def test_memory_that_is_freed_is_kept() -> None:
    code = """if True:
    import resource, sys
    from ddptop.recording.memory import keep_freed_memory

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(3):
            [bytearray(8 << 20) for _ in range(8)]
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_freed_memory()
    faults()
    print(faults())
    """
    done = run([sys.executable, "-c", code], os.environ, Path.cwd())
    assert int(done.stdout) < 16_384, done.stderr  # so many pages once 64 MiB have
