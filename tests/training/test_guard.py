"""Which exceptions stop at the boundary, and which are none of ours."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Any

import pytest

from ddptop.training.guard import Guard, run_after_fork
from ddptop.training.recorder import Recorder
from ddptop.training.session import Session


class TimeLimit(Exception):
    """As a script raises from its signal handler."""


def handler(_number: int, _frame: Any) -> None:
    raise TimeLimit


class Handler:
    def __call__(self, _number: int, _frame: Any) -> None:
        raise TimeLimit

    def method(self, _number: int, _frame: Any) -> None:
        raise TimeLimit


def other(_number: int, _frame: Any, *, limit: int) -> None:
    raise TimeLimit(limit)


def guarded(guard: Guard, work: Callable[[], object]) -> None:
    """A boundary as there are many."""
    try:
        work()
    except Exception as error:
        guard.caught(error)


HANDLERS = {
    "function": handler,
    "object": Handler(),
    "method": Handler().method,
    "partial": functools.partial(other, limit=3),
}


@pytest.mark.parametrize("users", HANDLERS.values(), ids=HANDLERS)
def test_what_a_signal_handler_of_the_users_raises_is_not_swallowed(users: Any) -> None:
    guard = Guard()
    before = signal.signal(signal.SIGUSR1, users)
    try:
        with pytest.raises(TimeLimit):
            guarded(guard, lambda: signal.raise_signal(signal.SIGUSR1))
        guarded(guard, lambda: 1 // 0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert guard.count == 1


def test_an_exception_without_words_is_counted_and_named() -> None:
    class Strange(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    guard = Guard()
    guard.caught(Strange())
    assert (guard.count, guard.first) == (1, "Strange")


def test_all_work_after_a_fork_is_done_whatever_some_of_it_raises() -> None:
    done: list[str] = []

    def fail() -> None:
        done.append("fail")
        raise BufferError

    def interrupted() -> None:
        done.append("interrupted")
        raise KeyboardInterrupt

    run_after_fork(fail, lambda: done.append("last"))
    assert done == ["fail", "last"]
    with pytest.raises(KeyboardInterrupt):
        run_after_fork(interrupted, fail, lambda: done.append("last"))
    assert done == ["fail", "last", "interrupted", "fail", "last"]


def test_an_impatient_ctrl_c_while_the_last_records_are_sent_ends_the_wait_in_silence() -> None:
    class Slow:
        def close(self, *_words: object) -> None:
            raise KeyboardInterrupt

    session = Session.__new__(Session)
    session.recorder = Recorder()
    session.publisher = Slow()  # type: ignore[assignment]
    session.close()
    assert session.publisher is None
