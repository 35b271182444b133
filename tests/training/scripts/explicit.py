"""A script on ddptop's own runtime: trains until the file `enough` is there, then tells its steps.

explicit.py [CHECK_S]: seconds without an ack after which its ranks check whether the collector has exited.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import ddptop
from ddptop.training import join_run


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:]:
        join_run.CHECK_S = float(sys.argv[1])
    before = ours()
    with ddptop.setup() as group:
        model = group.wrap(nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        step = 0
        enough = torch.zeros(1)
        while not enough:
            optimizer.zero_grad()
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
            step += 1
            time.sleep(0.02)
            enough = group.gather(torch.tensor([float(Path("enough").exists())])).amax()
        if group.rank == 0:
            print(step, flush=True)
    assert ours() == before, "what setup has set, it takes away"


def ours() -> set[str]:
    return {name for name in os.environ if name.startswith("DDPTOP")}


if __name__ == "__main__":
    main()
