"""Trouble on purpose, to try the dashboard on: a rank that is slow, or one that stands still.

ddptop-run --standalone --nproc-per-node 2 examples/trouble.py straggler
ddptop-run --standalone --nproc-per-node 2 examples/trouble.py straggler --where forward --ms 50
ddptop-run --standalone --nproc-per-node 2 --ddptop-stall 5 examples/trouble.py hang
ddptop                                       # in a second terminal

The hang ends by itself after --seconds, or by Ctrl-C.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ddptop


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["straggler", "hang", "none"])
    parser.add_argument("--rank", type=int, default=1, help="the rank that makes trouble")
    parser.add_argument("--where", choices=["data", "forward", "backward", "optimizer"], default="data")
    parser.add_argument("--ms", type=float, default=30, help="straggler: milliseconds lost in each step")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=90, help="hang: how long")
    options = parser.parse_args()

    with ddptop.setup(seed=0) as group:
        if group.rank == 0:
            print("To watch: start by ddptop-run, then type `ddptop` in a second terminal", flush=True)
        troubled = group.rank == options.rank % group.world_size

        def lose_time(where: str) -> None:
            if options.kind == "straggler" and troubled and where == options.where:
                time.sleep(options.ms / 1000)

        train(group, options.steps, lose_time, hang_at=options.steps // 2 if options.kind == "hang" else None)
        if group.rank == 0:
            print(f"{options.steps} steps done", flush=True)


class Slow(TensorDataset):
    ...


if __name__ == "__main__":
    main()
