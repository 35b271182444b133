"""Stacks of threads and of exceptions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ddptop.protocol.evidence import Stack
from ddptop.training.evidence.errors import CODE_CHARACTERS, MAIN_FRAMES, traceback_stack, with_source
from ddptop.training.evidence.reporter import MAX_THREADS, OTHER_FRAMES, thread_stacks


def deep(calls: int, there: threading.Event, leave: threading.Event) -> None:
    if calls:
        deep(calls - 1, there, leave)
    else:
        there.set()
        leave.wait()


@contextmanager
def waiting(names: list[str], calls: int = 0) -> Iterator[list[threading.Thread]]:
    """Threads that wait below so many calls of `deep`."""
    leave = threading.Event()
    threads = []
    for name in names:
        there = threading.Event()
        threads.append(threading.Thread(target=deep, name=name, args=(calls, there, leave)))
        threads[-1].start()
        there.wait()
    yield threads
    leave.set()
    for thread in threads:
        thread.join()


def by_name(stacks: tuple[Stack, ...]) -> dict[str, Stack]:
    return {stack.thread: stack for stack in stacks}


def test_the_training_thread_comes_first_and_our_own_are_left_out() -> None:
    with waiting(["loader", "ddptop-publisher"]):
        stacks = thread_stacks(threading.get_ident())
    assert stacks[0].main and stacks[0].thread == threading.current_thread().name
    assert "test_the_training_thread_comes_first_and_our_own_are_left_out" in [
        call.function for call in stacks[0].frames
    ]
    found = by_name(stacks)
    assert "deep" in [call.function for call in found["loader"].frames]
    assert "ddptop-publisher" not in found
    assert sum(stack.main for stack in stacks) == 1


def test_stacks_are_cut_to_their_innermost_calls() -> None:
    with waiting(["trainer", "other"], calls=100) as (trainer, _):
        assert trainer.ident is not None
        found = by_name(thread_stacks(trainer.ident))
    assert [len(found[name].frames) for name in ("trainer", "other")] == [MAIN_FRAMES, OTHER_FRAMES]
    assert found["trainer"].frames[0].function == "wait", "innermost first"


def test_an_application_with_many_threads_shows_the_first() -> None:
    with waiting([f"w{number}" for number in range(2 * MAX_THREADS)]):
        assert len(thread_stacks(threading.get_ident())) == MAX_THREADS


def test_the_source_of_every_call_is_shown_and_cut() -> None:
    def long_line() -> tuple[Stack, ...]:
        return thread_stacks(threading.get_ident()) if "a very long line, made so that it has to be cut somewhere, and here" else ()  # noqa: E501  # fmt: skip

    call = next(call for call in with_source(long_line())[0].frames if call.function == "long_line")
    assert call.code.startswith("return thread_stacks(")
    assert len(call.code) == CODE_CHARACTERS
    nowhere = with_source([Stack("t", True, (call._replace(file="<string>", code=""),))])
    assert nowhere[0].frames[0].code == ""
    known = with_source([Stack("t", True, (call._replace(file="<string>", code="raise x"),))])
    assert known[0].frames[0].code == "raise x"


def test_a_traceback_is_told_innermost_first() -> None:
    def inner() -> None:
        raise ValueError

    try:
        inner()
    except ValueError as error:
        stack = traceback_stack(error.__traceback__)
    assert (stack.thread, stack.main) == ("traceback", True)
    assert [call.function for call in stack.frames] == ["inner", "test_a_traceback_is_told_innermost_first"]
    assert traceback_stack(None).frames == ()
