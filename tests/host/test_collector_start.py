"""Several processes share a collector: one of them, the last, requests its end."""

from __future__ import annotations

import os
from pathlib import Path

from ddptop.host import collector_start


def join(folder: Path) -> int:
    member = collector_start.become_member(folder)
    assert member is not None
    return member


def test_of_members_that_leave_at_the_same_time_one_requests_the_end(tmp_path: Path) -> None:
    first, second = join(tmp_path), join(tmp_path)
    try:
        assert not collector_start.request_end(first)
        assert not collector_start.end_requested(tmp_path)
        assert collector_start.request_end(second)  # the attempt of the first has released its lock
        os.close(second)
        second = -1
        assert collector_start.end_requested(tmp_path)
        assert not collector_start.request_end(first)
    finally:
        for member in (first, second):
            if member >= 0:
                os.close(member)


def test_there_are_members_until_the_last_has_left(tmp_path: Path) -> None:
    assert not collector_start.has_members(tmp_path)
    member = join(tmp_path)
    assert collector_start.has_members(tmp_path)
    os.close(member)
    assert not collector_start.has_members(tmp_path)
