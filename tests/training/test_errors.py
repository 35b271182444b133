"""What is reported of an exception, also of one that another process has raised."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from ddptop.training.evidence import errors
from ddptop.training.evidence.errors import ErrorReport, describe_error, parse_traceback


def bad(index: int) -> None:
    raise ValueError(f"cannot identify image file 'shard-7/{index}.jpg'")


def missing_key(_index: int) -> object:
    return {}["image"]


def chained(index: int) -> None:
    try:
        missing_key(index)
    except KeyError as error:
        raise RuntimeError(f"sample {index} is damaged") from error


def while_handling(index: int) -> None:
    try:
        missing_key(index)
    except KeyError:
        bad(index)


def several_lines(_index: int) -> None:
    raise RuntimeError("size mismatch:\n    got 3\n    wanted: 4")


def killed(_index: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def bus_error(_index: int) -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def leaves(_index: int) -> None:
    os._exit(3)


def other_shapes(index: int) -> torch.Tensor:
    return torch.zeros(3 + index)


class Samples(Dataset):
    """As a script's: every sample is what a function makes of its index."""

    def __init__(self, sample: Callable[[int], object]) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> object:
        return self.sample(index)


def report_of(work: Callable[[], object]) -> ErrorReport:
    with pytest.raises(BaseException) as caught:
        work()
    return describe_error(caught.value)


def report_of_loader(sample: Callable[[int], object]) -> ErrorReport:
    def load() -> None:
        for _ in DataLoader(Samples(sample), 4, num_workers=1):
            pass

    return report_of(load)


def functions(report: ErrorReport) -> list[str]:
    return [frame.function for frame in report.trace.frames]


@pytest.mark.parametrize(
    ("sample", "reason", "calls"),
    [
        (
            bad,
            "ValueError in a DataLoader worker: cannot identify image file 'shard-7/0.jpg'",
            ["bad", "__getitem__"],
        ),
        (missing_key, "KeyError in a DataLoader worker: 'image'", ["missing_key", "__getitem__"]),
        (
            chained,
            "RuntimeError in a DataLoader worker: sample 0 is damaged (from KeyError: 'image')",
            ["missing_key", "chained", "__getitem__"],
        ),
        (
            while_handling,
            "ValueError in a DataLoader worker: cannot identify image file 'shard-7/0.jpg' "
            "(while handling KeyError: 'image')",
            ["bad", "while_handling", "__getitem__"],
        ),
    ],
)
def test_an_exception_of_a_worker_has_its_own_type_message_and_calls(
    sample: Callable[[int], object], reason: str, calls: list[str]
) -> None:
    report = report_of_loader(sample)
    assert report.reason == reason
    assert functions(report)[: len(calls)] == calls
    assert functions(report)[-2:] == ["load", "report_of"], "then those of this process"
    assert report.trace.main
    innermost = report.trace.frames[0]
    assert (innermost.file, innermost.code != "") == (__file__, True)
    assert report.trace.thread == "traceback in a DataLoader worker"


def test_where_a_worker_was_in_no_code_of_the_users_the_loop_is_the_place() -> None:
    report = report_of_loader(other_shapes)
    assert report.reason.startswith("RuntimeError in a DataLoader worker: stack expects each tensor")
    own = [frame.function for frame in report.trace.frames if frame.file == __file__]
    assert own == ["load", "report_of"]


def test_the_lines_of_a_message_are_kept_beside_the_reason() -> None:
    report = report_of_loader(several_lines)
    assert report.reason == "RuntimeError in a DataLoader worker: size mismatch: got 3 wanted: 4"
    assert report.message == (
        "RuntimeError in a DataLoader worker: size mismatch:",
        "    got 3",
        "    wanted: 4",
    )


@pytest.mark.parametrize(
    ("sample", "how"),
    [
        (killed, "was killed by SIGKILL"),
        (bus_error, "was killed by SIGBUS"),
        (leaves, "exited with code 3"),
    ],
)
def test_of_a_worker_that_is_gone_the_signal_or_the_exit_code_is_told(
    sample: Callable[[int], object], how: str
) -> None:
    report = report_of_loader(sample)
    words = report.reason.split()
    assert report.reason == f"RuntimeError: DataLoader worker (pid {words[4].rstrip(')')}) {how}"
    assert functions(report)[-2:] == ["load", "report_of"]


class Unbuilt:
    """As an FSDP model whose `__init__` has failed: it asks itself for what it does not have."""

    def __init__(self) -> None:
        raise RuntimeError("needs an accelerator")

    def __getattr__(self, name: str) -> object:
        return getattr(self.module, name)


def test_of_an_object_that_cannot_be_asked_the_message_is_kept() -> None:
    assert report_of(Unbuilt).reason == "RuntimeError: needs an accelerator"


