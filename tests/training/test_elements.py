"""How much work a step is given: sizes of the forwards' inputs, without touching what is in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddptop.training.step_record import MOST_TENSORS, Elements

X = torch.zeros(4, 8)


class Subclass(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing of it may be called")


@pytest.mark.parametrize(
    ("inputs", "named", "elements"),
    [
        ((X,), {}, 32),
        ((X, 7, None, "text"), {"mask": X}, 64),
        (([X, X], (X,), {"ids": X, "n": 3}), {}, 128),
        (([[X]],), {}, -1),  # deeper than one level
        ((X.to("meta"),), {}, 32),
        ((X.expand(3, 4, 8),), {}, 96),
        ((X.as_subclass(Subclass),), {"ids": X}, 32),
        ((), {}, -1),
        ((X,) * MOST_TENSORS, {}, 32 * MOST_TENSORS),
        ((X,) * (MOST_TENSORS + 1), {}, -1),
        (([X] * (MOST_TENSORS + 1),), {}, -1),
        ((torch.empty(2**31, device="meta"),), {}, -1),
    ],
)
def test_the_elements_of_tensors_are_counted(inputs: Any, named: Any, elements: int) -> None:
    given = Elements()
    given.add_forward(inputs, named)
    assert given.take_count() == elements


def test_they_are_those_of_all_forwards_of_a_step() -> None:
    given = Elements()
    given.add_forward((X,), {})
    given.add_forward((X,), {})
    assert given.take_count() == 64
    given.add_forward((X,), {})
    assert given.take_count() == 32


def test_logged_tokens_count_instead_in_the_step_of_their_batch() -> None:
    given = Elements()
    given.add_forward((X,), {})
    given.log_tokens(10.0, coming=False)
    given.log_tokens(20.0, coming=True)  # the next batch has been fetched, its forward not begun
    assert given.take_count() == 10
    given.add_forward((X,), {})
    assert given.take_count() == 20
    given.log_tokens(float("nan"), coming=False)
    given.add_forward((X,), {})
    assert given.take_count() == 32
