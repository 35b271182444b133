"""How long training waits for torch.compile is known, and nothing is imported to know it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from ddptop.protocol.messages import Phase
from ddptop.training import compile_watch
from ddptop.training.compile_watch import Compilation, CompileWatch
from ddptop.training.guard import Guard
from ddptop.training.recorder import Recorder

MS = 1_000_000


class Compiling:
    """A watch on a clock of the test's own, and what it has told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 5
        monkeypatch.setattr(compile_watch, "now", lambda: self.now_ms * MS)
        self.recorder = Recorder()
        self.told: list[Compilation] = []
        self.watch = CompileWatch(self.recorder, threading.get_ident(), self.told.append)

    def compile(self, ms: int = 30, times: int = 0) -> None:
        self.watch.begins()
        self.now_ms += ms
        self.watch.ends("forward (model.py:3)", times)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Compiling:
    return Compiling(monkeypatch)


def on_another_thread(compiling: Compiling) -> None:
    thread = threading.Thread(target=compiling.compile)
    thread.start()
    thread.join()


def test_a_compilation_is_told_with_its_phase(compiling: Compiling) -> None:
    recorder = compiling.recorder
    compiling.compile(times=2)
    recorder.forward_begins(True)
    compiling.compile()
    recorder.forward_ends()
    recorder.backward_begins(None)
    on_another_thread(compiling)  # the autograd engine's
    assert compiling.told == [
        Compilation(30 * MS, Phase.OTHER, "forward (model.py:3)", 2),
        Compilation(30 * MS, Phase.FORWARD, "forward (model.py:3)", 0),
        Compilation(30 * MS, Phase.BACKWARD, "forward (model.py:3)", 0),
    ]


def test_none_of_another_thread_and_none_that_takes_no_time_is_told(compiling: Compiling) -> None:
    on_another_thread(compiling)
    compiling.compile(0)
    compiling.watch.ends("", 0)
    assert compiling.told == []


def test_an_error_of_ours_does_not_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling = Compiling(monkeypatch)
    monkeypatch.setattr(compile_watch, "guard", fresh_guard := Guard())
    compiling.watch = CompileWatch(compiling.recorder, threading.get_ident(), lambda _: 1 / 0)
    compiling.compile()
    assert fresh_guard.count == 1
    monkeypatch.setattr(compile_watch, "get_ident", lambda: 1 / 0)
    compiling.compile()
    assert fresh_guard.count == 2


COMPILES = """
    import sys
    from ddptop.training.torch_compat import dynamo

    told, begun = [], []
    dynamo.watch_compilations(lambda: begun.append(1), lambda *what: told.append(what))
    assert "torch._dynamo" not in sys.modules, "it takes a second"

    import torch

    def double(x):
        return x * 2

    compiled = torch.compile(double, backend="eager", dynamic=False)
    for n in (2, 2, 3, 3):
        compiled(torch.ones(n))
    says_which = hasattr(sys.modules["torch._dynamo.callback"], "CallbackArgs")
    print(len(begun), told, says_which)
"""


def test_dynamo_says_what_it_compiles_and_how_often() -> None:
    """Without the second pass of the same shape, which is compiled already. An older torch does not say how
    often."""
    code = textwrap.dedent(COMPILES)
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    twice = "2 [('double (<string>:11)', 0), ('double (<string>:11)', {})] {}\n"
    assert told.stdout in (twice.format(1, True), twice.format(0, False)), told.stderr
