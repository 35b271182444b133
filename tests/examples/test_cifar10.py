"""The folder of CIFAR-10 is read as its makers describe it; a pickle that is something else is refused."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path
from types import ModuleType

import numpy
import pytest
import torch

from tests.examples.runs import EXAMPLES


@pytest.fixture(scope="module")
def cifar10() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cifar10_of_the_examples", EXAMPLES / "cifar10.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(file: Path, batch: object) -> None:
    """As Python 2 did: protocol 2."""
    file.write_bytes(pickle.dumps(batch, protocol=2))


def batch(samples: int) -> dict[bytes, object]:
    data = numpy.arange(samples * 3072, dtype=numpy.int64).reshape(samples, 3072) % 256
    return {b"data": data.astype(numpy.uint8), b"labels": [i % 10 for i in range(samples)], b"filenames": []}


def test_a_folder_in_the_form_of_the_real_one_is_read(cifar10: ModuleType, tmp_path: Path) -> None:
    for number in range(1, 6):
        write(tmp_path / f"data_batch_{number}", batch(number))
    write(tmp_path / "test_batch", batch(4))
    training, test = cifar10.read(tmp_path, train=True), cifar10.read(tmp_path, train=False)
    assert (len(training), len(test)) == (15, 4)
    picture, label = test[3]
    assert picture.shape == (3, 32, 32)
    assert label == 3
    # The third picture begins at 3 * 3072 = 0 (mod 256); rows of 32, colour after colour.
    assert picture[0, 1, 2] == pytest.approx(34 / 127.5 - 1)
    assert picture.min() == -1
    assert picture.max() == 1


def test_a_pickle_that_would_run_code_is_not_loaded(cifar10: ModuleType, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> object:
            return sys.exit, ("loaded",)

    write(tmp_path / "test_batch", Trap())
    with pytest.raises(pickle.UnpicklingError, match=r"does not need .*exit"):
        cifar10.read(tmp_path, train=False)


def test_what_is_no_batch_is_refused(cifar10: ModuleType, tmp_path: Path) -> None:
    write(tmp_path / "test_batch", batch(4) | {b"labels": [1, 2]})
    with pytest.raises(ValueError, match="is no batch of CIFAR-10"):
        cifar10.read(tmp_path, train=False)


def test_made_pictures_are_the_same_on_every_rank(cifar10: ModuleType) -> None:
    one, other = cifar10.make(20, seed=1), cifar10.make(20, seed=1)
    assert torch.equal(one.tensors[0], other.tensors[0])
    assert torch.equal(one.tensors[1].bincount(), torch.full((10,), 2))
    assert not torch.equal(one.tensors[0], cifar10.make(20, seed=2).tensors[0])