def test_pools_have_the_workers_calls_in_the_exceptions_cause() -> None:
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        of_pool = report_of(lambda: pool.map(chained, [1]))
    with ProcessPoolExecutor(1, context) as executor:
        of_executor = report_of(lambda: list(executor.map(bad, [1])))
    assert of_pool.reason == (
        "RuntimeError in a worker process: sample 1 is damaged (from KeyError: 'image')"
    )
    assert functions(of_pool)[:2] == ["missing_key", "chained"]
    assert of_executor.reason == "ValueError in a worker process: cannot identify image file 'shard-7/1.jpg'"
    assert functions(of_executor)[0] == "bad"


SPAWNED = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/venv/torch/multiprocessing/spawn.py", line 87, in _wrap
    fn(i, *args)
    ~~^^^^^^^^^^
  File "/home/me/train.py", line 12, in main
    load(shard)
  File "/home/me/data.py", line 7, in load
    raise my.errors.Damaged(shard)
my.errors.Damaged: shard 7
  of 12
"""


def test_what_mp_spawn_raises_again_is_the_error_of_its_process() -> None:
    report = describe_error(Exception(SPAWNED))
    assert report.reason == "Damaged in process 1: shard 7 of 12"
    calls = [(frame.file, frame.line, frame.function, frame.code) for frame in report.trace.frames]
    assert calls[0] == ("/home/me/data.py", 7, "load", "raise my.errors.Damaged(shard)")
    assert [call[2] for call in calls] == ["load", "main", "_wrap"]


def test_a_chain_names_the_first_cause_and_its_place() -> None:
    assert (
        report_of(lambda: chained(3)).reason == "RuntimeError: sample 3 is damaged (from KeyError: 'image')"
    )
    assert functions(report_of(lambda: chained(3)))[:2] == ["missing_key", "chained"]
    handled = report_of(lambda: while_handling(3))
    assert handled.reason.endswith("(while handling KeyError: 'image')")
    assert functions(handled)[:2] == ["bad", "while_handling"], "of the exception that was raised last"

    def without() -> None:
        try:
            missing_key(1)
        except KeyError:
            raise ValueError("no such sample") from None

    assert report_of(without).reason == "ValueError: no such sample"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="ExceptionGroup is of Python 3.11")
def test_of_a_group_the_first_exception_is_told() -> None:
    def raise_group() -> None:
        errors = []
        for index in range(2):
            try:
                bad(index)
            except ValueError as error:
                error.add_note("in epoch 3")  # type: ignore[attr-defined]
                errors.append(error)
        raise ExceptionGroup("unhandled errors in a TaskGroup", errors)  # type: ignore[name-defined]  # noqa: F821

    report = report_of(raise_group)
    assert report.reason == (
        "ValueError (the first of 2 in an ExceptionGroup): cannot identify image file 'shard-7/0.jpg' "
        "in epoch 3"
    )
    assert functions(report)[:2] == ["bad", "raise_group"]


def test_a_syntax_error_is_at_the_line_that_is_wrong() -> None:
    report = report_of(lambda: compile("x = 1\ny = = 2\n", "/home/me/model.py", "exec"))
    assert report.reason == "SyntaxError: invalid syntax"
    assert report.trace.frames[0][:3] == ("/home/me/model.py", 2, "<module>")


def test_a_syntax_error_whose_text_cannot_be_made_is_told_by_its_class() -> None:
    class Broken(SyntaxError):
        def __str__(self) -> str:
            raise ZeroDivisionError

    error = Broken("invalid", ("/home/me/model.py", 2, 1, "y = = 2"))
    assert describe_error(error).reason.startswith("Broken")


def test_a_message_is_bounded_and_keeps_both_ends() -> None:
    report = describe_error(ValueError("a" * 3_000 + "b" * 300_000 + "\n" + "line\n" * 200 + "set X=1"))
    assert len(report.reason) == errors.HEAD_CHARACTERS
    assert len(report.message) <= errors.MAX_LINES + 1
    assert all(len(line) <= errors.LINE_CHARACTERS for line in report.message)
    assert report.message[0].startswith("ValueError: aaa") and report.message[-1] == "set X=1"


def test_an_exception_that_cannot_be_read_is_named() -> None:
    class Strange(Exception):
        __notes__ = 3

        def __str__(self) -> str:
            raise RuntimeError

    assert describe_error(Strange()).reason == "Strange"
    assert describe_error(KeyboardInterrupt()).reason == "KeyboardInterrupt"
    loop = ValueError("a")
    loop.__cause__ = loop
    assert describe_error(loop).reason == "ValueError: a"


@pytest.mark.parametrize(
    "text",
    ["", "Traceback", "Traceback (most recent call last):", 'Traceback (most recent call last):\n  File "x'],
)
def test_text_that_is_no_traceback_is_a_message(text: str) -> None:
    assert parse_traceback(text) == []
    words = " ".join(text.split())
    assert describe_error(ValueError(text)).reason == (f"ValueError: {words}" if words else "ValueError")
