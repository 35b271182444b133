"""Averages over all samples of the group, not over its ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, overload

import torch

from ddptop.runtime.group.collectives import _all_objects

if TYPE_CHECKING:
    from ddptop.runtime.group.handle import Group

Number: TypeAlias = "float | torch.Tensor"


@overload
def mean(group: Group, metrics: Mapping[str, Number], *, weight: float = 1) -> dict[str, float]: ...
@overload
def mean(group: Group, metrics: Number, *, weight: float = 1) -> float: ...
def mean(
    group: Group, metrics: Mapping[str, Number] | Number, *, weight: float = 1
) -> dict[str, float] | float:
    """The mean over all ranks, each counting with its `weight`: sum(weight * value) / sum(weight).

    With the number of samples as the weight it is the mean over samples, also where ranks have different
    numbers of them. A rank that has seen none passes weight 0, and may leave metrics out.

    Args:
        group: the process group; all ranks call it.
        metrics: numbers or one-element tensors (a tensor on a GPU is waited for), by name or just one.
        weight: how many samples this rank's values are the mean of; at least 0.

    Returns:
        The same names with floats, equal on all ranks; NaN where all weights are 0.

    Raises:
        ValueError: for a negative weight.
    """
    if weight < 0:
        raise ValueError(f"weight must not be negative, but is {weight}")
    single = not isinstance(metrics, Mapping)
    named: Mapping[str, Number] = {"": metrics} if not isinstance(metrics, Mapping) else metrics
    own = {name: float(value) for name, value in named.items()} if weight else dict.fromkeys(named, 0.0)
    of_ranks = _all_objects(group, (own, float(weight)))
    names = dict.fromkeys(name for values, _ in of_ranks for name in values)
    means = {}
    for name in names:
        pairs = [(values[name], each) for values, each in of_ranks if name in values]
        total = math.fsum(each for _, each in pairs)
        means[name] = math.fsum(value * each for value, each in pairs) / total if total else math.nan
    return means[""] if single else means
