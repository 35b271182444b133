"""Whose code a call is, and what the main thread is doing."""

from __future__ import annotations

import pytest

from ddptop.frames.calls import compiler_call, compiling, in_collective, place, user_call
from ddptop.frames.stall import Call
from ddptop.protocol.evidence import Stack, StackFrame
from ddptop.protocol.user_code import is_users

TORCH = "/opt/conda/lib/python3.12/site-packages/torch"


def stack(*files: str) -> tuple[Stack, ...]:
    return (Stack("MainThread", True, tuple(StackFrame(file, 1, "f", "") for file in files)),)


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/home/me/train.py", True),
        ("/home/me/lib/data.py", True),
        ("<stdin>", True),
        ("/srv/ddptop/experiments/train.py", True),
        ("/home/me/src/ddptop/training/demo.py", True),
        ("/home/me/src/ddptop/training/bucket_timing.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/venv/lib64/python3.10/site-packages/datasets/load.py", False),
        ("/home/me/pytorch/torch/nn/parallel/distributed.py", False),
        ("/tmp/torchinductor_me/ab/cab.py", False),
        ("<frozen importlib._bootstrap>", False),
    ],
)
def test_whose_file_it_is(file, users) -> None:
    assert is_users(file) == users


def test_the_innermost_call_of_the_user_on_the_main_thread() -> None:
    other = Stack("loader", False, (StackFrame("/home/me/other.py", 1, "other", ""),))
    own = StackFrame("/home/me/data.py", 7, "read", "x")
    main = Stack("MainThread", True, (StackFrame("/usr/lib/python3.11/ssl.py", 1, "read", ""), own))
    assert user_call((other, main)) == Call("/home/me/data.py", 7, "read", "x")
    assert user_call((other,)) is None
    assert place(Call("C:\\me\\data.py", 0, "read", "")) == "data.py read"


def test_waiting_in_a_collective_is_not_a_hook_of_the_users_inside_backward() -> None:
    backward = f"{TORCH}/autograd/graph.py"
    assert in_collective(stack(backward, "/home/me/train.py"))
    assert in_collective(stack("/usr/lib/python3.11/x.py", f"{TORCH}/distributed/c10d_logger.py", "/me/t.py"))
    assert not in_collective(stack("/home/me/hook.py", backward, "/home/me/train.py"))
    assert not in_collective(())


def test_compiling_is_told_from_running_what_was_compiled() -> None:
    assert compiling(
        stack("/usr/lib/python3.11/subprocess.py", f"{TORCH}/_inductor/compile_fx.py", "/me/t.py")
    )
    assert compiling(stack(f"{TORCH}/_dynamo/symbolic_convert.py", f"{TORCH}/_dynamo/convert_frame.py"))
    assert not compiling(
        stack("/tmp/torchinductor_me/x.py", f"{TORCH}/_dynamo/eval_frame.py", "/me/train.py")
    )
    assert not compiling(stack("/me/train.py", f"{TORCH}/_dynamo/convert_frame.py"))
    assert compiling(stack("/v/site-packages/triton/compiler/compiler.py", "/me/train.py"))
    called = StackFrame(f"{TORCH}/_dynamo/output_graph.py", 9, "_call_user_compiler", "")
    backend, loop = (
        StackFrame("/me/train.py", line, name, "") for line, name in ((10, "backend"), (18, "go"))
    )
    own = (Stack("MainThread", True, (backend, called, loop)),)
    assert compiling(own), "a backend of the user's own"
    call = compiler_call(own)
    assert call is not None and (call.line, call.function) == (18, "go")
    assert compiler_call((Stack("MainThread", True, (backend, loop)),)) is None
