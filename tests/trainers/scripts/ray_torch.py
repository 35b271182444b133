"""Ray Train's TorchTrainer, two workers on a Ray of its own; knows nothing of ddptop: ray_torch.py FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 20


def train(config: dict[str, str]) -> None:
    torch.manual_seed(7)
    torch.set_num_threads(1)
    x = torch.randn(2 * 8 * STEPS, 16)
    loader = prepare_data_loader(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8))
    model = prepare_model(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
    ray.train.report({"loss": loss.item()})
    rank = ray.train.get_context().get_world_rank()
    torch.save(model.module.state_dict(), Path(config["folder"]) / f"weights-{rank}.pt")


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(folder)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder / "ray")),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
