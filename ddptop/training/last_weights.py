"""Whether a model's weights are NaN, at the end of the training.

Of steps that are left out no loss is read. A run that ends a few steps after its loss became NaN would have
no word of it. The optimizer has put the NaN into the weights: these are read once, when the script destroys
its process groups or the process exits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

MOST_TENSORS, MOST_ELEMENTS = 8, 65_536
"""The smallest parameters are read, at most so many of at most so many elements: a NaN loss is in all weights
that are trained. Some 10 us each."""

READABLE = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""`isnan` is not implemented for all others: float8, quantized."""


def are_weights_bad(model: Any) -> bool:
    """Whether most of the weights read of a model on a CPU are NaN. Those on a device are not read: to wait
    for it may take for ever when the training has failed.

    A healthy model may have a NaN in a parameter that is not used, such as an output layer of `torch.empty`.
    So one tensor alone says nothing, unless it has a gradient or is the only one. Infinities are no sign."""
    if model is None:
        return False
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if _is_readable(parameter) and parameter.requires_grad]
    with_gradient = [parameter for parameter in trained if parameter.grad is not None]
    # At the end, gradients may have been set to None: then it is not known which are trained.
    small = [weights for weights in with_gradient or trained if 0 < weights.numel() <= MOST_ELEMENTS]
    small = sorted(small, key=Tensor.numel)[:MOST_TENSORS]
    if len(small) == 1 and not with_gradient and len(parameters) > 1:
        return False
    with torch.no_grad():
        n_bad = sum(bool(weights.detach().isnan().any()) for weights in small)
    return 2 * n_bad > len(small)


def _is_readable(parameter: Any) -> bool:
    """Whether it is a plain dense tensor on a CPU. The type comes first: subclasses, such as DTensor and lazy
    parameters, answer to all else with code of their own."""
    return (
        type(parameter) in (Parameter, Tensor)
        and parameter.device.type == "cpu"
        and parameter.layout is torch.strided
        and parameter.dtype in READABLE
        # To read a freed storage, as sharding leaves it between steps, is a segmentation fault.
        and parameter.untyped_storage().nbytes() >= parameter.nbytes
    )
