"""torch.compile: Dynamo compiles a training as without the wrappers, with the same graphs and graph breaks.

Dynamo meets a wrapper in two ways. Where it traces a caller and would inline the wrapper, it takes what the
function names as `_torchdynamo_inline` (torch's own mark for compiled functions) instead: the original, so
that it traces, or gives up, at torch's own line. Where Python runs the wrapper, its frame is one that Dynamo
skips, and the next frame, the original's, is compiled as ever. What the recorder itself calls in torch is
not compiled: it is between `pause` and `resume`.

Checked on torch 2.6, 2.13 and 2.15.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from ddptop.training.guard import guard
from ddptop.training.import_hook import when_imported

ORIGINAL = "_orig_mod"
"""Under this name torch.compile keeps the module that it compiles."""

try:  # without importing torch._dynamo; 25 ns for a pair of calls
    from torch._C._dynamo.eval_frame import set_eval_frame as _set_eval_frame
except ImportError:  # then a frame of torch's that the recorder calls may be compiled, too

    def _set_eval_frame(callback: Any) -> Any:
        return callback


def seen_through(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """`wrapper` with the name and documentation of `original`, which is what Dynamo traces in its place."""
    functools.update_wrapper(wrapper, original)
    wrapper._torchdynamo_inline = original  # type: ignore[attr-defined]
    return wrapper


def keep_dynamo_out() -> None:
    """Keep torch.compile from compiling the recorder's own frames.

    Importing torch._dynamo takes over a second: this waits until the script does it.
    """
    when_imported("torch._dynamo.trace_rules", lambda module: module.add("ddptop.training"))


def is_compiled(module: Any) -> bool:
    """Whether a module is what torch.compile returns: it puts `_orig_mod.` into the names of parameters."""
    frame = sys.modules.get("torch._dynamo.eval_frame")  # importing it takes a second
    return frame is not None and isinstance(module, frame.OptimizedModule)


def plain_module(module: Any) -> Any:
    """The module that torch.compile was given, or `module` itself."""
    return getattr(module, ORIGINAL, module) if is_compiled(module) else module


def has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"])


def watch_compilations(begins: Callable[[], None], ends: Callable[[str, int], None]) -> None:
    """Have functions called where torch.compile begins to compile a frame, or a backward that it had put off,
    and where it ends: with what it was (`forward (model.py:30)`, `backward`; empty: not known), and how often
    the same was compiled before (0: not known). Neither may raise. One within another is a part of it.

    `torch._dynamo.reset()` forgets them.
    """

    def end(given: Any = None) -> None:  # torch 2.6 gives nothing
        what, times = "", 0
        try:
            trigger = getattr(given, "callback_trigger", None)
            what = "backward" if getattr(trigger, "name", "") == "LAZY_BACKWARD" else _compiled_frame()
            number = re.search(r"/(\d+)", str(getattr(given, "compile_id", "")))
            times = int(number[1]) if number else 0
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        ends(what, times)

    def watch(module: Any) -> None:
        module.on_compile_start(lambda *_arguments: begins())
        module.on_compile_end(end)

    when_imported("torch._dynamo.callback", watch)


_COMPILES = frozenset({"compile_inner", "_compile"})
"""Functions of Dynamo whose `code` is what they compile."""


def _compiled_frame() -> str:
    """What is compiled, seen from a callback."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        code = frame.f_locals.get("code") if frame.f_code.co_name in _COMPILES else None
        if isinstance(code, CodeType):
            return f"{code.co_name} ({Path(code.co_filename).name}:{code.co_firstlineno})"
        frame = frame.f_back
    return ""


def compiles_backward() -> bool:
    """Whether backward, with all hooks in it, is compiled just now (compiled autograd)."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(getattr(module, "compiled_autograd_enabled", True))


def no_torch_function() -> Any:
    """A context in which no `__torch_function__` of a subclass or mode is called."""
    return torch._C.DisableTorchFunction()


pause = functools.partial(_set_eval_frame, None)
"""Compile no frame of this thread until `resume` is given what this returns. Both are C, as they run in each
step."""

resume = _set_eval_frame
"""Compile as before `pause`, whose result it is given."""
