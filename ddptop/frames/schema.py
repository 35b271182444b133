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
    causes,
    conditions,
    figures,
    frame,
    hosts,
    ledger,
    overhead,
    snapshot,
    stall,
    verdict,
)
from ddptop.protocol import machine, messages, vocabulary
from ddptop.protocol.outlets import print_json

Node: TypeAlias = dict[str, Any]

SIMPLE: Mapping[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}

COLUMN = float
"""An element of a column: NaN becomes null."""


def schema() -> Node:
    """The schema of what `snapshot` returns."""
    number = {"type": ["number", "null"]}
    call = _part(stall.Call, snapshot.CALL_FIELDS)
    trace = _object(thread={"type": "string"}, main={"type": "boolean"}, calls=_list(call))
    position = _part(stall.RankPosition, snapshot.POSITION_FIELDS)
    position = _with(position, user_call=_or_null(call), traces=_list(trace))
    group = _group()
    run = (
        "name",
        "id",
        "state",
        "started_at",
        "elapsed_s",
        "world_size",
        "backend",
        "nodes",
        "script",
        "argv",
        "torch",
    )
    card = _part(frame.RunInfo, ("card",))["properties"]["card"]
    gpu = _part(frame.GpuFacts, (one.name for one in fields(frame.GpuFacts) if one.name != "rank"))
    ranks = _part(figures.Ranks, ("local_rank", "pid", *snapshot.RANK_COLUMNS))
    text = {"type": ["string", "null"]}
    states = {"enum": [*get_args(vocabulary.RankStatus)]}
    ranks = _with(
        ranks, rank={"type": "integer"}, host=text, device=text, state=states,
        joined={"type": ["boolean", "null"]}, gpu=_or_null(gpu),
    )  # fmt: skip
    straggler = _with(
        _part(frame.Straggler, (one.name for one in fields(frame.Straggler))), throttle=text, waits_for=text
    )
    logged = _part(frame.LoggedScalar, snapshot.LOGGED_FIELDS)
    alert = _part(frame.Alert, ("kind", "severity", "rank", "step", "since_s", "message", "evidence"))
    cost = ("budget_pct", "measured_pct", "us_per_step", "detail_every", "detail_reason")
    stalled = _part(stall.Stall, (*snapshot.STALL_FIELDS, "ranks", "waiting", "detail"))
    waited_for = _with(
        _part(ledger.WaitedFor, (*snapshot.WAITED_FIELDS, "dear_steps")), seconds={"type": "number"}
    )
    skew = _with(_part(ledger.SkewCost, snapshot.SKEW_FIELDS), waited_for=_list(waited_for))
    seconds = _object(**dict.fromkeys(ledger.LEDGER_CLASSES, number))
    of_rank = _object(rank={"type": "integer"}, elapsed_s=number, seconds=seconds)
    whole_ledger = _with(skew, elapsed_s=number, scaled_s=number, ranks=_list(of_rank), recent=skew)
    whole_snapshot = _object(
        schema={"const": snapshot.SCHEMA},
        source={"enum": [*get_args(vocabulary.FrameSource)]},
        run=_with(_part(frame.RunInfo, run), ddp=card, card=card),
        group=group,
        ranks=_list(ranks),
        buckets=_list(_part(frame.BucketFigures, snapshot.BUCKET_FIELDS)),
        verdict=_part(verdict.Verdict, ("kind", "sign", "sentence", "detail")),
        straggler=_or_null(straggler),
        suspect=_or_null(_part(frame.Suspect, snapshot.SUSPECT_FIELDS)),
        alerts=_list(alert),
        hosts=_list(_part(hosts.HostFigures, snapshot.HOST_FIELDS)),
        clocks=_list(_part(frame.Clocks, ("host", "offset_ms", "bound_ms", "drift_ppm", "age_s"))),
        ledger=_or_null(whole_ledger),
        overhead=_with(
            _part(overhead.Overhead, cost),
            measured=_or_null(_part(overhead.MeasuredCost, ("pct", "low", "high", "blocks"))),
            collector_pct=_typed("collector_pct", float),
        ),
        activities=_list(_part(activity.LongActivity, ("kind", "name", "ranks", "since_s"))),
        progress=_or_null(_part(activity.EpochProgress, snapshot.PROGRESS_FIELDS)),
        logged={"type": "object", "additionalProperties": logged},
        stall=_or_null(_with(stalled, **snapshot.with_old_names({"positions": _list(position)}))),
        deaths=_list(
            _with(
                _part(stall.Death, snapshot.DEATH_FIELDS), **snapshot.with_old_names({"position": position})
            )
        ),
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The snapshot of ddptop --json, schema 1",
        "description": "Units are part of the names. Figures: ddptop/analysis/METRICS.md. Null: not known.",
        **whole_snapshot,
    }


def _group() -> Node:
    """The figures of the group, some of them in objects of their own."""
    paths = {figure.name: figure.path for figure in figures.GROUP_FIGURES}
    kinds = _part(frame.Group, paths)["properties"]
    nodes = snapshot.nested({path: kinds[name] for name, path in paths.items()})
    return _object(**{key: node if "type" in node else _object(**node) for key, node in nodes.items()})


def _part(kind: type, names: Iterable[str]) -> Node:
    """Some fields of a dataclass as an object."""
    known = {
        **vars(vocabulary),
        **vars(activity),
        **vars(causes),
        **vars(conditions),
        **vars(messages),
        **vars(machine),
        **vars(stall),
        "Column": COLUMN,
    }
    later = dict.fromkeys(("Heat", "Timeline", "History", "RankSteps", "HostFigures", "Overhead"), object)
    hints = get_type_hints(kind, localns=later | known)
    return _object(**{name: _typed(name, hints[name]) for name in names})


def _typed(name: str, hint: Any) -> Node:
    of, arguments = get_origin(hint), get_args(hint)
    if of in (Union, UnionType):
        nodes = [_typed(name, one) for one in arguments if one is not NoneType]
        if len(nodes) > 1:  # of scalars
            return _or_null({"type": [kind for node in nodes for kind in _types(node)]})
        return _or_null(nodes[0])
    if of is Literal:
        return {"enum": [*arguments]}
    if of is tuple:
        return _list(_typed(name, arguments[0]))
    if of is not None and issubclass(of, Mapping):
        return {"type": "object", "additionalProperties": _typed(name, arguments[1])}
    if hint is float:
        return {"type": ["integer" if name in snapshot.COUNTS else "number", "null"]}
    return {"type": SIMPLE[hint]}


def _types(node: Node) -> list[str]:
    kinds = node["type"]
    return kinds if isinstance(kinds, list) else [kinds]


def _or_null(node: Node) -> Node:
    if "enum" in node:
        return {"enum": [*node["enum"], None]}
    return {**node, "type": [*dict.fromkeys([*_types(node), "null"])]}


def _list(node: Node) -> Node:
    return {"type": "array", "items": node}


def _object(**properties: Node) -> Node:
    return {"type": "object", "required": [*properties], "properties": properties}


def _with(node: Node, **more: Node) -> Node:
    """The object with more properties."""
    return _object(**{**node["properties"], **more})


if __name__ == "__main__":
    print_json(schema(), indent=1)
