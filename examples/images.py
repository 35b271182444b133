"""Image classification with a small convolutional network and SyncBatchNorm.

ddptop-run --standalone --nproc-per-node 2 examples/images.py
ddptop-run --standalone --nproc-per-node 2 examples/images.py --cifar10 cifar-10-batches-py
ddptop                                       # in a second terminal

Without --cifar10 the pictures are made on the spot.
"""

import argparse
from pathlib import Path

import cifar10
import torch
from torch import nn

import ddptop


def block(channels_in: int, channels_out: int) -> nn.Sequential:
    """Half the width and height."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def accuracy(group: ddptop.Group, model: nn.Module, loader: ddptop.Loader) -> float:
    """Over all pictures of all ranks, each counted once."""
    right = seen = 0
    model.eval()
    with ddptop.phase("evaluate"), torch.no_grad():
        for (pictures, labels), count in loader.counted():
            guess = model(pictures.to(group.device)).argmax(1).cpu()
            right += int((guess == labels)[:count].sum())
            seen += count
    model.train()
    return group.mean(right / max(1, seen), weight=seen)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=3000, help="pictures to make")
    parser.add_argument("--cifar10", type=Path, help="the unpacked folder cifar-10-batches-py")
    options = parser.parse_args()

    with ddptop.setup(seed=0) as group:
        if group.rank == 0:
            print("To watch: type `ddptop` in a second terminal", flush=True)

        if options.cifar10:
            train_set = cifar10.read(options.cifar10, train=True)
            test_set = cifar10.read(options.cifar10, train=False)
        else:
            train_set = cifar10.make(options.samples, seed=1)
            test_set = cifar10.make(options.samples // 5, seed=2)
        training = group.loader(train_set, batch_size=64)
        testing = group.loader(test_set, batch_size=64, shuffle=False)

        net = nn.Sequential(
            block(3, 16), block(16, 32), block(32, 64), nn.Flatten(), nn.Linear(64 * 4 * 4, cifar10.CLASSES)
        )
        # Means and variances over the batches of all ranks together. torch has this on GPUs only: on the
        # CPU `wrap` says so in a warning, and each rank goes by its own batch.
        model = group.wrap(net, sync_batchnorm=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

        for epoch in range(options.epochs):
            for pictures, labels in training.epoch(epoch):
                output = model(pictures.to(group.device))
                loss = nn.functional.cross_entropy(output, labels.to(group.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                ddptop.log(loss=loss)
            share = accuracy(group, model, testing)
            if group.rank == 0:
                print(f"epoch {epoch}: accuracy {share:.1%}", flush=True)


if __name__ == "__main__":
    main()
