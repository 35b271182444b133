"""Checksums of the parameters after a step: replicas of a DDP model must be equal to the last bit.

No collective, no random numbers, nothing that autograd, a profiler or a dispatch mode could see: the
bytes are read in place. Some pieces after some steps, on the training thread, between two steps. The bytes
of a model's parameters are divided into pieces by their sizes alone, so that ranks agree.
"""

from __future__ import annotations

import weakref
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_char
from typing import Any, NamedTuple

import torch

from ddptop.protocol.limits import MAX_CHECKSUMS
from ddptop.protocol.messages import Replica
from ddptop.training.guard import guard
from ddptop.training.own_cost import cpu_now
from ddptop.training.recorder import Recorder
from ddptop.training.shadow import BLOCK
from ddptop.training.torch_compat.dynamo import no_torch_function

PIECE_BYTES = 128 * 1024
"""A checksum of so much takes 32 us (crc32, 4 GB/s): the least that a check can cost on short steps."""

MAX_SLICES = 16
"""Small parameters in one piece: a call for each costs as much as 8 KiB of checksum."""

LEAST_EVERY = BLOCK
"""Replicas are checked after one of N steps, N a power of two of at least this: the first one of a block that
is recorded where others are left out (`shadow.py`)."""

_GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 3, 6.4)."""


class ParameterSlice(NamedTuple):
    """Consecutive bytes of one parameter."""

    parameter: int
    begin: int
    end: int


class Pieces:
    """Large parameters are cut, small ones share a piece."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """`sizes`: bytes of each parameter, in their order."""
        self._sizes = tuple(sizes)
        self._first: list[int] = []
        """Number of the first piece of each entry of `_parameters`."""
        self._parameters: list[tuple[int, ...]] = []
        """Parameters that share one piece, or a single one that may be cut into many."""
        self.count = 0
        shared: list[int] = []
        for number, size in enumerate(self._sizes):
            if shared and (
                sum(self._sizes[index] for index in shared) + size > PIECE_BYTES or len(shared) == MAX_SLICES
            ):
                self._add_piece(shared)
                shared = []
            shared.append(number)
        if shared:
            self._add_piece(shared)

    def _add_piece(self, parameters: list[int]) -> None:
        self._first.append(self.count)
        self._parameters.append(tuple(parameters))
        size = sum(self._sizes[number] for number in parameters)
        self.count += max(1, -(-size // PIECE_BYTES))

    def slices_of(self, piece: int) -> Iterator[ParameterSlice]:
        """The slices of parameters in a piece."""
        entry = bisect_right(self._first, piece) - 1
        parameters = self._parameters[entry]
        offset = (piece - self._first[entry]) * PIECE_BYTES
        for number in parameters:
            yield ParameterSlice(number, offset, min(self._sizes[number], offset + PIECE_BYTES))


def first_piece(step: int, count: int) -> int:
    """The piece with which the check of a step begins, among `count` pieces.

    From the step alone, so that ranks that check more or less often, or more or less at a time, still share
    pieces. Multiples of the golden ratio fall evenly whatever their number, so that the checks of some steps,
    each of some pieces in a row, soon cover all.
    """
    turn = (step // LEAST_EVERY * _GOLDEN) % 2**64
    return turn * count >> 64


MAX_EVERY = 4096
"""Replicas are checked at least this often, as bucket detail is taken."""

SHARE = 0.05
"""Share of the budget that the checks may take."""

MEMORY = 0.8
"""Weight of the earlier mean of a piece's cost against a new measurement."""

DIFFERING_HOOKS = frozenset(
    {"noop_hook", "post_localSGD_hook", "hook_with_zero_fn", "hook_with_zero_interleaved_fn"}
)
"""torch's communication hooks that let replicas differ between two averagings, or update parameters while
the next step already begins."""


