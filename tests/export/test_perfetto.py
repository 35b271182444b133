"""The trace for Perfetto, parsed back: tracks, slices that nest, arrows, counters, instants."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ddptop
from ddptop.export.output import write_export
from ddptop.export.reading import Selection
from ddptop.recording.reader import Recording
from tests.made_up_run import a_run, write

pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

RUN_STEPS = 60


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("perfetto") / "train-k7qf.ddptop"
    write(path, a_run(RUN_STEPS, buckets=3, event_at=20))
    return path


@pytest.fixture(scope="module")
def trace_path(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("perfetto") / "trace.pftrace"
    with Recording.open(recording) as opened:
        write_export(opened, "perfetto", path, Selection())
    return path


class Trace:
    """A trace by the names of its tracks."""

    def __init__(self, path: Path) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Message
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

        message = Message()
        message.ParseFromString(path.read_bytes())
        self.tracks: dict[int, str] = {}
        self.names: dict[int, str] = {}
        self.arguments: dict[int, str] = {}
        self.slices: list[tuple[str, str, int, int, Any]] = []
        """(track, name, begin, end, packet of the begin)."""
        self.instants: list[str] = []
        self.counted: Counter[str] = Counter()
        open_slices: dict[int, list[tuple[str, int, Any]]] = {}
        for packet in message.packet:
            interned = packet.interned_data
            self.names.update({one.iid: one.name for one in interned.event_names})
            self.arguments.update({one.iid: one.name for one in interned.debug_annotation_names})
            track, event = packet.track_descriptor, packet.track_event
            if packet.HasField("track_descriptor"):
                named = track.name or track.process.process_name or track.thread.thread_name
                self.tracks[track.uuid] = named
            if not packet.HasField("track_event"):
                continue
            stack = open_slices.setdefault(event.track_uuid, [])
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                assert not stack or packet.timestamp >= stack[-1][1]
                stack.append((self.names[event.name_iid], packet.timestamp, packet))
            elif event.type == TrackEvent.TYPE_SLICE_END:
                name, begin, began = stack.pop()
                assert packet.timestamp >= begin
                self.slices.append((self.tracks[event.track_uuid], name, begin, packet.timestamp, began))
            elif event.type == TrackEvent.TYPE_COUNTER:
                self.counted[self.tracks[event.track_uuid]] += 1
            else:
                self.instants.append(self.names[event.name_iid])
        assert not any(open_slices.values())

    def of(self, packet: Any) -> dict[str, Any]:
        """The arguments of an event."""
        return {
            self.arguments[one.name_iid]: one.int_value or one.double_value or one.string_value
            for one in packet.track_event.debug_annotations
        }


def test_the_trace_has_the_figures_of_the_tables(recording: Path, trace_path: Path) -> None:
    trace, tables = Trace(trace_path), ddptop.read(recording)
    assert {"node0", "rank 0", "rank 1", "events", "loss", "rank 1 lateness (ms)"} <= {*trace.tracks.values()}
    steps = [one for one in trace.slices if one[:2] == ("rank 1", "step")]
    assert len(steps) == RUN_STEPS
    mine = tables.steps["rank"] == 1
    lengths = [(end - begin) / 1e6 for _, _, begin, end, _ in steps]
    assert lengths == pytest.approx(tables.steps["step_ms"][mine].tolist())
    assert [begin / 1e9 for _, _, begin, _, _ in steps] == pytest.approx(
        tables.steps["begin_s"][mine].tolist()
    )
    lateness = [trace.of(packet)["lateness_ms"] for *_, packet in steps]
    assert lateness == pytest.approx(tables.steps["lateness_ms"][mine].tolist())
    bounds = [trace.of(packet)["bound_ms"] for *_, packet in steps]
    assert bounds == pytest.approx(tables.steps["bound_ms"][mine].tolist()) and min(bounds) > 0
    for kind in ("wait", "transfer"):
        drawn = [one for one in trace.slices if one[0].startswith("rank 0 all") and one[1].startswith(kind)]
        mine = tables.buckets["rank"] == 0
        total_ms = sum(end - begin for _, _, begin, end, _ in drawn) / 1e6
        assert total_ms == pytest.approx(tables.buckets[f"{kind}_ms"][mine].sum(), rel=1e-4)
    assert (
        trace.counted["loss"] == trace.counted["step time (ms)"] == trace.counted["busbw (GB/s)"] == RUN_STEPS
    )
    assert {"mute", "straggler", "finished"} <= {*trace.instants}


def test_arrows_go_from_the_last_arriver_to_who_waited(trace_path: Path) -> None:
    begins, ends = {}, {}
    for track, name, *_, packet in Trace(trace_path).slices:
        begins |= dict.fromkeys(packet.track_event.flow_ids, (track, name))
        ends |= dict.fromkeys(packet.track_event.terminating_flow_ids, (track, name))
    assert begins and begins.keys() == ends.keys()
    assert {track.split(" all")[0] for track, _ in begins.values()} == {"rank 1"}
    assert {track.split(" all")[0] for track, _ in ends.values()} == {"rank 0"}
    assert all(begins[flow][1] == ends[flow][1] for flow in begins)


def test_trace_processor_reads_it(trace_path: Path) -> None:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    shell = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if shell is None:
        pytest.skip("trace_processor_shell is not on the path")
    with TraceProcessor(trace=str(trace_path), config=TraceProcessorConfig(bin_path=shell)) as processor:
        steps = (
            "select count(*) as n from slice join thread_track on slice.track_id = thread_track.id"
            " join thread using (utid) where thread.name = 'rank 1' and slice.name = 'step'"
        )
        errors = "select count(*) as n from stats where severity = 'error' and value > 0"
        flows = "select count(*) as n from flow"
        found = [next(iter(processor.query(query))).n for query in (steps, errors, flows)]
        assert found[:2] == [RUN_STEPS, 0] and found[2] > 0
