"""The JSON snapshot keeps its promise: these keys, and null for what is not known."""

from __future__ import annotations

import json

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.figures import BUCKET_FIGURES, FIGURES, GROUP_FIGURES
from ddptop.frames.snapshot import snapshot, tidy
from tests.made_up_run import feed_together

NS = 1_000_000_000
START_NS = 5_000 * NS

KEYS = {
    "": "schema source run group ranks buckets straggler alerts clocks overhead",
    "run": "name id state started_at elapsed_s world_size backend nodes script argv torch ddp",
    "group": "step steps_per_s step_ms loss collective_ms wait_ms transfer_ms exposed_comm_ms overlap_pct "
    "busbw_gbps what_if",
    "ranks": "rank host local_rank pid device state age_ms step bucket sequence loss step_ms data_ms "
    "forward_ms backward_ms optimizer_ms other_ms collective_ms wait_ms transfer_ms exposed_comm_ms "
    "lateness_ms last_pct relative_score individual_score records lost_records rss_bytes cpu_pct gpu",
    "buckets": "index generation bytes parameters dtype hook collective_ms wait_ms transfer_ms algbw_gbps "
    "busbw_gbps skew_ms last_arriver",
    "straggler": "rank pattern lateness_ms bound_ms recoverable_ms cost_pct cause parts_ms",
    "alerts": "kind severity rank step since_s message evidence",
    "clocks": "host offset_ms bound_ms",
    "overhead": "budget_pct measured_pct us_per_step detail_every",
}

ADDED = {
    "": "logged stall deaths verdict suspect hosts ledger activities progress sampled start process_groups",
    "run": "card training",
    "ranks": "joined",
    "buckets": "model group",
    "straggler": "throttle last_pct ranks place basis disagrees waits_for elements_ratio rare group",
    "overhead": "detail_reason measured collector_pct recorded_every every_step_pct",
    "clocks": "drift_ppm age_s",
}
"""Keys added to schema 1 since: a program written for the first ones finds all of them, in their order."""


DECLARED = {
    "group": {figure.path.partition(".")[0] for figure in GROUP_FIGURES},
    "ranks": {figure.name for figure in FIGURES if figure.scope == "rank" and figure.in_json},
    "buckets": {figure.name for figure in BUCKET_FIGURES if figure.in_json},
}
"""Keys of figures: what is declared is added, too."""


def test_the_schema_is_exactly_the_promised_one(make_world) -> None:
    world, reducer = make_world(2, delays={(1, "data"): 20_000}), Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(60)])
    shown = snapshot(reducer.frame(START_NS + world.now_us * 1000))
    for name, keys in KEYS.items():
        part = shown[name] if name else shown
        for item in part if isinstance(part, list) else [part]:
            added = {*ADDED.get(name, "").split(), *DECLARED.get(name, ())} - {*keys.split()}
            assert [key for key in item if key not in added] == keys.split(), name
            assert added <= set(item), name
    assert shown["schema"] == 1
    assert shown["run"]["argv"] == ["--fast"]
    assert shown["run"]["ddp"] == {"static_graph": False}
    assert shown["group"]["step"] == 59
    assert shown["straggler"]["lateness_ms"] == 20.0
    assert shown["ranks"][0]["pid"] == 4000
    (clock,) = shown["clocks"]
    assert clock == {"host": "node0", "offset_ms": 0.0, "bound_ms": 0.0, "drift_ppm": 0.0, "age_s": None}


def test_it_is_plain_json_and_unknowns_are_null(make_world) -> None:
    world, reducer = make_world(2), Reducer()
    feed_together(reducer, [world.run(), world.hello(0)])
    shown = json.loads(json.dumps(snapshot(reducer.frame(START_NS)), allow_nan=False))
    absent = shown["ranks"][1]
    assert absent["state"] == "waiting"
    unknown = set(absent) - {"rank", "state", "records", "lost_records"}
    assert all(absent[name] is None for name in unknown)
    assert shown["group"]["step"] is None
    assert shown["group"]["loss"]["mean"] is None
    assert shown["straggler"] is None


def test_it_is_the_same_before_and_after_the_link(make_world) -> None:
    world, reducer = make_world(3, delays={(1, "data"): 12_345, (2, "forward"): 333}), Reducer()
    for received in (
        world.run(),
        *world.introduce(),
        *world.steps(77, loss=lambda r, s: 0.1 + r / 7 + s / 3),
    ):
        reducer.feed(received)
    frame = reducer.frame(START_NS + world.now_us * 1000)
    assert snapshot(FrameDecoder().decode(encode_frame(frame))) == snapshot(frame)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("step_ms", 46.80049, 46.8),
        ("cost_pct", 43.21987, 43.22),
        ("loss", 0.412734567, 0.412735),
        ("loss", float("nan"), None),
        ("loss", float("inf"), None),
        ("pid", 4312.0, 4312),
        ("parameters", 25_000_000, 25_000_000),
        ("hook", "fp16", "fp16"),
        ("static_graph", True, True),
        ("rank", None, None),
    ],
)
def test_values_are_tidied_by_their_names(name, value, shown) -> None:
    found = tidy(name, value)
    assert found == shown
    assert type(found) is type(shown)
