"""Whether a model's weights are numbers, at the end of the training.

Of steps that are left out no loss is read. A run that ends a few steps after its loss became NaN would have
no word of it. The optimizer has put the NaN into the weights: these are read once, when the script destroys
its process groups or the process exits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOST_TENSORS, MOST_ELEMENTS = 8, 65_536
"""The smallest parameters are read, at most so many of at most so many elements: a NaN loss is in all weights
that are trained. Some 10 us each."""


def are_weights_bad(model: Any) -> bool:
    """Whether a weight of a model on a CPU is NaN or infinite. Those on a device are not read: to wait for it
    may take for ever when the training has failed."""
    if model is None:
        return False
    trained = [
        parameter.detach()
        for parameter in model.parameters()
        if parameter.requires_grad and parameter.is_floating_point() and parameter.device.type == "cpu"
    ]
    small = [weights for weights in trained if type(weights) is Tensor and weights.numel() <= MOST_ELEMENTS]
    small.sort(key=Tensor.numel)
    with torch.no_grad():
        return any(not bool(weights.isfinite().all()) for weights in small[:MOST_TENSORS])