class ReplicaCheck:
    """Checks the models of this process that are added to it, within its share of the budget."""

    def __init__(self, recorder: Recorder, send: Callable[[Replica], None]) -> None:
        self._recorder = recorder
        self._send = send
        self._models: dict[int, _CheckedModel] = {}
        self._left_out: set[int] = set()
        self.piece_ns = 0.0
        self.step_ns = 0.0
        """CPU time that checking costs per step, all checks spread over all steps."""
        self.allowance_ns = 0.0
        """What checking may cost per step; written by the publisher, 0 while the step time is not known."""
        recorder.check = self.check_replicas

    def watch_model(self, ddp: Any, number: int) -> None:
        """Check this DDP model from now on, if its replicas are to be equal."""
        self._models.pop(number, None)
        if number in self._left_out:
            return
        if getattr(ddp, "mixed_precision", None) is None:  # it exchanges the parameters' data as it goes
            ignored = getattr(ddp, "parameters_to_ignore", ())
            model = _CheckedModel(
                ddp, [p for name, p in ddp.module.named_parameters() if name not in ignored]
            )
            if model.pieces.count:
                self._models[number] = model

    def watch_optimizer(self, optimizer: Any) -> None:
        """Without a DDP model: check the parameters of the first optimizer, as those of model 0. The
        collector finds out whether they are replicas at all."""
        if not self._models:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            model = _CheckedModel(optimizer, parameters)
            if model.pieces.count:
                self._models[0] = model

    def leave_out(self, number: int, hook: str) -> None:
        """Do not check a model whose communication hook, of this name, lets replicas differ on purpose."""
        if hook in DIFFERING_HOOKS:
            self._left_out.add(number)
            self._models.pop(number, None)

    def check_replicas(self, step: int) -> None:
        """Checksum some pieces of every model after `step`."""
        began = cpu_now()
        try:
            pieces = self._checksum_models(step)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
            # It would fail after each step.
            self._models.clear()
            return
        if pieces:
            spent = cpu_now() - began
            every = self._recorder.check_every
            self.step_ns = self.step_ns * MEMORY + spent / every * (1 - MEMORY)
            piece_ns = spent / pieces
            self.piece_ns = self.piece_ns * MEMORY + piece_ns * (1 - MEMORY) if self.piece_ns else piece_ns
            self._recorder.check_every = every_for(
                every, self.piece_ns * len(self._models), self.allowance_ns
            )

    def _checksum_models(self, step: int) -> int:
        if not self._models:
            return 0
        # What all steps since the last check may cost together is spent in this one.
        room = self.allowance_ns * self._recorder.check_every / len(self._models)
        # The first check takes one piece, to learn what that costs.
        n_pieces = min(MAX_CHECKSUMS, int(room / self.piece_ns)) if self.piece_ns else 1
        done = 0
        with no_torch_function():
            for number, model in list(self._models.items()):
                count = model.pieces.count
                first = first_piece(step, count)
                values = [model.checksum((first + i) % count) for i in range(min(count, max(1, n_pieces)))]
                checksums = [value for value in values if value is not None]
                if len(checksums) < len(values):  # the model is freed, or has changed
                    del self._models[number]
                    continue
                self._send(Replica(step, number, count, first, tuple(checksums)))
                done += len(checksums)
        return done


def every_for(every: int, cost_ns: float, allowance_ns: float) -> int:
    """How often the least check, of `cost_ns`, can be afforded; a power of two, `every` so far."""
    if not allowance_ns:
        return every
    if cost_ns > allowance_ns * every and every < MAX_EVERY:
        return every * 2
    # Back only with a margin of two, or it would swing.
    if every > LEAST_EVERY and cost_ns * 4 < allowance_ns * every:
        return every // 2
    return every


class _CheckedModel:
    """The parameters of a DDP model or of an optimizer that are the same on all ranks, as long as that
    exists."""

    def __init__(self, owner: Any, parameters: Sequence[Any]) -> None:
        """`owner`: it keeps the parameters."""
        chosen = [parameter for parameter in parameters if is_checkable(parameter)]
        self._parameters = chosen
        self._sizes = [int(parameter.nbytes) for parameter in chosen]
        self._strides = [parameter.stride() for parameter in chosen]
        self.pieces = Pieces(self._sizes)
        # No weak references to the parameters: torch refuses to swap a tensor that has one
        # (`torch.__future__.set_swap_module_params_on_conversion`). The reducer keeps them as long as we do.
        self._owner = weakref.ref(owner, lambda _: chosen.clear())

    def checksum(self, piece: int) -> int | None:
        """CRC-32 of the bytes of a piece; None where a parameter is freed or has changed."""
        value = 0
        for part in self.pieces.slices_of(piece):
            extended = self._extend_checksum(value, part)
            if extended is None:
                return None
            value = extended
        return value

    def _extend_checksum(self, value: int, part: ParameterSlice) -> int | None:
        number = part.parameter
        # A slice: another thread's garbage collection may empty the list.
        remaining = self._parameters[number : number + 1]
        if not remaining:
            return None
        parameter = remaining[0]
        if (
            not parameter.is_cpu
            or parameter.nbytes != self._sizes[number]
            or parameter.stride() != self._strides[number]
        ):
            return None
        storage = parameter.untyped_storage()  # held while its bytes are read
        offset = parameter.storage_offset() * parameter.element_size()
        # A script can make a storage smaller than its tensor.
        if storage.nbytes() < offset + parameter.nbytes:
            return None
        address = storage.data_ptr() + offset + part.begin
        return zlib.crc32((c_char * (part.end - part.begin)).from_address(address), value)


def is_checkable(parameter: Any) -> bool:
    """Whether it is a plain, dense floating-point parameter on the CPU, its elements contiguous in memory."""
    return (
        type(parameter) is torch.nn.Parameter
        and parameter.layout is torch.strided
        and parameter.is_cpu
        and parameter.is_floating_point()
        and parameter.numel() > 0
        and (
            parameter.is_contiguous()
            or (parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last))
            or (parameter.dim() == 5 and parameter.is_contiguous(memory_format=torch.channels_last_3d))
        )
    )
