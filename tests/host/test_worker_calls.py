"""Where DataLoader workers are in their Python code, as py-spy shows it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from ddptop.host.exits import RankProcess
from ddptop.host.worker_calls import TIMEOUT_NS, WorkerCalls, innermost_call, native_calls
from tests.processes import until

if TYPE_CHECKING:
    from pathlib import Path

FETCH = ("/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", 54, "fetch")
DECODE, ITEM = ("/home/me/data.py", 41, "Pictures.decode"), ("/home/me/data.py", 12, "Pictures.__getitem__")


def dump(pid: int, *calls: tuple[str, int, str]) -> str:
    frames = [{"filename": file, "line": line, "name": name, "locals": None} for file, line, name in calls]
    other = {"os_thread_id": pid + 1, "frames": []}
    return json.dumps([other, {"os_thread_id": pid, "frames": frames}])


def test_the_call_is_the_innermost_one_of_the_main_thread_in_the_users_own_code() -> None:
    pil = ("/venv/lib/python3.11/site-packages/PIL/Image.py", 900, "Image.load")
    assert innermost_call(dump(7, pil, DECODE, ITEM, FETCH), 7) == "data.py:41 decode"
    assert innermost_call(dump(7, FETCH), 7) == "", "it waits for work"
    parent = ("/home/me/train.py", 12, "<module>")
    process = ("/usr/lib/python3.11/multiprocessing/process.py", 314, "_bootstrap")
    assert innermost_call(dump(7, DECODE, FETCH, process, parent), 7) == "data.py:41 decode"
    assert innermost_call(dump(7, FETCH, process, parent), 7) == "", "its parent was there as it forked"
    hostile = ("/home/me/\x1b[2Jdata.py", 1, "f\u202e" + "g" * 1000)
    assert innermost_call(dump(7, hostile), 7) == ("[2Jdata.py:1 f" + "g" * 1000)[:512]
    for malformed in ("", "{}", "[]", '[{"os_thread_id": 7}]', dump(8, DECODE)):
        assert innermost_call(malformed, 7) == ""


def test_a_call_of_ddptop_itself_is_not_the_users() -> None:
    """It wraps `backward` in a checkout, where no folder of installed packages tells that."""
    torch = ("/home/me/pytorch/torch/autograd/__init__.py", 340, "backward")
    wrapper = ("/home/me/src/ddptop/ddptop/training/attach.py", 180, "backward")
    train = ("/home/me/train.py", 12, "train")
    assert innermost_call(dump(7, wrapper, train), 7) == "train.py:12 train", "it is the innermost one"
    assert innermost_call(dump(7, torch, wrapper, train), 7) == "train.py:12 train"
    assert innermost_call(dump(7, torch, wrapper, FETCH), 7) == "", "no call is the user's"


def test_py_spy_is_not_waited_for_and_killed_where_it_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, rank = tmp_path / "py-spy", RankProcess(1, 0, 6)
    program.write_text(f"#!/bin/sh\n[ $5 = 8 ] && exec sleep 60\necho '{dump(7, DECODE)}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    calls = WorkerCalls()
    calls.request_calls(rank, [7, 8], 0)
    begun = time.monotonic()
    assert until(lambda: list(calls.take_calls(1)), "the first has been read") == [
        (rank, {"pid": 7, "call": "data.py:41 decode"})
    ]
    assert list(calls.take_calls(TIMEOUT_NS)) == [] and time.monotonic() - begun < 60


def test_why_a_process_is_not_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, rank, calls = tmp_path / "py-spy", RankProcess(1, 0, 6), WorkerCalls()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    calls.request_calls(rank, [9], 0)
    assert list(calls.take_calls(0)) == [(rank, {"pid": 9, "unread": "missing"})]
    calls.request_calls(rank, [9], 0, native=True)
    assert list(calls.take_calls(0)) == []
    program.write_text("#!/bin/sh\necho 'Permission Denied: Try running again' >&2\nexit 1\n")
    program.chmod(0o755)  # beside the Python that runs, as an extra is installed
    calls.request_calls(rank, [7], 0)
    assert until(lambda: list(calls.take_calls(1)), "it has failed") == [
        (rank, {"pid": 7, "unread": "denied"})
    ]


def test_a_long_dump_is_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """py-spy writes it before it ends: a pipe that nobody reads would block it after 64 kB."""
    program, rank, calls = tmp_path / "py-spy", RankProcess(1, 0, 6), WorkerCalls()
    (tmp_path / "dump").write_text(dump(7, *[("/lib/python3.11/x.py", 1, "f" * 200)] * 2000, DECODE))
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/dump\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    calls.request_calls(rank, [7], 0)
    assert until(lambda: list(calls.take_calls(1)), "it has been read") == [
        (rank, {"pid": 7, "call": "data.py:41 decode"})
    ]


def test_the_c_functions_of_a_process_that_runs_no_python_are_those_above_its_python_code() -> None:
    names = ("clock_nanosleep", "nanosleep", "sleep", "0x7f00")
    native = [{"name": name, "module": "/lib/libc.so.6", "filename": "", "line": 0} for name in names]
    other = {"name": "ffi_call", "module": "/lib/libffi.so.8", "filename": "", "line": 0}
    python = {"name": "tokenize", "module": None, "filename": "/home/me/data.py", "line": 3}

    def read(*frames: object) -> str:
        return native_calls(json.dumps([{"os_thread_id": 7, "frames": [*frames]}]), 7)

    assert read(*native, other, python) == "clock_nanosleep < nanosleep < sleep (libc.so.6)"
    assert read(native[3], other, python) == "ffi_call (libffi.so.8)"
    assert read(python, *native) == read() == native_calls("", 7) == "", "it runs Python"


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="needs py-spy")
def test_a_real_process_that_sleeps_in_c_with_the_lock_is_read_with_its_native_stack() -> None:
    code = "import ctypes; print(1, flush=True); ctypes.PyDLL(None).sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            calls, rank = WorkerCalls(), RankProcess(1, 0, process.pid)

            def read() -> str | None:
                calls.request_calls(rank, [process.pid], time.monotonic_ns(), native=True)
                found = [str(fields["native"]) for _, fields in calls.take_calls(time.monotonic_ns())]
                return next((text for text in found if "sleep" in text), None)

            assert "nanosleep" in str(until(read, "its native stack is read"))
        finally:
            process.kill()
