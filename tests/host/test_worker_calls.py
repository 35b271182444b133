"""Where DataLoader workers are in their Python code, as py-spy shows it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from ddptop.host.exits import RankProcess
from ddptop.host.worker_calls import TIMEOUT_NS, WorkerCalls, innermost_call
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
    for malformed in ("", "{}", "[]", '[{"os_thread_id": 7}]', dump(8, DECODE)):
        assert innermost_call(malformed, 7) == ""


def test_py_spy_is_not_waited_for_and_killed_where_it_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, rank = tmp_path / "py-spy", RankProcess(1, 0, 6)
    program.write_text(f"#!/bin/sh\n[ $5 = 8 ] && exec sleep 60\necho '{dump(7, DECODE)}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    calls = WorkerCalls()
    calls.request(rank, [7, 8], 0)
    begun = time.monotonic()
    assert until(lambda: list(calls.take(1)), "the first has been read") == [(rank, 7, "data.py:41 decode")]
    assert list(calls.take(TIMEOUT_NS)) == [] and time.monotonic() - begun < 60
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    calls.request(rank, [9], 0)
    assert list(calls.take(TIMEOUT_NS)) == []
