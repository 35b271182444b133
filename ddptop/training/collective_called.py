"""What a thread is in by its Python stack: a collective, a phase of the step, or a save of
`torch.distributed.checkpoint`."""

from __future__ import annotations

from typing import Any

from ddptop.protocol.messages import Activity, Phase

_COLLECTIVES = (
    ("all_reduce", Activity.ALL_REDUCE),
    ("barrier", Activity.BARRIER),
    ("broadcast", Activity.BROADCAST),
    ("all_gather", Activity.ALL_GATHER),
    ("reduce_scatter", Activity.REDUCE_SCATTER),
    ("all_to_all", Activity.ALL_TO_ALL),
    ("gather", Activity.GATHER),
    ("scatter", Activity.SCATTER),
    ("reduce", Activity.REDUCE),
    ("recv", Activity.RECV),
)
"""By what the name of a function of `torch.distributed` contains: the first that fits."""


def collective_in(frame: Any) -> Activity | None:
    """The outermost function of `torch.distributed` on a stack, as a collective; None: it is none."""
    name = ""
    while frame is not None:
        if frame.f_code.co_filename.endswith("distributed_c10d.py"):
            name = frame.f_code.co_name
        # The first frame outside: `name` is now the function that the script called.
        elif name:
            break
        frame = frame.f_back
    return next((activity for part, activity in _COLLECTIVES if part in name), None)


_PHASES = (
    ("torch/autograd/graph.py", "_engine_run_backward", Phase.BACKWARD),
    ("torch/nn/parallel/distributed.py", "forward", Phase.FORWARD),
    ("torch/utils/data/dataloader.py", "__next__", Phase.DATA),
    ("torch/optim/optimizer.py", "wrapper", Phase.OPTIMIZER),
)
"""The file and the function of torch that a thread is in during a phase."""


def phase_in(frame: Any) -> Phase:
    """The phase of the step that a stack is within; OTHER: it is in none."""
    while frame is not None:
        code = frame.f_code
        for file, function, phase in _PHASES:
            if code.co_name == function and code.co_filename.endswith(file):
                return phase
        frame = frame.f_back
    return Phase.OTHER
