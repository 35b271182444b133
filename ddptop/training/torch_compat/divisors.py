"""By what a script has divided its loss: read from the autograd graph, of which nothing is changed.

Only a Python number is read: torch saves it in the node of the division as a CPU tensor without hooks. What a
script's own `saved_tensors_hooks` packed is left alone, since unpacking runs code of theirs. Torch before 2.7
does not show whether there is a hook: there nothing is read.

This folder was checked on torch 2.6, 2.13 and 2.15; this module on 2.13 and 2.14, where it reads.
"""

from __future__ import annotations

from ctypes import c_double, c_float, c_int64
from typing import Any

import torch

DEPTH = 3
"""Divisions in a row: Accelerate divides by its own number of micro-steps, 1 where a trainer has divided."""

_READERS: dict[Any, Any] = {
    torch.float64: c_double.from_address,
    torch.int64: c_int64.from_address,
    torch.float32: c_float.from_address,
}

READS = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
"""Whether this torch shows if a saved tensor has a hook of the script; without, nothing is read."""


def divisors_of(loss: Any) -> tuple[int, ...]:
    """Whole numbers by which a scalar was divided last: by the last operation, by the last two, ...

    Multiplying by 1/n is dividing by n. 2 us of CPU time for one division (measured).
    """
    whole_divisors: list[int] = []
    if not READS:
        return ()
    node, divisor = loss.grad_fn, 1.0
    for _ in range(DEPTH):
        kind = None if node is None else node.name()
        if kind not in ("DivBackward0", "MulBackward0"):
            break
        number = _saved_number(node)
        if not number:
            break
        divisor = divisor * number if kind == "DivBackward0" else divisor / number
        whole = round(divisor)
        # 1/n is rounded: n comes back with an error.
        if whole > 1 and abs(divisor - whole) <= 1e-6 * whole:
            whole_divisors.append(whole)
        node = node.next_functions[0][0]
    return tuple(whole_divisors)


def _saved_number(node: Any) -> float | None:
    """The second operand of a node, if it is a number; None: it is none, or cannot be read without a hook."""
    try:
        saved = node._raw_saved_other
        if saved.unpack_hook is not None:
            return None
        value = saved.data
        reader = _READERS.get(value.dtype)
        if reader is None or not value.is_cpu or value.numel() != 1 or not (address := value.data_ptr()):
            return None
        number = float(reader(address).value)
    except (AttributeError, RuntimeError):  # the graph is freed, or torch has other names
        return None
    return number if abs(number) < float("inf") else None
