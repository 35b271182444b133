"""A whole training: data, model, evaluation over all ranks, predictions gathered, checkpoints, resume.

ddptop-run --standalone --nproc-per-node 2 examples/workflow.py
ddptop                                       # in a second terminal

It runs under torchrun and srun too (see slurm.sbatch), and by plain `python` as a group of one.
Ended early, or started again with more --epochs, it goes on where its last checkpoint was written.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ddptop

CLASSES = 3


def make_data(file: Path) -> None:
    """Points in the plane, in three spirals, one for each class."""
    generator = torch.Generator().manual_seed(1)
    label = torch.arange(6001) % CLASSES
    radius = torch.rand(len(label), generator=generator)
    angle = 4 * radius + label * 2 * torch.pi / CLASSES + 0.2 * torch.randn(len(label), generator=generator)
    points = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
    torch.save({"points": points, "label": label}, file)


def evaluate(group: ddptop.Group, model: nn.Module, loader: ddptop.Loader) -> tuple[dict[str, float], list]:
    """Loss and accuracy over all samples of all ranks, each counted once; and this rank's predictions."""
    loss, right, seen = 0.0, 0, 0
    predictions = []
    model.eval()
    with ddptop.phase("evaluate"), torch.no_grad():
        for (points, label), count in loader.counted():  # the last samples may be duplicates
            output = model(points.to(group.device))[:count].cpu()
            loss += float(nn.functional.cross_entropy(output, label[:count], reduction="sum"))
            right += int((output.argmax(1) == label[:count]).sum())
            seen += count
            predictions.append(output.argmax(1))
    model.train()
    sums = {"loss": loss / max(1, seen), "accuracy": right / max(1, seen), "samples": float(seen)}
    means = group.mean(sums, weight=seen)
    return means, predictions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=Path("workflow-example"), help="data and checkpoints")
    options = parser.parse_args()

    with ddptop.setup(seed=0) as group:
        if group.rank == 0:
            print("To watch: type `ddptop` in a second terminal", flush=True)

        data = options.folder / "data.pt"
        with group.first():  # rank 0 makes or downloads it, the others wait and find it there
            if not data.exists():
                options.folder.mkdir(parents=True, exist_ok=True)
                make_data(data)
        stored = torch.load(data)
        points, label = stored["points"], stored["label"]
        training = group.loader(TensorDataset(points[1001:], label[1001:]), batch_size=32)
        held_out = group.loader(TensorDataset(points[:1001], label[:1001]), batch_size=32, shuffle=False)

        net = nn.Sequential(
            nn.Linear(2, 128),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, CLASSES),
        )
        model = group.wrap(net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

        start = group.resume(options.folder, model, optimizer)  # a fresh start where there is none
        step = start.step
        if group.rank == 0:
            print(f"from epoch {start.epoch}, step {step}", flush=True)
        for epoch in range(start.epoch, options.epochs):
            for batch, target in training.epoch(epoch):
                loss = nn.functional.cross_entropy(model(batch.to(group.device)), target.to(group.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                ddptop.log(loss=loss)
            means, _ = evaluate(group, model, held_out)
            group.save(options.folder, model, optimizer, epoch=epoch + 1, step=step)
            if group.rank == 0:
                print(f"epoch {epoch}: loss {means['loss']:.4f} accuracy {means['accuracy']:.1%}", flush=True)

        # One tensor of predictions from each rank; of different lengths, so as lists, and to rank 0 only.
        _, predictions = evaluate(group, model, held_out)
        of_ranks = group.gather_list([torch.cat(predictions)], dst=0)
        if of_ranks is not None:
            together = torch.cat([tensor for tensors in of_ranks for tensor in tensors])
            counts = torch.bincount(together, minlength=CLASSES).tolist()
            print(f"{len(together)} samples evaluated, predicted classes {counts}", flush=True)


if __name__ == "__main__":
    main()
