"""For all tests."""

import gc
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

os.environ["DDPTOP"] = "0"
"""A test that sets up a process group in its own process is no training to be recorded in somebody's home.
Commands that tests start have an environment of their own (`tests.processes`)."""


sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Rewriting the asserts of all test files takes six seconds: the next run and the other workers read them.
Commands that tests start would compile the whole package each time."""


gc.disable()
"""Until all tests are collected: nothing of them is garbage."""


settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=50
)
settings.load_profile("busy")
"""No test measures time: the machine may be busy. The examples are the same in each run, so that a change is
judged by what it changes; `--hypothesis-profile default` draws others."""


COMPUTING = ("architecture", "analysis", "truth", "sources", "protocol", "recording", "host", "render", "tui")
"""Folders whose tests start few processes, and so seldom wait."""

WAITING_UNTIL = 0.8
"""The share of the files that compute after which all others have begun: these last longest."""


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # xdist would give out first the files with the most tests
    if hasattr(config, "workerinput"):
        worker, n_workers = config.workerinput["workerid"], config.workerinput["workercount"]
        import_share(config, int(worker.removeprefix("gw")), n_workers)


def import_share(config: pytest.Config, share: int, n_shares: int) -> None:
    """Import a share of the test files first, another one in each worker.

    Each worker imports all test files, and pytest keeps what it makes of their asserts. In a new clone, in
    the same order, each worker would make it of them all.
    """
    folders = {Path(word.partition("::")[0]).resolve() for word in config.args}
    tests = Path(__file__).parent
    files = [file for file in tests.rglob("test_*.py") if not folders.isdisjoint(file.parents)]
    for file in sorted(files, key=lambda file: (file.stat().st_size, file))[share::n_shares]:
        name = ".".join(file.relative_to(tests.parent).with_suffix("").parts)
        with suppress(Exception, pytest.skip.Exception):  # said where the file is collected
            importlib.import_module(name)


def pytest_collection_finish() -> None:
    """What has been collected stays: looking through it again for garbage takes half a second each time."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait for processes between files that compute, in the same order on every worker.

    While some workers wait, others have work for the cores. Files that compute are also the last: they take
    little time each, so that all workers end together.
    """
    computing: list[Path] = []
    waiting: list[Path] = []
    for path in dict.fromkeys(item.path for item in items):
        folder = path.relative_to(Path(__file__).parent).parts[0]
        (computing if folder in COMPUTING else waiting).append(path)
    place = {path: number / len(computing) for number, path in enumerate(computing)}
    place |= {path: WAITING_UNTIL * number / len(waiting) for number, path in enumerate(waiting)}
    items.sort(key=lambda item: place[item.path])


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What programs of others leave where temporary files go is removed: torch's launcher leaves a folder at
    each start, a process that is killed its sockets. The folders of the tests themselves stay for a while."""
    tmp_path_factory.getbasetemp()
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="ddptop-tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        yield
        tempfile.tempdir = None
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What a test sets in the environment, or a launcher that it runs in this process, ends with the test."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session", autouse=True)
def signals() -> None:
    """What tests start ignores no signal: in the background of a shell, or by `nohup`, it would.

    The process of the tests itself goes on ignoring SIGHUP and SIGTERM.
    """
    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGQUIT: signal.SIG_DFL,
        signal.SIGHUP: lambda *_: None,
        signal.SIGTERM: lambda *_: None,
    }
    for number, handler in handlers.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
