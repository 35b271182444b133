"""The reason of a process's end, as its finalizers can see it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import pytest

from ddptop.protocol.messages import FINISHED
from ddptop.training.exit import ExitReason, exit_reason


def seen_in_flight(raise_it: Callable[[], None]) -> ExitReason:
    """What a finalizer finds that runs while the exception is still on its way, as in multiprocessing."""
    found = []
    with contextlib.suppress(BaseException):
        try:
            raise_it()
        finally:
            found.append(exit_reason())
    return found[0]


def fail() -> None:
    raise KeyError("batch")


def fail_as_a_child_of_mp_spawn() -> None:
    try:
        fail()
    except KeyError:
        sys.exit(1)


def leave_from_a_handled_error() -> None:
    try:
        fail()
    except KeyError:
        sys.exit(0)


def test_an_exception_in_flight_is_the_reason_and_its_traceback_is_kept() -> None:
    found = seen_in_flight(fail)
    assert found.reason == "KeyError: 'batch'"
    assert found.trace is not None
    assert (found.trace.thread, found.trace.main) == ("traceback", True)
    assert [call.function for call in found.trace.frames] == ["fail", "seen_in_flight"], "innermost first"


def test_what_mp_spawn_has_turned_into_an_exit_is_found() -> None:
    found = seen_in_flight(fail_as_a_child_of_mp_spawn)
    assert found.reason == "KeyError: 'batch'"
    assert found.trace is not None and found.trace.frames[0].function == "fail"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, "exit code 3"),
        ("no data", "SystemExit: no data"),
        (["a.pt", 7], "SystemExit: ['a.pt', 7]"),
        ("no\ndata " * 90, f"SystemExit: {'no data ' * 90}"[:157] + "..."),
    ],
)
def test_an_exit_code_or_the_text_in_its_place_is_told(code: object, reason: str) -> None:
    found = seen_in_flight(lambda: sys.exit(code))
    assert found.reason == reason
    assert found.trace is not None


def test_a_text_given_while_an_exception_is_handled_is_told_with_that() -> None:
    def leave() -> None:
        try:
            fail()
        except KeyError:
            sys.exit("no data")

    assert seen_in_flight(leave).reason == "SystemExit: no data (while handling KeyError: 'batch')"


@pytest.mark.parametrize("code", [None, 0])
def test_an_exit_without_a_code_is_a_clean_end(code: object) -> None:
    assert seen_in_flight(lambda: sys.exit(code)) == ExitReason(FINISHED, None)
    assert seen_in_flight(leave_from_a_handled_error) == ExitReason(FINISHED, None)
    assert exit_reason() == ExitReason(FINISHED, None)


def test_a_scripts_uncaught_exception_is_the_one_that_was_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError("no such luck"), raising=False)
    assert exit_reason().reason == "ValueError: no such luck"
