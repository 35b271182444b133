"""Checkpoints: written once and whole, read by any number of ranks on any device, in any wrapper.

DDP and DataParallel put `module.` into every name below them, torch.compile `_orig_mod.`, wherever a wrapper
is, also deep inside a model. Where the model is known, its wrappers are recognised by their type and nothing
is guessed: a real submodule called `module` keeps its name, and so does `submodule.x`. Only for a file
whose model is unknown are the names themselves compared, component by component.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ddptop.training.ddp.collectives import _all_objects, broadcast_object, first
from ddptop.training.ddp.group_info import GroupInfo
from ddptop.training.ddp.logging import phase
from ddptop.training.torch_compat.dynamo import ORIGINAL, is_compiled

T = TypeVar("T")

MODEL_KEYS = ("model", "state_dict", "model_state_dict")
"""Keys of the weights in our files, and in those of most others."""

_NAME = re.compile(r"checkpoint-(\d+)-(\d+)\.pt")


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds besides the weights; a fresh one is the start of training."""

    epoch: int = 0
    """Epochs finished, as given to `save`."""
    step: int = 0
    """Optimizer steps done, as given to `save`."""
    extra: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    """Where it was read; None for a fresh start."""


def save(
    group: GroupInfo,
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    epoch: int = 0,
    step: int = 0,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint once, from rank 0, while the other ranks wait; all ranks call it.

    The file appears complete or not at all: it is written under another name, synced, and renamed. Weights
    are stored under the names of the bare model, in whatever DDP or torch.compile wrapper it is.

    Args:
        group: the process group.
        path: the file; a folder (or a path without suffix, which becomes one) gets
            `checkpoint-EPOCH-STEP.pt`, for `latest` and `resume` to find.
        model: bare or wrapped.
        optimizer: a ZeroRedundancyOptimizer is consolidated first.
        epoch: epochs finished.
        step: optimizer steps done.
        extra: anything more, of tensors and plain Python types: a scheduler's `state_dict()`, for example.

    Returns:
        The file.

    Raises:
        OSError: on rank 0, where it could not be written; RuntimeError with its text on the others.
    """
    file_path = Path(path)
    if file_path.is_dir() or not file_path.suffix:
        file_path = file_path / f"checkpoint-{epoch:05d}-{step:09d}.pt"
    with phase("checkpoint"):
        # Before rank 0 writes: all ranks take part in it.
        if optimizer is not None and hasattr(optimizer, "consolidate_state_dict"):
            optimizer.consolidate_state_dict(to=0)
        with first(group):
            if group.rank == 0:
                state = {
                    "model": unwrapped_names(model, model.state_dict()),
                    "optimizer": None if optimizer is None else optimizer.state_dict(),
                    "epoch": epoch,
                    "step": step,
                    "extra": dict(extra or {}),
                }
                write_whole(file_path, lambda file: torch.save(state, file))
    return file_path


def load(
    group: GroupInfo,
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    strict: bool = True,
    weights_only: bool = True,
) -> Checkpoint:
    """Read a checkpoint on every rank, into models on any device and in any wrapper; all ranks call it.

    Files of others are read too: a bare `state_dict`, or one under `model`, `state_dict` or
    `model_state_dict`, with or without `module.` in its names.

    Args:
        group: the process group; it need not have the size of the one that saved.
        path: the file, or a folder whose latest checkpoint is meant.
        model: bare or wrapped; its weights are replaced.
        optimizer: gets its state where the file has one.
        strict: as in `load_state_dict`.
        weights_only: as in `torch.load`; False runs code that the file contains, so only for your own files.

    Raises:
        FileNotFoundError: where there is no such checkpoint.
        RuntimeError: where the file does not fit the model, with torch's message; on all ranks, if on any.
    """
    checkpoint = latest(path) if Path(path).is_dir() else Path(path)
    failure: Exception | None = None
    result = Checkpoint()
    try:
        if checkpoint is None:
            raise FileNotFoundError(f"no checkpoint-*.pt in {path}")
        result = _load_file(checkpoint, model, optimizer, strict, weights_only)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, pickle.UnpicklingError) as error:
        failure = error
    # All ranks learn of a failure: one that went on alone would hang in its next collective.
    errors = _all_objects(group, None if failure is None else f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for rank, text in enumerate(errors):
        if text is not None:  # this rank could go on, but not without the others
            raise RuntimeError(f"rank {rank} could not load {checkpoint}: {text}")
    return result


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint of the highest epoch, then step, that `save` wrote into a folder; None without any."""
    directory = Path(folder)
    if not directory.is_dir():
        return None
    checkpoints = [(match, file) for file in directory.iterdir() if (match := _NAME.fullmatch(file.name))]
    best = max(checkpoints, key=lambda pair: (int(pair[0][1]), int(pair[0][2])), default=None)
    return None if best is None else best[1]


def resume(
    group: GroupInfo,
    folder: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
) -> Checkpoint:
    """Load the latest checkpoint of a folder, or begin afresh where there is none; all ranks call it.

    Called at every start it makes a script go on after an elastic restart (`group.restarts` counts those).
    All ranks load the file that rank 0 finds.
    """
    newest = broadcast_object(group, latest(folder))
    return Checkpoint() if newest is None else load(group, newest, model, optimizer)


def _load_file(
    path: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    strict: bool,
    weights_only: bool,
) -> Checkpoint:
    try:
        # To the CPU first: load_state_dict copies to wherever the model is, and a GPU holds it once.
        stored = torch.load(path, map_location="cpu", weights_only=weights_only)
    except pickle.UnpicklingError as error:
        if not weights_only:
            raise
        raise RuntimeError(
            f"{path} is damaged, or holds more than tensors and plain types; if you trust it, "
            f"load it with weights_only=False ({error})"
        ) from error
    # A bare state_dict has tensors under its keys, and no mapping.
    weights = next((stored[key] for key in MODEL_KEYS if isinstance(stored.get(key), Mapping)), stored)
    model.load_state_dict(fitted_names(model, weights), strict=strict)
    if optimizer is not None and weights is not stored and stored.get("optimizer") is not None:
        optimizer.load_state_dict(stored["optimizer"])
    if weights is stored:
        return Checkpoint(path=path)
    return Checkpoint(
        epoch=int(stored.get("epoch", 0)),
        step=int(stored.get("step", 0)),
        extra=dict(stored.get("extra") or {}),
        path=path,
    )


def write_whole(path: Path, write: Callable[[Any], object]) -> None:
    """Have `write(file)` fill a file that appears at `path` complete, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.ddptop-part")  # one name: the file of a killed run is replaced
    beside.unlink(missing_ok=True)
    try:
        with beside.open("xb") as file:  # not through a symbolic link
            write(file)
            file.flush()
            os.fsync(file.fileno())
        # In the same folder, so in one step: a reader finds the old file or the new one.
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


WRAPPERS = ("module", ORIGINAL)
"""The components that wrappers add to names."""

MAX_REMOVED = 6
"""Wrapper-like components of one name that are tried in all combinations."""


def unwrapped_names(model: torch.nn.Module, state: Mapping[str, T]) -> dict[str, T]:
    """The state of `model` under the names that it would have without any wrapper."""
    paths = wrapper_paths(model)
    return {without_wrappers(name, paths): value for name, value in state.items()}


def without_wrappers(name: str, paths: Collection[str]) -> str:
    """`name` less the last component of each of `paths` that it goes through."""
    parts = name.split(".")
    kept = [part for i, part in enumerate(parts) if ".".join(parts[: i + 1]) not in paths]
    return ".".join(kept)


def wrapper_paths(model: torch.nn.Module) -> set[str]:
    """Paths of the wrapped modules: {"module"} for a DDP model, {"backbone.module"} for one inside."""
    paths = set()
    for path, module in model.named_modules():
        inner = "module" if isinstance(module, (DistributedDataParallel, DataParallel)) else None
        if is_compiled(module):
            inner = ORIGINAL
        if inner is not None:
            paths.add(f"{path}.{inner}" if path else inner)
    return paths


def fitted_names(model: torch.nn.Module, state: Mapping[str, T]) -> dict[str, T]:
    """`state`, of whatever wrappers, under the names of `model` in its own.

    A name that fits nothing is kept as it is, for `load_state_dict` to report.
    """
    paths = wrapper_paths(model)
    own_names = {without_wrappers(name, paths): name for name in model.state_dict()}
    matches = match_names(list(state), own_names)
    return {own_names.get(matches[name], matches[name]): value for name, value in state.items()}


def match_names(names: Collection[str], targets: Collection[str]) -> dict[str, str]:
    """Each of `names` to the one of `targets` (names without wrappers) that it means, or to itself.

    First the same wrappers before all names are tried, from none up, and the one that fits most is taken:
    so `module.weight` and `module.module.weight` of a wrapped model are not confused. The remaining names are
    compared one by one, with as few components removed as possible, and only where no two names become equal.
    """
    best: dict[str, str] = {}
    for length in itertools.count():
        leading = [name.split(".")[:length] for name in names]
        if any(len(parts) < length or set(parts) - set(WRAPPERS) for parts in leading):
            break
        cut = {name: ".".join(name.split(".")[length:]) for name in names}
        fits = {name: short for name, short in cut.items() if short in targets}
        if len(fits) > len(best) and len(set(fits.values())) == len(fits):
            best = fits
        if not names or len(best) == len(names):
            break
    taken = set(best.values())
    for name in names:
        if name not in best:
            meant = next((short for short in _shorter_names(name) if short in targets), name)
            if meant not in taken:
                best[name] = meant
                taken.add(meant)
    return {name: best.get(name, name) for name in names}


def _shorter_names(name: str) -> Iterator[str]:
    """`name` with fewer and fewer of its wrapper-like components, as many as possible kept first."""
    parts = name.split(".")
    wrappers = [i for i, part in enumerate(parts[:-1]) if part in WRAPPERS][:MAX_REMOVED]
    for count in range(len(wrappers) + 1):
        for removed in itertools.combinations(wrappers, count):
            yield ".".join(part for i, part in enumerate(parts) if i not in removed)
