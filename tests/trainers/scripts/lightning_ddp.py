"""Lightning with `strategy="ddp"`, as its manual has it; knows nothing of ddptop: lightning_ddp.py FOLDER

Started by plain Python it starts rank 1 itself; under torchrun it takes the ranks that it finds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 20


class Regression(lightning.LightningModule):
    """A small network that logs its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        print(f"rank {self.global_rank} step {index} loss {loss.item()!r}\n", end="", flush=True)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    lightning.seed_everything(7)
    x = torch.randn(2 * 8 * STEPS, 16)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=folder,
    )
    model = Regression()
    trainer.fit(model, DataLoader(data, 8, shuffle=True), DataLoader(data, 64))
    if trainer.is_global_zero:
        print({name: value.item() for name, value in trainer.callback_metrics.items()})
    torch.save(model.state_dict(), folder / f"weights-{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()
