"""Trains a small model in many ways, rank 1 always 40 ms late in backward: own_time.py FOLDER WAY...

Writes for each way the numbers of the steps that it was recorded as, and losses as scripts log them.
"""

import contextlib
import gc
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from ddptop.training.attach import current_session

STEPS = 6
LATE_S = 0.04


class Late(torch.autograd.Function):
    """Does nothing, late in backward on rank 1."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 1:
            time.sleep(LATE_S)
        return gradient


class Net(nn.Module):
    """Three layers in buckets of their own; `ways` leave parts of it unused or compute them again."""

    def __init__(self, *ways: str) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.middle = nn.Linear(64, 64)
        self.last = nn.Linear(64, 8)
        self.ways = ways

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "ends_unused" in self.ways:
            return self.middle(Late.apply(self.middle(x.repeat(1, 4))))
        if "first_unused" in self.ways:
            x = torch.relu(x.repeat(1, 4))
        elif "first_again" in self.ways:
            x = checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
        else:
            x = torch.relu(self.first(x))
        part = nn.Sequential(self.middle, nn.ReLU())
        if "reentrant" in self.ways:
            x = checkpoint(part, x, use_reentrant=True)
        elif "again" in self.ways:
            x = checkpoint(part, x, use_reentrant=False)
        else:
            x = part(x)
        return self.last(Late.apply(x))


def build(*ways: str, bucket_cap_mb: float = 0.01, **options: object) -> DDP:
    torch.manual_seed(0)
    return DDP(Net(*ways), bucket_cap_mb=bucket_cap_mb, **options)


LOGGED: list[float] = []
"""The loss of each step as a script would log it: undivided, a mean over the micro-steps."""


def train(
    model: nn.Module,
    *,
    steps: int = STEPS,
    accumulate: int = 1,
    no_sync: str = "forward and backward",
    scaler: object = None,
    divide: bool = False,
) -> None:
    """`no_sync`: what it encloses in all micro-steps but the last. `divide`: the loss, by their number."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        losses: list[float] = []
        for micro in range(accumulate):
            enclosed = no_sync if micro < accumulate - 1 else "nothing"
            with model.no_sync() if "forward" in enclosed else contextlib.nullcontext():
                loss = model(torch.randn(8, 16)).square().mean()
                losses.append(loss.item())
                loss = loss / accumulate if divide else loss
            with model.no_sync() if "backward" in enclosed else contextlib.nullcontext():
                loss.backward() if scaler is None else scaler.scale(loss).backward()
        LOGGED.append(sum(losses) / accumulate)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


def two_models() -> None:
    models = [build(), build()]
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        sum(model(torch.randn(8, 16)).square().mean() for model in models).backward()
        optimizer.step()


def two_backwards() -> None:
    """The second model accumulates: the last forward before both backwards is one without synchronisation."""
    models = [build(), build()]
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with models[1].no_sync():
            losses = [model(torch.randn(8, 16)).square().mean() for model in models]
        losses[0].backward()
        losses[1].backward()
        optimizer.step()


def joined() -> None:
    model = build()
    with Join([model]):
        train(model, steps=STEPS if dist.get_rank() else STEPS - 2)


