"""For all tests."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["DDPTOP"] = "0"
"""A test that sets up a process group in its own process is no training to be recorded in somebody's home.
Commands that tests start have an environment of their own (`tests.processes`)."""


sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Rewriting the asserts of all test files takes six seconds: the next run and the other workers read them.
Commands that tests start would compile the whole package each time."""


settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=50
)
settings.load_profile("busy")
"""No test measures time: the machine may be busy. The examples are the same in each run, so that a change is
judged by what it changes; `--hypothesis-profile default` draws others."""


SHORT = ("architecture", "analysis", "truth", "sources", "protocol", "recording", "host", "render", "tui")
"""Folders whose tests start few processes: what is left for the end, so that all workers end together."""


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # xdist would give out first the files with the most tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long first, in the same order on every worker."""

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return SHORT.index(folder) + 1 if folder in SHORT else 0

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def signals() -> None:
    """What tests start ignores no signal: in the background of a shell, or by `nohup`, it would.

    The process of the tests itself goes on ignoring SIGHUP and SIGTERM.
    """
    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: lambda *_: None,
        signal.SIGTERM: lambda *_: None,
    }
    for number, handler in handlers.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
