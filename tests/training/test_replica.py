"""Checksums of replicas: equal bits give equal values, all others do not; pieces cover every byte once."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.messages import Replica
from ddptop.training import replica
from ddptop.training.guard import Guard
from ddptop.training.recorder import Recorder
from ddptop.training.replica import (
    LEAST_EVERY,
    MAX_EVERY,
    MAX_SLICES,
    PIECE_BYTES,
    Pieces,
    ReplicaCheck,
    every_for,
    first_piece,
)
from ddptop.training.shadow import BLOCK, recorded_block

KIB = 1024


def net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(300, 300), nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last))


class Wrapped(SimpleNamespace):
    """A stand-in for the DDP model: it can be weakly referenced."""


class Rank:
    """One rank with a model; its recorder is driven by hand."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.ddp = Wrapped(module=model, **options)
        self.said: list[Replica] = []
        self.recorder = Recorder()
        self.checks = ReplicaCheck(self.recorder, self.said.append)
        self.checks.watch_model(self.ddp, 0)

    def step(self, *, synchronises: bool = True) -> None:
        self.recorder.forward_begins(synchronises)
        self.recorder.forward_ends()
        self.recorder.backward_begins(None)
        self.recorder.backward_ends()
        self.recorder.optimizer_begins(1)
        self.recorder.optimizer_ends(1)

    def all_pieces(self) -> tuple[int, ...]:
        """The checksums of the whole model."""
        self.checks.allowance_ns = 1e12
        self.checks.piece_ns = 1.0
        self.checks.check_replicas(0)
        message = self.said.pop()
        assert len(message.values) == message.pieces
        return message.values


def test_equal_replicas_have_equal_checksums_in_all_pieces() -> None:
    assert Rank(net()).all_pieces() == Rank(net()).all_pieces()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_bit_is_noticed_in_any_type(dtype: torch.dtype) -> None:
    rank = Rank(net().to(dtype))
    before = rank.all_pieces()
    weight = rank.ddp.module[0].weight
    with torch.no_grad():
        flat = weight.view(-1).view(torch.uint8)
        flat[-1] ^= 1
    after = rank.all_pieces()
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_swapped_values_and_values_that_cancel_out_are_noticed() -> None:
    rank = Rank(net())
    weight = rank.ddp.module[0].weight.detach().view(-1)
    before = rank.all_pieces()
    weight[[3, 4]] = weight[[4, 3]]
    swapped = rank.all_pieces()
    weight[10] += 0.5
    weight[11] -= 0.5
    assert len({before, swapped, rank.all_pieces()}) == 3


def test_a_model_nudged_after_the_optimizer_step_of_step_80_shows_at_step_80() -> None:
    ranks = [Rank(net()), Rank(net())]
    for step in range(100):
        for rank in ranks:
            rank.checks.allowance_ns = 1e9
            rank.step()
        if step == 80:
            with torch.no_grad():
                for parameter in ranks[1].ddp.module.parameters():
                    parameter += 1e-3
    plain, nudged = ({message.step: message for message in rank.said} for rank in ranks)
    assert list(plain) == [0, 16, 32, 48, 64, 80, 96]
    same = {step: plain[step].values == nudged[step].values for step in plain if step < 80}
    assert all(same.values())
    assert plain[80].first == nudged[80].first
    assert all(a != b for a, b in zip(plain[80].values, nudged[80].values, strict=False))
    assert decode(encode(plain[80])) == plain[80]


def test_steps_without_a_synchronised_backward_are_not_checked() -> None:
    rank = Rank(net())
    for _ in range(20):
        rank.step(synchronises=False)
    assert not rank.said


def test_shadow_steps_and_the_end_of_training_are_not_checked() -> None:
    rank = Rank(net())
    rank.step()
    rank.recorder.finish_step()
    assert not rank.said, "what the user does with the model after training is theirs"
    for _ in range(40):
        rank.recorder.shadow_step_ends(0)
    assert not rank.said


def test_only_what_ddp_keeps_equal_is_looked_at() -> None:
    model = net()
    rank = Rank(model, parameters_to_ignore={"0.weight"})
    before = rank.all_pieces()
    with torch.no_grad():
        model[0].weight += 1
    assert rank.all_pieces() == before
    with torch.no_grad():
        model[0].bias += 1
    assert rank.all_pieces() != before


@pytest.mark.parametrize("hook", ["post_localSGD_hook", "noop_hook"])
def test_models_whose_hook_lets_replicas_differ_are_left_out(hook: str) -> None:
    rank = Rank(net())
    rank.checks.leave_out(0, "allreduce_hook")
    rank.checks.check_replicas(0)
    assert len(rank.said) == 1
    rank.checks.leave_out(0, hook)
    rank.checks.watch_model(rank.ddp, 0)
    rank.checks.check_replicas(16)
    assert len(rank.said) == 1


def test_mixed_precision_models_and_models_without_a_plain_parameter_are_left_out() -> None:
    ranks = [Rank(net(), mixed_precision=object()), Rank(nn.ReLU()), Rank(net().to("meta"))]
    for rank in ranks:
        rank.checks.check_replicas(0)
        assert not rank.said