def lbfgs() -> None:
    model = build()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2)
    x = torch.randn(8, 16)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def in_backward() -> None:
    """Each parameter's optimizer steps once its bucket is reduced."""
    model = build()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        parameters, gradients = bucket.parameters(), bucket.gradients()

        def step(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
                optimizers[parameter].step()
            return done.value()[0]

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(step)

    model.register_comm_hook(None, hook)
    for _ in range(STEPS):
        model(torch.randn(8, 16)).square().mean().backward()


def compiled() -> None:
    train(torch.compile(build(bucket_cap_mb=25), backend="aot_eager"))


def compiled_backward() -> None:
    """torch compiles no backward with DDP's C++ reducer in it."""
    torch._dynamo.config.optimize_ddp = "python_reducer"
    model = build()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        train(model)


def metric() -> None:
    """Rank 0 waits for rank 1 in a collective of the script's own, in every step."""
    model = DDP(nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 1:
            time.sleep(LATE_S)
        dist.all_reduce(loss.detach())
        dist.monitored_barrier()


class Slow:
    """Takes a while to be saved, less than is reported by itself."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(0.006)
        return Slow, ()


def saves() -> None:
    """Rank 1 saves ten small files; all ranks save in parts."""
    model = build()
    train(model)
    if dist.get_rank() == 1:
        for _ in range(10):
            torch.save([Slow()], io.BytesIO())
    import torch.distributed.checkpoint as dcp  # as late as scripts import it

    class Writer(dcp.FileSystemWriter):
        def prepare_local_plan(self, plan: object) -> object:
            time.sleep(LATE_S)
            return super().prepare_local_plan(plan)

    dcp.save({"model": model.state_dict()}, storage_writer=Writer(Path(sys.argv[1]) / "parts"))
    train(model)


def evaluates() -> None:
    """Pauses before and behind the batches of an evaluation; `evaluated-RANK.json` has its begin and end."""
    model = build()
    train(model)
    time.sleep(LATE_S)
    batches = DataLoader(torch.randn(24, 16), batch_size=8)
    began = time.monotonic_ns()
    with torch.no_grad():
        for x in batches:
            model.module(x)
            time.sleep(LATE_S)
    span = began, time.monotonic_ns()
    (Path(sys.argv[1]) / f"evaluated-{dist.get_rank()}.json").write_text(json.dumps(span))
    time.sleep(LATE_S)
    train(model)


def unsynchronised() -> None:
    """Every rank alone: nothing is waited for."""
    train(build(process_group=[dist.new_group([rank]) for rank in range(2)][dist.get_rank()]))


WAYS: dict[str, Callable[[], None]] = {
    "default": lambda: train(build()),
    "bucket_view": lambda: train(build(gradient_as_bucket_view=True)),
    "no_sync": lambda: train(build(), accumulate=2),
    "every_micro_step": lambda: train(build(), accumulate=4, no_sync="nothing", divide=True),
    "late_no_sync": lambda: train(build(), accumulate=4, no_sync="backward"),
    "static_graph": lambda: train(build(static_graph=True)),
    "find_unused": lambda: train(build(find_unused_parameters=True)),
    "first_unused": lambda: train(build("first_unused", find_unused_parameters=True)),
    "ends_unused": lambda: train(build("ends_unused", find_unused_parameters=True)),
    "two_models": two_models,
    "two_backwards": two_backwards,
    "subgroup": lambda: train(build(process_group=dist.new_group([0, 1]))),
    "unsynchronised": unsynchronised,
    "join": joined,
    "checkpoint": lambda: train(build("again")),
    "reentrant": lambda: train(build("reentrant")),
    "first_reentrant": lambda: train(build("first_again")),
    "lbfgs": lbfgs,
    "in_backward": in_backward,
    "scaler": lambda: train(build(), scaler=torch.amp.GradScaler("cpu")),
    "compiled": compiled,
    "metric": metric,
    "saves": saves,
    "evaluates": evaluates,
    "compiled_backward": compiled_backward,
}


def main() -> None:
    folder, ways = Path(sys.argv[1]), sys.argv[2:] or list(WAYS)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    build()  # begins the session
    recorder = current_session().recorder
    steps, losses = {}, {}
    for way in ways:
        gc.collect()  # a second model that is still there changes what a backward without a stamp means
        begin = recorder.step
        LOGGED.clear()
        WAYS[way]()
        recorder.finish_step()
        losses[way] = [*LOGGED]
        steps[way] = begin, recorder.step
    (folder / f"steps-{dist.get_rank()}.json").write_text(json.dumps(steps))
    (folder / f"losses-{dist.get_rank()}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
