"""Trains a small model in every way DDP can be asked to, and saves each rank's final weights.

A plain script that knows nothing of ddptop: variants.py FOLDER [VARIANT ...]
"""

import contextlib
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

STEPS = 6
SHADOW_STEPS = 525
"""Past the first block of steps in which the recorder stands aside."""


class Net(nn.Module):
    """Several buckets at a small cap, and a branch that some steps leave unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.branch = nn.Linear(64, 64)
        self.middle = nn.Linear(64, 64)
        self.last = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor, use_branch: bool = True) -> torch.Tensor:
        x = torch.relu(self.first(x))
        if use_branch:
            x = x + torch.relu(self.branch(x))
        return self.last(torch.relu(self.middle(x)))


def custom_hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A user's own hook: sums squares in a way that no other hook does."""
    tensor = bucket.buffer() * 0.5
    future = dist.all_reduce(tensor, async_op=True).get_future()
    return future.then(lambda done: done.value()[0] * (2.0 / dist.get_world_size()))


def train(
    model: DDP, *, set_to_none: bool = True, accumulate: int = 1, branch_every: int = 1, steps: int = STEPS
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        for micro in range(accumulate):
            x = torch.randn(8, 32, generator=generator)
            use_branch = (step + dist.get_rank()) % branch_every == 0
            last = micro == accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                model(x, use_branch).square().mean().backward()
        optimizer.step()


def accumulated() -> DDP:
    """Losses divided by the number of micro-steps, in place and by a scaler's factor, under hooks on what is
    saved for backward; `no_sync()` around backward alone, as people write it."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(4):
            x = torch.randn(8, 32, generator=generator)
            with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * 1, lambda saved: saved):
                loss = model(x).square().mean()
                loss /= torch.tensor(4.0) if step % 2 else 4
            with model.no_sync() if micro < 3 else contextlib.nullcontext():
                scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model


def build(*, bucket_cap_mb: float = 0.01, **options: object) -> DDP:
    torch.manual_seed(7)
    return DDP(Net(), bucket_cap_mb=bucket_cap_mb, **options)


def hooked(hook: object, state: object = None) -> DDP:
    model = build()
    model.register_comm_hook(state, hook)
    return model


def joined(divide_by_initial: bool) -> DDP:
    model = build()
    with Join([model], divide_by_initial_world_size=divide_by_initial):
        train(model, steps=STEPS + 2 * dist.get_rank())
    return model


def trained(model: DDP, **options: object) -> DDP:
    train(model, **options)
    return model


def power_sgd() -> DDP:
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2
    )
    model = build(bucket_cap_mb=25)  # with several buckets PowerSGD can deadlock on gloo, in plain torch too
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return trained(model)


VARIANTS = {
    "default": lambda: trained(build()),
    "bucket_view": lambda: trained(build(gradient_as_bucket_view=True)),
    "bucket_view_kept": lambda: trained(build(gradient_as_bucket_view=True), set_to_none=False),
    "unused": lambda: trained(build(find_unused_parameters=True), branch_every=2),
    "static_graph": lambda: trained(build(static_graph=True)),
    "no_sync": lambda: trained(build(), accumulate=3),
    "accumulated": accumulated,
    "join_initial": lambda: joined(True),
    "join_effective": lambda: joined(False),
    "fp16_hook": lambda: trained(hooked(default_hooks.fp16_compress_hook)),
    "builtin_fp16": lambda: trained(builtin()),
    "power_sgd": power_sgd,
    "custom_hook": lambda: trained(hooked(custom_hook)),
    "bfloat16": lambda: trained_bfloat16(),
    "checkpoint": lambda: checkpointed(use_reentrant=False),
    "checkpoint_reentrant": lambda: checkpointed(use_reentrant=True),
    "lbfgs": lambda: lbfgs(),
    "two_models": lambda: two_models(),
    "subgroup": lambda: in_a_subgroup(),
}


APART = {"shadow": lambda: trained(build(), steps=SHADOW_STEPS)}
"""Trained only where it is named."""


def builtin() -> DDP:
    model = build()
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return model


class CheckpointedNet(Net):
    """Computes its middle again in backward."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = nn.Sequential(self.branch, nn.ReLU(), self.middle)
        x = checkpoint(part, torch.relu(self.first(x)), use_reentrant=self.use_reentrant)
        return self.last(torch.relu(x))


def checkpointed(*, use_reentrant: bool) -> DDP:
    torch.manual_seed(7)
    model = DDP(CheckpointedNet(use_reentrant=use_reentrant), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 32, generator=generator)).square().mean().backward()
        optimizer.step()
    return model


def lbfgs() -> DDP:
    model = build()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(100 + dist.get_rank()))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return model


def two_models() -> DDP:
    """Two in one backward, and the script's own collectives and hooks around it."""
    first, second = build(), build()
    seen: list[torch.Tensor] = []
    next(first.parameters()).register_hook(lambda gradient: gradient * 0.5)
    next(first.parameters()).register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(8, 32, generator=generator)
        loss = (first(x) * second(x)).square().mean()
        loss.backward()
        scale = loss.detach().clone()
        work = dist.all_reduce(scale, async_op=True)
        assert work.wait() is not False
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1.0 + scale.item() + seen[-1].item() ** 2)
        optimizer.step()
        dist.barrier()
    second.module.load_state_dict(first.module.state_dict())
    return first


def in_a_subgroup() -> DDP:
    """The first two ranks train together, a third one alone."""
    pair, rest = dist.new_group([0, 1]), dist.new_group(list(range(2, dist.get_world_size())) or [0])
    return trained(build(process_group=pair if dist.get_rank() < 2 else rest))


def trained_bfloat16() -> DDP:
    torch.manual_seed(7)
    model = DDP(nn.Linear(64, 64).bfloat16(), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 64, generator=generator).bfloat16()).square().mean().backward()
        optimizer.step()
    return model


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in sys.argv[2:] or VARIANTS:
        model = (VARIANTS | APART)[name]()
        torch.save(model.module.state_dict(), folder / f"{name}-{dist.get_rank()}.pt")
    # torch 2.13 may hang for a minute here: the group's end joins a thread that waits for Python's lock.
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