def test_nobody_sees_a_check() -> None:
    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    rank = Rank(net())
    random = torch.get_rng_state()
    versions = [parameter._version for parameter in rank.ddp.module.parameters()]
    with Functions(), Operators():
        rank.checks.check_replicas(0)
    assert rank.said
    assert not seen
    assert torch.equal(torch.get_rng_state(), random)
    assert [parameter._version for parameter in rank.ddp.module.parameters()] == versions


def test_a_model_that_is_gone_or_changed_is_given_up_and_not_kept_alive() -> None:
    for change in ("gone", "smaller", "spread", "empty"):
        rank = Rank(net())
        if change == "gone":
            del rank.ddp
        elif change == "smaller":
            rank.ddp.module.half()
        elif change == "spread":
            for parameter in rank.ddp.module.parameters():
                parameter.data = torch.zeros(*parameter.shape, 2)[..., 0]
        else:
            for parameter in rank.ddp.module.parameters():
                parameter.untyped_storage().resize_(0)
        rank.checks.check_replicas(0)
        rank.checks.check_replicas(16)
        assert not rank.said, change


def test_a_failure_is_counted_and_ends_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Guard()
    monkeypatch.setattr(replica, "guard", fresh)
    rank = Rank(net())
    monkeypatch.setattr(replica, "Replica", None)
    rank.checks.check_replicas(0)
    rank.checks.check_replicas(16)
    assert fresh.count == 1


def test_checks_keep_to_their_share_of_the_budget() -> None:
    assert every_for(16, 50_000, 0.0) == 16, "not known yet"
    assert every_for(16, 50_000, 3_000) == 32
    assert every_for(32, 50_000, 3_000) == 32
    assert every_for(32, 50_000, 30_000) == 16
    assert every_for(16, 50_000, 1e9) == 16
    assert every_for(MAX_EVERY, 50_000, 0.001) == MAX_EVERY


def test_more_pieces_are_taken_where_there_is_room() -> None:
    rank = Rank(net())
    rank.checks.piece_ns = 50_000.0
    rank.checks.allowance_ns = 50_000 * 2.5 / 16
    rank.checks.check_replicas(0)
    assert len(rank.said[0].values) == 2


def test_a_module_that_outlives_its_ddp_model_is_its_owners_alone() -> None:
    rank = Rank(net())
    module = rank.ddp.module
    assert not any(weakref.getweakrefcount(parameter) for parameter in module.parameters())
    rank.checks.check_replicas(0)
    known = len(rank.said)
    del rank.ddp
    rank.checks.check_replicas(16)
    assert len(rank.said) == known, "trained on alone, it need not be equal any more"
    parameter = weakref.ref(module[0].weight)
    del module
    assert parameter() is None


@pytest.mark.parametrize(
    "sizes",
    [
        [4],
        [PIECE_BYTES],
        [PIECE_BYTES + 4],
        [300 * KIB, 16, 24, 5 * 1024 * KIB, 8],
        [16] * (3 * MAX_SLICES + 1),
        [100 * KIB, 100 * KIB, 27 * KIB],
    ],
)
def test_every_byte_of_every_parameter_is_in_one_piece(sizes: list[int]) -> None:
    pieces = Pieces(sizes)
    covered = [bytearray(size) for size in sizes]
    for piece in range(pieces.count):
        parts = list(pieces.slices_of(piece))
        assert 0 < sum(part.end - part.begin for part in parts) <= PIECE_BYTES
        assert len(parts) <= MAX_SLICES
        for part in parts:
            for byte in range(part.begin, part.end):
                covered[part.parameter][byte] += 1
    assert all(set(marks) == {1} for marks in covered)


def test_without_parameters_there_are_no_pieces() -> None:
    assert Pieces([]).count == 0


@pytest.mark.parametrize("every", [LEAST_EVERY << power for power in range(9)])
@pytest.mark.parametrize(("count", "at_a_time"), [(1, 1), (7, 1), (800, 1), (800, 6), (800, 60), (4001, 40)])
def test_all_pieces_are_soon_covered_whatever_the_interval(every: int, count: int, at_a_time: int) -> None:
    missing = set(range(count))
    checks = 0
    while missing:
        # As where steps are left out, from the first of them on.
        step = recorded_block(checks * every // BLOCK, every // BLOCK) * BLOCK
        first = first_piece(step, count)
        missing -= {(first + i) % count for i in range(at_a_time)}
        checks += 1
        assert checks <= 12 * max(1, count // at_a_time), f"{len(missing)} pieces not covered"


def test_ranks_that_check_at_different_intervals_share_pieces() -> None:
    assert first_piece(256, 800) == first_piece(256, 800)
    assert len({first_piece(step, 800) for step in range(0, 1024, 16)}) > 50, "not always the same ones"
    assert all(0 <= first_piece(step, 3) < 3 for step in range(0, 100_000, 16))
