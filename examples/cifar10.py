"""Pictures for images.py: the real CIFAR-10 from its folder, or made on the spot."""

import pickle
from pathlib import Path

import numpy
import torch
from torch.utils.data import TensorDataset

CLASSES = 10
NEEDED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
"""All that an array in a pickle asks for."""


class ArraysOnly(pickle.Unpickler):
    """Reads arrays and plain values. Any other pickle could run whatever its maker wrote into it."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in NEEDED:
            raise pickle.UnpicklingError(f"a CIFAR-10 file does not need {module}.{name}: not loaded")
        return super().find_class(module, name)


def read(folder: Path, *, train: bool) -> TensorDataset:
    """The python version of CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html), unpacked."""
    names = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
    parts = [_read_batch(folder / name) for name in names]
    pixels = torch.cat([part[0] for part in parts])
    labels = torch.cat([part[1] for part in parts])
    return TensorDataset(pixels.float() / 127.5 - 1, labels)


def make(samples: int, *, seed: int) -> TensorDataset:
    """Noisy pictures, 3 x 32 x 32: each class has stripes of its own direction, width and colour."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % CLASSES
    across = torch.linspace(-1, 1, 32)
    pixels = torch.empty(samples, 3, 32, 32)
    for i, label in enumerate(labels.tolist()):
        angle = torch.tensor(label * torch.pi / CLASSES)
        along = across[:, None] * torch.cos(angle) + across[None, :] * torch.sin(angle)
        shift = 6 * torch.rand((), generator=generator)
        stripes = torch.sin((4 + label % 4) * along + shift)
        colour = torch.tensor([label % 2, label % 3 / 2, label % 5 / 4]) - 0.5
        pixels[i] = 0.4 * stripes + colour[:, None, None]
    return TensorDataset(pixels + 2 * torch.randn(pixels.shape, generator=generator), labels)


def _read_batch(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    with file.open("rb") as opened:
        batch = ArraysOnly(opened, encoding="bytes").load()  # the files are written by Python 2
    data, labels = numpy.asarray(batch[b"data"]), batch[b"labels"]
    if data.dtype != numpy.uint8 or data.shape != (len(labels), 3 * 32 * 32):
        raise ValueError(f"{file} is no batch of CIFAR-10: data of {data.dtype} {data.shape}")
    return torch.from_numpy(data.copy()).view(-1, 3, 32, 32), torch.tensor(labels)
