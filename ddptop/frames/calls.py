"""What evidence shows: the user's own call, the collective that a rank waits in, whether it compiles."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from ddptop.frames.stall import Call, Trace
from ddptop.protocol.user_code import is_users

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddptop.protocol.evidence import Evidence, Operation, Stack, StackFrame

_COLLECTIVE = re.compile(r"[/\\]torch[/\\](distributed|autograd|nn[/\\]parallel)[/\\]")
"""Files in which a main thread waits for other ranks: torch.distributed; DDP in forward and backward."""

_COMPILE = re.compile(
    r"[/\\]torch[/\\](_dynamo[/\\](convert_frame|symbolic_convert|output_graph)"
    r"|_inductor[/\\](compile_fx|async_compile|scheduler|graph|codecache|runtime[/\\]triton_heuristics))\.py$"
    r"|[/\\]triton[/\\](compiler|backends)[/\\]"
)
"""Files of torch and triton that compile, except those that run compiled code."""

_BACKEND_CALLED = frozenset({"call_user_compiler", "_call_user_compiler"})
"""Functions of torch._dynamo that call the backend, which may be the user's own."""

_RUNS = frozenset({"__call__", "run"})
"""Functions in those files that run compiled code."""

MAX_THREADS, MAX_CALLS, MAX_CHARACTERS = 8, 40, 160
"""Limits of a rank's stacks in a frame, which must stay small; the recording has the complete stacks."""


def main_stack(stacks: Iterable[Stack]) -> Stack | None:
    """The stack of the main thread, or of the exception that ended it; None: not reported."""
    return next((stack for stack in stacks if stack.main), None)


def user_call(stacks: Iterable[Stack]) -> Call | None:
    """The innermost call of the main thread in the user's own code."""
    stack = main_stack(stacks)
    frames = stack.frames if stack is not None else ()
    return next((_call_of(frame) for frame in frames if is_users(frame.file)), None)


def function_entered(stacks: Iterable[Stack], others: Iterable[Stack]) -> str:
    """The function that a rank has called where another one waits: `save_checkpoint`, called by the user's
    function that also calls the others' collective. Empty: not known, or it waits in a collective too."""
    kept = tuple(stacks)
    stack, waits = main_stack(kept), user_call(others)
    if stack is None or waits is None or in_collective(kept):
        return ""
    names = [(frame.file[-MAX_CHARACTERS:], frame.function[:MAX_CHARACTERS]) for frame in stack.frames]
    place_of_wait = names.index((waits.file, waits.function)) if (waits.file, waits.function) in names else 0
    return names[place_of_wait - 1][1] if place_of_wait else ""


def in_collective(stacks: Iterable[Stack]) -> bool:
    """Whether the main thread waits in torch.distributed or in DDP, and not in a hook of the user."""
    stack = main_stack(stacks)
    for frame in stack.frames if stack is not None else ():
        if is_users(frame.file):
            return False
        if _waits_there(frame.file):
            return True
    return False


@lru_cache(maxsize=4096)
def _waits_there(file: str) -> bool:
    return _COLLECTIVE.search(file) is not None


def collective_called(stacks: Iterable[Stack]) -> str:
    """The collective of torch.distributed that the main thread has called: `all_reduce`; empty: none seen."""
    stack = main_stack(stacks)
    name = ""
    for frame in stack.frames if stack is not None else ():
        if is_users(frame.file):
            break
        if frame.file.endswith("distributed_c10d.py"):
            name = frame.function
    return name


def importing(stacks: Iterable[Stack]) -> str:
    """`the import of transformers (train.py:3)`, where the main thread imports a module; else empty."""
    stack = main_stack(stacks)
    frames = stack.frames if stack is not None else ()
    imports = [index for index, frame in enumerate(frames) if frame.file.startswith("<frozen importlib")]
    if not imports:
        return ""
    # The outermost import: what the script itself imports.
    outer = imports[-1]
    inner = outer
    while inner >= 0 and frames[inner].file.startswith("<frozen importlib"):
        inner -= 1
    importer = next((_call_of(frame) for frame in frames[outer + 1 :] if is_users(frame.file)), None)
    if inner < 0 or importer is None:
        return ""
    parts = re.split(r"[/\\]", frames[inner].file)
    name = parts[-2] if parts[-1] == "__init__.py" and len(parts) > 1 else parts[-1].removesuffix(".py")
    return f"the import of {name} ({place(importer).removesuffix(' <module>')})"


_CONSTRUCTING = {
    "_verify_param_shape_across_processes": "parameter check",
    "_sync_module_states": "broadcast of the model",
}
"""What DDP's constructor does with the other ranks, by the functions of torch that do it."""


def constructing(stacks: Iterable[Stack]) -> str:
    """`parameter check`: what the main thread waits for in DDP's constructor; empty: it is not there."""
    stack = main_stack(stacks)
    frames = stack.frames if stack is not None else ()
    return next((_CONSTRUCTING[frame.function] for frame in frames if frame.function in _CONSTRUCTING), "")


def pending_operation(answer: Evidence | None, group: str | None = None) -> Operation | None:
    """The earliest collective that was launched and has not completed; `group` None: in any group."""
    waiting = [
        op for op in (answer.operations if answer else ()) if not op.done and group in (None, op.group)
    ]
    return min(waiting, key=lambda op: op.sequence, default=None)


def compiling(stacks: Iterable[Stack]) -> bool:
    """Whether the main thread is in the compiler of torch._dynamo, inductor or triton, or in a backend of the
    user's that it has called; not in compiled code."""
    return _compiler_at(stacks) is not None


def compiler_call(stacks: Iterable[Stack]) -> Call | None:
    """The user's call that led to the compiler; None: it is not known, or nothing is compiled."""
    kept = tuple(stacks)
    compiler_index, stack = _compiler_at(kept), main_stack(kept)
    frames = () if compiler_index is None or stack is None else stack.frames[compiler_index:]
    return next((_call_of(frame) for frame in frames if is_users(frame.file)), None)


def _compiler_at(stacks: Iterable[Stack]) -> int | None:
    """Index of the innermost frame of the main thread that is in a compiler; None: none is."""
    stack = main_stack(stacks)
    in_users = False
    for index, frame in enumerate(stack.frames if stack is not None else ()):
        compiles = _COMPILE.search(frame.file) is not None and frame.function not in _RUNS
        if compiles and (not in_users or frame.function in _BACKEND_CALLED):
            return index
        in_users = in_users or is_users(frame.file)
    return None


def traces(stacks: Iterable[Stack], *, all_threads: bool = True) -> tuple[Trace, ...]:
    """Stacks for a frame, the main thread's first, each with its innermost calls."""
    ordered = sorted(stacks, key=lambda stack: not stack.main)
    kept = ordered[: MAX_THREADS if all_threads else 1]
    return tuple(
        Trace(stack.thread, stack.main, tuple(_call_of(frame) for frame in stack.frames[:MAX_CALLS]))
        for stack in kept
    )


def place(call: Call) -> str:
    """`train.py:88 tokenize`."""
    file = re.split(r"[/\\]", call.file)[-1]
    line = f":{call.line}" if call.line else ""
    return f"{file}{line} {call.function}".rstrip()


def _call_of(frame: StackFrame) -> Call:
    return Call(
        frame.file[-MAX_CHARACTERS:], frame.line, frame.function[:MAX_CHARACTERS], frame.code[:MAX_CHARACTERS]
    )
