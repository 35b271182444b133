"""The JSON Schema of the snapshot, made from the types of the frame: the file `snapshot.schema.json` here.

`python -m ddptop.frames.schema` prints it; a test compares the file with it. Keys may be added to schema 1:
other keys are valid too. Every figure may be null: not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from ddptop.frames import (
    activity,
    bill,
    causes,
    conditions,
    figures,
    frame,
    hosts,
    ledger,
    overhead,
    process_groups,
    sampled_stack,
    snapshot,
    stall,
    start,
    verdict,
)
from ddptop.protocol import machine, messages, vocabulary
from ddptop.protocol.outlets import print_json

Node: TypeAlias = dict[str, Any]

SIMPLE: Mapping[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}

COLUMN = float
"""An element of a column: NaN becomes null."""


NUMBER: Node = {"type": ["number", "null"]}
TEXT: Node = {"type": ["string", "null"]}

RUN_FIELDS = (
    "name",
    "id",
    "state",
    "started_at",
    "elapsed_s",
    "world_size",
    "backend",
    "training",
    "nodes",
    "script",
    "argv",
    "torch",
)
ALERT_FIELDS = ("kind", "severity", "rank", "step", "since_s", "message", "evidence")


def schema() -> Node:
    """The schema of what `snapshot` returns."""
    card = _object_with(frame.RunInfo, ("card",))["properties"]["card"]
    position = _position_node()
    clock = _object_with(frame.Clocks, ("host", "offset_ms", "bound_ms", "drift_ppm", "age_s"))
    process_group = (*snapshot.PROCESS_GROUP_FIELDS, "ranks", "rank_lateness_ms")
    stalled = _object_with(stall.Stall, (*snapshot.STALL_FIELDS, "ranks", "waiting", "detail"))
    death = _object_with(stall.Death, snapshot.DEATH_FIELDS)
    start_status = _object_with(start.StartStatus, ("milestone", "behind", "since_s"))
    rank_starts = _array_of(_object_with(start.RankStart, snapshot.RANK_START_FIELDS))
    logged = _object_with(frame.LoggedScalar, snapshot.LOGGED_FIELDS)
    whole_snapshot = _object_of(
        schema={"const": snapshot.SCHEMA},
        source={"enum": [*get_args(vocabulary.FrameSource)]},
        run=_with_keys(_object_with(frame.RunInfo, RUN_FIELDS), ddp=card, card=card),
        group=_group_node(),
        ranks=_array_of(_rank_node()),
        buckets=_array_of(_object_with(frame.BucketFigures, snapshot.BUCKET_FIELDS)),
        process_groups=_array_of(_object_with(process_groups.ProcessGroupFigures, process_group)),
        verdict=_object_with(verdict.Verdict, ("kind", "sign", "sentence", "detail")),
        straggler=_or_null(_straggler_node()),
        suspect=_or_null(_object_with(frame.Suspect, snapshot.SUSPECT_FIELDS)),
        alerts=_array_of(_object_with(frame.Alert, ALERT_FIELDS)),
        hosts=_array_of(_object_with(hosts.HostFigures, snapshot.HOST_FIELDS)),
        clocks=_array_of(clock),
        ledger=_or_null(_ledger_node()),
        overhead=_overhead_node(),
        activities=_array_of(_object_with(activity.LongActivity, ("kind", "name", "ranks", "since_s"))),
        sampled=_array_of(_sampled_stack_node()),
        progress=_or_null(_object_with(activity.EpochProgress, snapshot.PROGRESS_FIELDS)),
        start=_or_null(_with_keys(start_status, ranks=rank_starts)),
        logged={"type": "object", "additionalProperties": logged},
        stall=_or_null(_with_keys(stalled, **snapshot.with_old_names({"positions": _array_of(position)}))),
        deaths=_array_of(_with_keys(death, **snapshot.with_old_names({"position": position}))),
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The snapshot of ddptop --json, schema 1",
        "description": "Units are part of the names. Figures: ddptop/analysis/METRICS.md. Null: not known.",
        **whole_snapshot,
    }


def _position_node() -> Node:
    """Where a rank stands, with its stacks."""
    call = _object_with(stall.Call, snapshot.CALL_FIELDS)
    trace = _object_of(thread={"type": "string"}, main={"type": "boolean"}, calls=_array_of(call))
    position = _object_with(stall.RankPosition, snapshot.POSITION_FIELDS)
    return _with_keys(position, user_call=_or_null(call), traces=_array_of(trace))


def _rank_node() -> Node:
    gpu_fields = (column.name for column in fields(frame.GpuFacts) if column.name != "rank")
    return _with_keys(
        _object_with(figures.Ranks, ("local_rank", "pid", *snapshot.RANK_COLUMNS)),
        rank={"type": "integer"},
        host=TEXT,
        device=TEXT,
        state={"enum": [*get_args(vocabulary.RankStatus)]},
        joined={"type": ["boolean", "null"]},
        gpu=_or_null(_object_with(frame.GpuFacts, gpu_fields)),
    )


def _straggler_node() -> Node:
    names = (column.name for column in fields(frame.Straggler) if column.name != "rare")
    rare = _object_with(ledger.RareSlowness, (*snapshot.RARE_FIELDS, "steps"))
    straggler = _object_with(frame.Straggler, names)
    return _with_keys(straggler, throttle=TEXT, waits_for=TEXT, group=TEXT, rare=_or_null(rare))


def _ledger_node() -> Node:
    """The bill of the run, of the last minutes, and of each rank."""
    waited_for = _with_keys(
        _object_with(ledger.WaitedFor, (*snapshot.WAITED_FIELDS, "dear_steps")),
        seconds={"type": "number"},
        lines=_array_of(_object_of(at={"type": "string"}, share_pct=NUMBER)),
    )
    skew = _with_keys(_object_with(ledger.SkewCost, snapshot.SKEW_FIELDS), waited_for=_array_of(waited_for))
    seconds = _object_of(**dict.fromkeys(ledger.LEDGER_CLASSES, NUMBER))
    of_rank = _object_of(rank={"type": "integer"}, elapsed_s=NUMBER, seconds=seconds)
    losses = _array_of(_object_with(bill.Loss, snapshot.LOSS_FIELDS))
    return _with_keys(
        skew, elapsed_s=NUMBER, scaled_s=NUMBER, ranks=_array_of(of_rank), recent=skew, losses=losses
    )


def _overhead_node() -> Node:
    """What ddptop costs."""
    measured = _object_with(overhead.MeasuredCost, ("pct", "low", "high", "blocks"))
    return _with_keys(
        _object_with(overhead.Overhead, snapshot.COST_FIELDS),
        measured=_or_null(measured),
        collector_pct=_node_of_type("collector_pct", float),
    )


def _sampled_stack_node() -> Node:
    return _with_keys(
        _object_with(sampled_stack.SampledStack, (*snapshot.SAMPLED_FIELDS, "workers")),
        line=TEXT,
        share_pct=NUMBER,
        calls=_array_of(_object_with(sampled_stack.StackShare, snapshot.SHARE_FIELDS)),
    )


def _group_node() -> Node:
    """The figures of the group, some of them in objects of their own."""
    paths = {figure.name: figure.path for figure in figures.GROUP_FIGURES}
    kinds = _object_with(frame.GroupFigures, paths)["properties"]
    nodes = snapshot.nested({path: kinds[name] for name, path in paths.items()})
    return _object_of(**{key: node if "type" in node else _object_of(**node) for key, node in nodes.items()})


def _object_with(kind: type, names: Iterable[str]) -> Node:
    """Some fields of a dataclass as an object."""
    known_types = {
        **vars(vocabulary),
        **vars(activity),
        **vars(causes),
        **vars(conditions),
        **vars(messages),
        **vars(machine),
        **vars(stall),
        "Column": COLUMN,
    }
    later = dict.fromkeys(
        ("Heat", "Timeline", "History", "RankSteps", "HostFigures", "Overhead", "RareSlowness"),
        object,
    )
    hints = get_type_hints(kind, localns=later | known_types)
    return _object_of(**{name: _node_of_type(name, hints[name]) for name in names})


def _node_of_type(name: str, hint: Any) -> Node:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        nodes = [_node_of_type(name, argument) for argument in arguments if argument is not NoneType]
        if len(nodes) > 1:  # of scalars
            return _or_null({"type": [kind for node in nodes for kind in _types_of(node)]})
        return _or_null(nodes[0])
    if origin is Literal:
        return {"enum": [*arguments]}
    if origin is tuple:
        return _array_of(_node_of_type(name, arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _node_of_type(name, arguments[1])}
    if hint is float:
        return {"type": ["integer" if name in snapshot.COUNTS else "number", "null"]}
    return {"type": SIMPLE[hint]}


def _types_of(node: Node) -> list[str]:
    kinds = node["type"]
    return kinds if isinstance(kinds, list) else [kinds]


def _or_null(node: Node) -> Node:
    if "enum" in node:
        return {"enum": [*node["enum"], None]}
    return {**node, "type": [*dict.fromkeys([*_types_of(node), "null"])]}


def _array_of(node: Node) -> Node:
    return {"type": "array", "items": node}


def _object_of(**properties: Node) -> Node:
    return {"type": "object", "required": [*properties], "properties": properties}


def _with_keys(node: Node, **more: Node) -> Node:
    """The object with more properties."""
    return _object_of(**{**node["properties"], **more})


if __name__ == "__main__":
    print_json(schema(), indent=1)
