"""Names of parameters with and without the wrappers that a model may be in.

DDP and DataParallel put `module.` into every name below them, torch.compile `_orig_mod.`; wherever a wrapper
stands, also deep inside a model. Where the model is at hand, its wrappers are known by their type and nothing
is guessed: a real submodule called `module` keeps its name, and so does `submodule.x`. Only for a file
whose model is unknown are the names themselves compared, component by component.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

T = TypeVar("T")

WRAPPERS = ("module", "_orig_mod")
"""The components that wrappers add."""

MAX_REMOVED = 6
"""Wrapper-like components of one name that are tried in all combinations."""


def unwrapped(model: torch.nn.Module, state: Mapping[str, T]) -> dict[str, T]:
    """The state of `model` under the names that it would have without any wrapper."""
    paths = wrapper_paths(model)
    return {without(name, paths): value for name, value in state.items()}


def without(name: str, paths: Collection[str]) -> str:
    """`name` less the last component of each of `paths` that it goes through."""
    parts = name.split(".")
    kept = [part for i, part in enumerate(parts) if ".".join(parts[: i + 1]) not in paths]
    return ".".join(kept)


def wrapper_paths(model: torch.nn.Module) -> set[str]:
    """Where the wrapped modules stand: {"module"} for a DDP model, {"backbone.module"} for one inside."""
    paths = set()
    for path, module in model.named_modules():
        inner = "module" if isinstance(module, (DistributedDataParallel, DataParallel)) else None
        if _is_compiled(module):
            inner = "_orig_mod"
        if inner is not None:
            paths.add(f"{path}.{inner}" if path else inner)
    return paths


def fitted(model: torch.nn.Module, state: Mapping[str, T]) -> dict[str, T]:
    """`state`, of whatever wrappers, under the names of `model` in its own.

    A name that fits nothing is kept as it is, for `load_state_dict` to complain of in its own words.
    """
    paths = wrapper_paths(model)
    own = {without(name, paths): name for name in model.state_dict()}
    found = match(list(state), own)
    return {own.get(found[name], found[name]): value for name, value in state.items()}


def match(names: Collection[str], wanted: Collection[str]) -> dict[str, str]:
    """Each of `names` to the one of `wanted` (names without wrappers) that it means, or to itself.

    First the same wrappers before all names are tried, from none up, and the one that fits most is taken:
    so `module.weight` and `module.module.weight` of a wrapped model keep apart. What is left is compared name
    by name, with as few components taken out as can be, and only where no two names come to mean the same.
    """
    best: dict[str, str] = {}
    for length in itertools.count():
        leading = [name.split(".")[:length] for name in names]
        if any(len(parts) < length or set(parts) - set(WRAPPERS) for parts in leading):
            break
        cut = {name: ".".join(name.split(".")[length:]) for name in names}
        fits = {name: short for name, short in cut.items() if short in wanted}
        if len(fits) > len(best) and len(set(fits.values())) == len(fits):
            best = fits
        if not names or len(best) == len(names):
            break
    taken = set(best.values())
    for name in names:
        if name not in best:
            meant = next((short for short in _shorter(name) if short in wanted), name)
            if meant not in taken:
                best[name] = meant
                taken.add(meant)
    return {name: best.get(name, name) for name in names}


def _shorter(name: str) -> Iterator[str]:
    """`name` with fewer and fewer of its wrapper-like components, as many as possible kept first."""
    parts = name.split(".")
    places = [i for i, part in enumerate(parts[:-1]) if part in WRAPPERS][:MAX_REMOVED]
    for count in range(len(places) + 1):
        for removed in itertools.combinations(places, count):
            yield ".".join(part for i, part in enumerate(parts) if i not in removed)


def _is_compiled(module: Any) -> bool:
    frame = sys.modules.get("torch._dynamo.eval_frame")  # importing it takes a second
    return frame is not None and isinstance(module, frame.OptimizedModule)
