"""The run's card in sections and in words: DDP's options, versions, the environment that matters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ddptop.tui.paint.numbers import count, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.protocol.messages import Scalar
    from ddptop.tui.paint.line import Role

OPTIONS, VERSIONS, ENVIRONMENT = "DDP's options", "versions", "environment"


class Fact(NamedTuple):
    """A name and what there is to say of it."""

    name: str
    value: str
    role: Role = "text"


DEFAULTS: Mapping[str, Scalar] = {
    "broadcast_buffers": 1,
    "bucket_cap_bytes": 25 * 2**20,
    "find_unused_parameters": 0,
    "gradient_as_bucket_view": 0,
    "static_graph": 0,
    "is_multi_device_module": 0,
    "comm_hook": "",
}
"""What DistributedDataParallel does when nobody says otherwise: what differs is shown louder."""

_PLACES = {name: place for place, name in enumerate(sorted(DEFAULTS))}
"""Options that a person can set come before what follows from them."""

_YES_NO = frozenset(
    {"broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph"}
    | {"has_sync_bn", "is_multi_device_module", "has_rebuilt_buckets"}
)

_VERSIONS = frozenset({"python", "nccl", "cuda", "cudnn", "driver", "ddptop", "numpy"})

_ENVIRONMENT = frozenset(
    {"threads", "cuda_visible_devices", "master_addr", "master_port", "torch_distributed_debug"}
)

_UNSET = ("N/A", "")
"""How torch's logger says that a variable is not set."""

_SAID = frozenset({"world_size", "backend_name", "rank", "first_failure", "output_device"})
"""Told elsewhere on the page."""


def card_facts(card: Mapping[str, Scalar]) -> dict[str, list[Fact]]:
    """Sections by title; the section without one holds what a script or another tool has told."""
    found: dict[str, list[Fact]] = {}
    for key, value in card.items():
        if value is None or (isinstance(value, str) and value in _UNSET):
            continue
        model = re.fullmatch(r"ddp(\d*)\.(.*)", key)
        name = model[2] if model else key
        if name in _SAID:
            continue
        if _from_environment(name):
            found.setdefault(ENVIRONMENT, []).append(Fact(name, str(value)))
        elif model:
            title = f"{OPTIONS} of model {model[1]}" if model[1] else OPTIONS
            found.setdefault(title, []).append(_option(name, value))
        elif name in _VERSIONS:
            found.setdefault(VERSIONS, []).append(Fact(name, str(value)))
        else:
            found.setdefault("", []).append(Fact(name, _words(name, value)))
    for facts in found.values():
        facts.sort(key=lambda fact: _PLACES.get(fact.name, len(_PLACES)))
    return found


def _from_environment(name: str) -> bool:
    return name in _ENVIRONMENT or name.startswith(
        ("nccl_", "gloo_", "NCCL_", "GLOO_", "TORCH_", "CUDA_", "OMP_")
    )


def _option(name: str, value: Scalar) -> Fact:
    usual = DEFAULTS.get(name)
    loud: Role = "strong" if usual is not None and value != usual else "text"
    return Fact(name, _words(name, value), loud)


def _words(name: str, value: Scalar) -> str:
    if name in _YES_NO or isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith(("_bytes", "_size")) and isinstance(value, (int, float)):
        return size(float(value))
    if isinstance(value, int) and abs(value) >= 10_000 and not name.endswith(("seed", "port", "pid")):
        return count(value)
    if name.endswith("bucket_sizes") and isinstance(value, str):
        sizes = [text.strip() for text in value.split(",")]
        if all(text.isdecimal() for text in sizes):
            return ", ".join(size(int(text)) for text in sizes)
    return str(value)
