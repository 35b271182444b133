"""Trains with a recorder that takes known times longer: shadow_burn.py PERIOD STEPS PAUSE_MS

Blocks are more frequent than in a real run (every PERIOD steps). Around block k the recorder burns
BURNS_US[k % 4] microseconds in each step, by the clock, beside what it takes itself. In each step the script
sleeps for PAUSE_MS: on a busy machine a process that uses more than its share of a core is stopped for
several times what it burns.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from ddptop.training import shadow
from ddptop.training.recorder import Recorder

BURNS_US = (0, 50, 200, 1000)


def burn(period: int) -> None:
    """Have the recorder of this process burn."""
    shadow.PERIOD = period
    begins = Recorder.backward_begins

    def backward_begins(self: Recorder, loss: object) -> None:
        end = time.perf_counter_ns() + 1000 * BURNS_US[(self.step + period // 2) // period % len(BURNS_US)]
        while time.perf_counter_ns() < end:
            pass
        begins(self, loss)

    Recorder.backward_begins = backward_begins  # type: ignore[method-assign]


def main() -> None:
    period, steps, pause_ms = (int(word) for word in sys.argv[1:])
    burn(period)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    data = TensorDataset(torch.randn(16 * 500, 256))
    done = 0
    while done < steps:
        for (x,) in DataLoader(data, batch_size=16):
            time.sleep(pause_ms / 1000)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            done += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
