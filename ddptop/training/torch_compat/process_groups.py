"""Process groups: which there are, how far each has come, their store, backends and flight recorder.

Private parts of `torch.distributed.distributed_c10d`, of ProcessGroup and of `torch._C._distributed_c10d`.
Checked on torch 2.6, 2.13 and 2.15; gloo has a flight recorder from 2.13 on.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddptop.protocol.evidence import GroupState
from ddptop.protocol.limits import MAX_MEMBERS
from ddptop.protocol.messages import Membership

MAX_GROUPS = 64
"""In one message of evidence, in order of construction: meshes of a large job have a dozen per rank."""


def group_states(completed: Mapping[str, int]) -> tuple[GroupState, ...]:
    """Every process group of this process, from any thread; `completed` comes from the flight recorder."""
    # A copy: the training thread may make or destroy a group meanwhile.
    names = list(distributed_c10d._world.pg_names.items())[:MAX_GROUPS]
    return tuple(
        GroupState(
            str(name), backend_of(group), group.size(), sequence_of(group), completed.get(str(name), -1)
        )
        for group, name in names
    )


class SharedGroup(NamedTuple):
    """A process group of several ranks."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Ascending; empty: all, or too many to name."""
    group: Any


def shared_groups() -> list[SharedGroup]:
    """The process groups of this process that have several ranks, at most MAX_GROUPS; from any thread."""
    world = distributed_c10d._world
    groups = []
    for group, name in list(world.pg_names.items())[:MAX_GROUPS]:
        ranks = tuple(sorted(world.pg_group_ranks.get(group, ())))
        if len(ranks) > 1:
            whole = len(ranks) == dist.get_world_size() or len(ranks) > MAX_MEMBERS
            description = str(getattr(group, "group_desc", ""))
            groups.append(SharedGroup(str(name), description, () if whole else ranks, group))
    return groups


_reading = True


def stop_reading() -> None:
    """Have `sequence_of` call torch no more: the interpreter is about to exit.

    torch's function releases the GIL for a moment. A thread that acquires it again while the interpreter
    exits is unwound by Python through a destructor of C++, and that aborts the process.
    """
    global _reading
    _reading = False


def read_again() -> None:
    """Have it call torch again: a recording has ended, not the process."""
    global _reading
    _reading = True


def sequence_of(group: Any) -> int:
    """Collectives launched in a group so far; -1 where the backend does not count."""
    if not _reading:
        return -1
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:  # noqa: BLE001 - a backend that counts nothing, or a group that is just being destroyed
        return -1


def default_store() -> Any:
    """The store of the default group. Raises RuntimeError or ValueError where there is none."""
    return distributed_c10d._get_default_store()


def all_groups() -> list[Any]:
    """Every process group of this process."""
    return list(distributed_c10d._world.pg_map)


def abort_groups() -> None:
    """End NCCL's collectives under way and destroy all groups."""
    distributed_c10d._abort_process_group()


def default_sequence() -> int:
    """Collectives launched in the default group so far; -1 where there is none."""
    group = dist.group.WORLD  # each time: a script may destroy its group and make another
    return sequence_of(group) if group is not None else -1


def membership_of(group: Any, model: int) -> Membership:
    """The group that a DDP model reduces its gradients in. On the training thread."""
    ranks = sorted(dist.get_process_group_ranks(group))
    whole = len(ranks) == dist.get_world_size() or len(ranks) > MAX_MEMBERS
    name = distributed_c10d._world.pg_names.get(group, "")
    return Membership(model, str(name), backend_of(group), () if whole else tuple(ranks))


def backend_of(group: Any) -> str:
    """Name of the backend of a group, `nccl` or `gloo`.

    Where `init_process_group()` was left to choose, torch gives `undefined`: then the one that it has chosen.
    """
    name = _backend_name(group)
    return str(group.name()) if name == "undefined" else name


def _backend_name(group: Any) -> str:
    try:
        return str(dist.get_backend(group))
    except (ValueError, RuntimeError, AssertionError):  # destroyed meanwhile
        return str(group.name())


def adopt_backends(timed: Any, group: Any) -> None:
    """Give `timed`, a ProcessGroup of ours, the backends of `group`."""
    # Registering a backend overwrites its bound_device_id with ours: take it over first.
    if hasattr(group, "bound_device_id"):
        timed.bound_device_id = group.bound_device_id
    kinds = dist.Backend.backend_type_map
    custom = dist.ProcessGroup.BackendType.CUSTOM
    for device in group._device_types:
        backend = group._get_backend(device)
        timed._register_backend(device, kinds.get(backend.name(), custom), backend)
    timed._set_default_backend(kinds.get(group.name(), custom))


def bytes_of(tensor: torch.Tensor) -> int:
    """What an all-reduce of this tensor transfers; of a sparse one values and indices."""
    if tensor.is_sparse:
        return int(tensor._values().nbytes + tensor._indices().nbytes)
    return int(tensor.nbytes)


def flight_dumps() -> list[dict[str, Any]]:
    """What torch's flight recorders hold (gloo's, NCCL's); may raise what torch raises, and in theory block.

    Each is a pickle of torch's own making. With stack traces the first dump takes over a second, so it is
    taken without; a full buffer of 2000 collectives takes 25 to 70 ms on two busy cores, and holds the GIL.
    """
    module = torch._C._distributed_c10d
    functions = [
        getattr(module, name) for name in ("_dump_fr_trace", "_dump_nccl_trace") if hasattr(module, name)
    ]
    arguments = {"includeCollectives": True, "includeStackTraces": False, "onlyActive": False}
    return [pickle.loads(function(**arguments)) for function in functions]


def group_configs() -> dict[str, dict[str, str]]:
    """Name -> name, description and ranks of every process group, as the flight recorder writes them."""
    world = distributed_c10d._world
    return {
        str(name): {
            "name": str(name),
            "desc": group.group_desc,
            "ranks": str(sorted(world.pg_group_ranks[group])),
        }
        for group, name in list(world.pg_names.items())
    }
