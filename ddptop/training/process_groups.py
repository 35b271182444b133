"""The process groups of this process: how far each has come, and which of them a DDP model uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddptop.protocol.evidence import GroupState
from ddptop.protocol.limits import MAX_MEMBERS
from ddptop.protocol.messages import Membership

MAX_GROUPS = 64
"""Told in one piece of evidence, in order of construction: meshes of a large job have a dozen per rank."""


def group_states(completed: Mapping[str, int]) -> tuple[GroupState, ...]:
    """Every process group of this process, from any thread; `completed` is the flight recorder's word."""
    names = list(distributed_c10d._world.pg_names.items())[:MAX_GROUPS]
    return tuple(
        GroupState(
            str(name), backend_of(group), group.size(), sequence_of(group), completed.get(str(name), -1)
        )
        for group, name in names
    )


_asking = True


def stop_asking() -> None:
    """Have `sequence_of` ask torch no more: the interpreter is about to end.

    torch's function gives the GIL back for a moment. A thread that wants it again while the interpreter ends
    is unwound by Python through a destructor of C++, and that aborts the process.
    """
    global _asking
    _asking = False


def sequence_of(group: Any) -> int:
    """Collectives launched in a group so far; -1 where the backend does not count."""
    if not _asking:
        return -1
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:  # noqa: BLE001 - a backend that counts nothing, or a group that is just being destroyed
        return -1


def default_sequence() -> int:
    """The same of the default group; -1 where there is none."""
    group = dist.group.WORLD  # each time: a script may destroy its group and make another
    return sequence_of(group) if group is not None else -1


def membership_of(group: Any, model: int) -> Membership:
    """The group that a DDP model reduces its gradients in. On the training thread."""
    ranks = sorted(dist.get_process_group_ranks(group))
    whole = len(ranks) == dist.get_world_size() or len(ranks) > MAX_MEMBERS
    name = distributed_c10d._world.pg_names.get(group, "")
    return Membership(model, str(name), backend_of(group), () if whole else tuple(ranks))


def backend_of(group: Any) -> str:
    """Its backend by name, `nccl` or `gloo`; where `init_process_group()` was left to choose one, its choice.

    torch itself then says `undefined`.
    """
    name = _backend(group)
    return str(group.name()) if name == "undefined" else name


def _backend(group: Any) -> str:
    try:
        return str(dist.get_backend(group))
    except (ValueError, RuntimeError, AssertionError):  # destroyed meanwhile
        return str(group.name())
