"""Epoch and batch of the DataLoader that is trained on; what is evaluated in between does not count."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

from ddptop.training.loader_position import LoaderPosition, Position

BATCHES = 5


def loader(**options) -> DataLoader:
    return DataLoader(TensorDataset(torch.zeros(4 * BATCHES, 1)), 4, **options)


@pytest.fixture
def position() -> LoaderPosition:
    return LoaderPosition()


def fetch(position: LoaderPosition, iterator) -> None:
    position.note_batch(iterator)
    next(iterator)


def train(position: LoaderPosition, iterator, batches: int = 1) -> None:
    for _ in range(batches):
        fetch(position, iterator)
        position.note_forward()


def evaluate(position: LoaderPosition) -> None:
    iterator = iter(loader())
    for _ in range(3):
        fetch(position, iterator)


def test_epochs_and_batches_count_up(position: LoaderPosition) -> None:
    assert position.read() == Position(-1, -1, -1)
    training = loader()
    train(position, iter(training), BATCHES)
    iterator = iter(training)
    train(position, iterator, 2)
    assert position.read() == Position(1, 2, BATCHES)


def test_the_first_batch_of_each_pass_is_told(position: LoaderPosition) -> None:
    told = []
    for _ in range(2):
        iterator = iter(loader())
        for _ in range(3):
            fetch(position, iterator)
            told.append(position.note_forward())
        evaluate(position)
    assert told == [True, False, False] * 2


def test_a_loader_made_anew_each_epoch_counts_too(position: LoaderPosition) -> None:
    for _ in range(3):
        iterator = iter(loader())
        train(position, iterator, BATCHES)
    assert position.read() == Position(2, BATCHES, BATCHES)


def test_an_evaluation_between_two_batches_does_not_count(position: LoaderPosition) -> None:
    iterator = iter(loader())
    train(position, iterator, 2)
    evaluate(position)
    assert position.read() == Position(0, 2, BATCHES), "while it evaluates"
    train(position, iterator)
    assert position.read() == Position(0, 3, BATCHES)


def test_two_loaders_in_turn_do_not_begin_an_epoch_each_time(position: LoaderPosition) -> None:
    first, second = iter(loader()), iter(loader())
    for _ in range(3):
        train(position, first)
        train(position, second)
    assert position.read().epoch == 1, "two passes were begun"


def test_workers_that_are_kept_begin_a_new_epoch(position: LoaderPosition) -> None:
    training = loader(num_workers=1, persistent_workers=True)
    for _ in range(2):
        iterator = iter(training)
        train(position, iterator, BATCHES)
    assert position.read() == Position(1, BATCHES, BATCHES)


def test_the_iterator_of_an_epoch_that_has_ended_is_not_kept(position: LoaderPosition) -> None:
    train(position, iter(loader()), BATCHES)
    gc.collect()
    assert position.read() in (Position(), Position(0, BATCHES, BATCHES))
    iterator = iter(loader())
    train(position, iterator, 2)
    assert position.read().batch == 2
    del iterator
    gc.collect()
    assert position.read() == Position(1, 2, BATCHES), "the last that was read"


def test_the_batch_size_is_that_of_the_pass_that_began_last(position: LoaderPosition) -> None:
    by_four = iter(loader())
    train(position, by_four)
    position.read()
    assert position.batch_size == 4
    one_by_one = iter(DataLoader(torch.zeros(5, 1), batch_size=None))
    train(position, one_by_one)
    position.read()
    assert position.batch_size is None, "not known"
    endless = iter(DataLoader(Endless(), 8))
    train(position, endless)
    position.read()
    assert position.batch_size == 8


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(1)


class ScriptsOwn(BatchSampler):
    """Its length is code of the user's."""

    def __len__(self) -> int:
        raise AssertionError("asked on another thread")


@pytest.mark.parametrize(
    "training",
    [
        DataLoader(Endless(), 4),
        DataLoader(
            TensorDataset(torch.zeros(20, 1)),
            batch_sampler=ScriptsOwn(SequentialSampler(range(20)), 4, False),
        ),
    ],
    ids=["endless", "sampler of the script"],
)
def test_a_length_that_is_not_known(position: LoaderPosition, training: DataLoader) -> None:
    iterator = iter(training)
    train(position, iterator, 3)
    assert position.read() == Position(0, 3, -1)
