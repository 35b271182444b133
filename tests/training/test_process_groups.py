"""What the process groups of this process are called."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from ddptop.training.torch_compat.process_groups import backend_of


class Group:
    """As torch has it after `init_process_group()` without a backend."""

    def name(self) -> str:
        return "nccl"


@pytest.mark.parametrize(
    ("told", "expected"),
    [("undefined", "nccl"), ("gloo", "gloo"), ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl")],
)
def test_a_backend_that_torch_chose_by_itself_is_named(
    monkeypatch: pytest.MonkeyPatch, told: str, expected: str
) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda _group: told)
    assert backend_of(Group()) == expected
