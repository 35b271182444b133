"""Which files are the user's own code."""

from __future__ import annotations

import re
from functools import lru_cache

_INSTALLED = re.compile(
    r"""[/\\](site-packages|dist-packages)[/\\]
    |[/\\]lib(64)?[/\\]python\d[\d.]*[/\\]
    |[/\\]python\d+\.zip[/\\]
    |[/\\]torch[/\\](_|nn|distributed|autograd|optim|utils|cuda|amp|multiprocessing|jit|fx|library|func)
    |[/\\]ddptop[/\\](training|runtime|transport|host|protocol|frames|analysis|agent)[/\\]
    |[/\\]ddptop[/\\](collector|cli|sources|render|report|tui|recording)[/\\]
    |[/\\]torchinductor_
    |^<frozen""",
    re.VERBOSE,
)
"""Files of Python itself, of installed packages, of torch built in place, and of ddptop.

`runtime` and `agent` are names of folders in other versions of ddptop, which are in their recordings."""

_OWN_DEMO = re.compile(r"[/\\]ddptop[/\\](training|runtime)[/\\]demo\.py$")
"""The training of `ddptop demo` counts as the user's code."""


# Asked for every call of every stack, mostly about the same few files.
@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether a file is the user's own code."""
    return bool(_OWN_DEMO.search(file)) or not _INSTALLED.search(file)
