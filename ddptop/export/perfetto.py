"""A trace for ui.perfetto.dev, with the perfetto package's streaming builder. The README has its tracks."""

from __future__ import annotations

import math
import struct
from functools import cache, lru_cache
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from ddptop.analysis.steps.kept import HEAD
from ddptop.analysis.steps.own_times import PART_COLUMNS
from ddptop.analysis.to_frame.timeline import spans
from ddptop.export.reading import Sink
from ddptop.export.rows import detail_columns, launch_times
from ddptop.protocol.messages import Hello
from ddptop.protocol.outlets import safe_data

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from ddptop.analysis.steps.evaluate_buckets import GroupBuckets
    from ddptop.export.reading import End, Selection
    from ddptop.export.rows import Batch, LaunchTimes
    from ddptop.recording.reader import Recording

    Arguments: TypeAlias = Mapping[str, str | int | float | None]
    Launches: TypeAlias = tuple[GroupBuckets, LaunchTimes, int]
    """A process group's all-reduces in some steps, and the place of a step in them."""

BEGIN, END = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
NEEDS_NAMES = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE

SPAN_NAMES = {"waiting": "exposed wait", "moving": "exposed transfer"}
"""Names of the slices of a step where they differ from those of the timeline's spans."""

COUNTERS = {"loss_mean": "loss", "step_ms": "step time (ms)", "busbw_gbps": "busbw (GB/s)"}
"""Figures of the group that are counters, by the names of `History`."""

EVENTS_TRACK, COUNTER_TRACKS, HOST_TRACKS, RANK_TRACKS, TRACKS = 1, 2, 1 << 10, 1 << 20, 64
"""Where the numbers of tracks begin; a rank has TRACKS of them: itself, its lateness, its lanes."""

EXPOSED = [PART_COLUMNS.index(name) for name in ("exposed", "exposed_wait")]
NO_EDGES = np.empty((4, 0))
NONE: Arguments = {}
VALUES = {str: "string_value", int: "int_value", float: "double_value"}
"""By the type of an argument, the field that it is sent in."""

ROUNDING_NS = 1_000
"""Times are whole microseconds on each rank's clock."""

# Without the length of the inner message, which is written by hand.
PACKET_TAG = Trace(packet=[TracePacket()]).SerializeToString()[:-1]
EVENT_TAG = TracePacket(track_event=TrackEvent()).SerializeToString()[:-1]
"""How the fields begin, before their length."""

DOUBLE = struct.Struct("<d")
"""How a message ends whose last field is a double."""

ANNOTATIONS_KEPT = 4_096
"""Arguments that are kept as bytes: all ranks of a step have the same one."""


class PerfettoSink(Sink):
    """Writes the packets of each step as it comes; only names and the ends of the last slices are kept."""

    def __init__(self, recording: Recording, selection: Selection, file: IO[bytes]) -> None:
        super().__init__(recording, selection)
        self._file, self._builder = file, StreamingTraceProtoBuilder(file)
        # By value, and bounded: a figure's number differs in nearly every step.
        self._annotation = lru_cache(ANNOTATIONS_KEPT)(self._annotation_bytes)
        self._packet = TracePacket(sequence_flags=NEEDS_NAMES, trusted_packet_sequence_id=1)
        """What all events have. The fields of a message are bytes one after the other, put together here."""
        self._names: dict[tuple[str, str], int] = {}
        """(what it names, name) of slices and arguments: the number by which it is sent."""
        self._tracks: set[int] = set()
        self._end_ns: dict[int, int] = {}
        """By track, the end of its last slice."""
        self._flows = 0
        hellos = (
            received.message
            for received in recording.lasting_messages()
            if isinstance(received.message, Hello)
        )
        self._host_of = {hello.rank: hello.host for hello in hellos}
        self._hosts = sorted({*self._host_of.values()})
        # The first packet of a sequence clears what a viewer knows of its names.
        self._write_packet(sequence_flags=TracePacket.SEQ_INCREMENTAL_STATE_CLEARED)
        self._describe_track(EVENTS_TRACK, name="events")
        for number, name in enumerate(COUNTERS.values()):
            self._describe_track(COUNTER_TRACKS + number, name=name, counter={})

    def write_steps(self, batch: Batch) -> None:
        """Write the next steps."""
        launches: dict[int, list[Launches]] = {}
        for detail in batch.evaluated.detail:
            for group in detail.figures.groups:
                times = launch_times(detail, group)
                for place, step_index in enumerate(detail.step_indices):
                    launches.setdefault(step_index, []).append((group, times, place))
        figures = detail_columns(batch)[0]
        names, values = [f"{name}_ms" for name in figures], np.stack([*figures.values()], axis=-1)
        for step_index in batch.at.tolist():
            # The step's end on the slowest rank: there its figures are known.
            end_ns = int((batch.begin_ns[step_index] + 1e6 * batch.evaluated.columns[0, step_index]).max())
            for number, name in enumerate(COUNTERS):
                self._write_counter(COUNTER_TRACKS + number, end_ns, batch.evaluated.points[name][step_index])
            for rank, times_ms in zip(
                batch.ranks.tolist(), values[step_index, batch.ranks].tolist(), strict=True
            ):
                self._write_step(
                    batch,
                    step_index,
                    rank,
                    launches.get(step_index, []),
                    dict(zip(names, times_ms, strict=True)),
                )
            for of_group in launches.get(step_index, []):
                self._all_reduces(batch, step_index, of_group)

    def write_end(self, end: End) -> None:
        """Write the events."""
        for event in end.events:
            track = EVENTS_TRACK if event.rank not in self._host_of else self._track_of(event.rank)
            at_ns = round(1e9 * (event.unix_s - end.frame.run.started_at))
            arguments = {"message": event.message, "severity": event.severity, "step": event.step}
            self._write_event(TrackEvent.TYPE_INSTANT, track, at_ns, event.kind, arguments)

    def _write_step(
        self, batch: Batch, step_index: int, rank: int, launches: list[Launches], times_ms: dict[str, float]
    ) -> None:
        """The slices of one rank's step."""
        evaluated, track = batch.evaluated, self._track_of(rank)
        origin_ns = int(batch.begin_ns[step_index, rank])
        # Slices of a track must not overlap, and times are rounded to microseconds.
        begin_ns = max(origin_ns, self._end_ns.get(track, 0))
        head = dict(zip(HEAD, evaluated.block.integers[: len(HEAD), step_index, rank].tolist(), strict=True))
        end_ns = self._end_ns[track] = max(begin_ns, origin_ns + 1000 * head["wall_us"])
        ranks_edges_ms = [
            np.stack([launch_ms[:, place, group.window.scope.ranks.index(rank)] for launch_ms in times[:4]])
            for group, times, place in launches
            if rank in group.window.scope.ranks
        ]
        edges_ms = np.concatenate(ranks_edges_ms, axis=1) if ranks_edges_ms else NO_EDGES
        exposed = None
        if not ranks_edges_ms and evaluated.parts is not None:
            whole, wait = evaluated.parts[EXPOSED, step_index, rank].tolist()
            exposed = (wait, whole - wait) if math.isfinite(wait) else None
        known_edges_ms = edges_ms[:, ~np.isnan(edges_ms[0])]
        step_spans = spans(
            head, 0.0, known_edges_ms[0], known_edges_ms[1], known_edges_ms[2], known_edges_ms[3], exposed
        )
        loss = float(evaluated.block.loss[step_index, rank])
        self._write_event(
            BEGIN, track, begin_ns, "step", {"step": int(batch.steps[step_index]), "loss": loss, **times_ms}
        )
        since_ns = begin_ns
        for span in step_spans:  # without gaps
            # A span that clocks put outside of its step is cut to it.
            until_ns = min(max(origin_ns + round(1e6 * span.end_ms), begin_ns), end_ns)
            self._write_slice(track, since_ns, until_ns, SPAN_NAMES.get(span.name, span.name))
            since_ns = until_ns
        self._write_event(END, track, end_ns)
        self._write_counter(track + 1, begin_ns, times_ms["lateness_ms"])

    def _all_reduces(self, batch: Batch, step_index: int, launches: Launches) -> None:
        """The slices of all all-reduces of a process group in one step, those of the last arriver first."""
        group, times, place = launches
        ranks = group.window.scope.ranks
        for launch, number in enumerate(group.timing.bucket_numbers):
            bucket = group.window.buckets[number]
            name = f"{bucket.model}.{bucket.index}" if bucket.model else str(bucket.index)
            in_step_ms = np.stack(
                [times_ms[launch, place] for times_ms in (times.start, times.arrival, times.end)]
            )
            last = int(times.last[launch, place])
            known_ranks = np.flatnonzero(~np.isnan(in_step_ms).any(axis=0)).tolist()
            shown = sorted(
                [i for i in known_ranks if ranks[i] in batch.ranks], key=lambda i: ranks[i] != last
            )
            flows: dict[int, int] = {}
            # Arrows only where the clocks can tell that somebody came last.
            if shown and ranks[shown[0]] == last and times.clear[launch, place]:
                waited = [i for i in shown[1:] if times.wait[launch, place, i] > 0]
                flows = {i: self._flows + 1 + n for n, i in enumerate(waited)}
                self._flows += len(flows)
            for i in shown:
                start, arrival, end = in_step_ms[:, i].tolist()
                begin_ns = int(batch.begin_ns[step_index, ranks[i]])
                lane = self._free_lane(ranks[i], begin_ns + round(1e6 * start))
                end = max(start, end)
                edges = [begin_ns + round(1e6 * ms) for ms in (start, min(max(start, arrival), end), end)]
                since_ns, met_ns, end_ns = (max(self._end_ns.get(lane, 0), edge) for edge in edges)
                late_ms = float(times.lateness[launch, place, i])
                arguments = {"bucket": bucket.index, "bytes": bucket.wire_bytes, "lateness_ms": late_ms}
                arguments |= {} if last < 0 else {"last_arriver": last}
                if met_ns > since_ns:
                    self._write_slice(lane, since_ns, met_ns, f"wait {name}", arguments)
                flow_ids = [*flows.values()] if ranks[i] == last else []
                ends = {"flow_ids": flow_ids, "terminating_flow_ids": [flows[i]] if i in flows else []}
                self._write_slice(lane, met_ns, end_ns, f"transfer {name}", arguments, **ends)
                self._end_ns[lane] = end_ns

    def _track_of(self, rank: int | None) -> int:
        """The thread of a rank."""
        assert rank is not None
        track = RANK_TRACKS + rank * TRACKS
        if track not in self._tracks:
            host = self._host_of.get(rank, "")
            pid = 1 + (self._hosts.index(host) if host in self._hosts else len(self._hosts))
            process = HOST_TRACKS + pid
            if process not in self._tracks:
                self._describe_track(process, process={"pid": pid, "process_name": host or "unknown host"})
            thread = {"pid": pid, "tid": RANK_TRACKS + rank, "thread_name": f"rank {rank}"}
            self._describe_track(track, parent_uuid=process, thread=thread)
            self._describe_track(track + 1, parent_uuid=track, name=f"rank {rank} lateness (ms)", counter={})
        return track

    # All-reduces may overlap: each lane has one at a time.
    def _free_lane(self, rank: int, since_ns: int) -> int:
        """The track of a lane of the rank that is free then."""
        track = self._track_of(rank)
        lanes = range(track + 2, track + TRACKS)
        lane = next(
            (
                track_number
                for track_number in lanes
                if self._end_ns.get(track_number, 0) <= since_ns + ROUNDING_NS
            ),
            # More at a time than lanes are drawn over each other.
            lanes[-1],
        )
        if lane not in self._tracks:
            self._describe_track(
                lane, parent_uuid=track, name=f"rank {rank} all-reduces, lane {lane - track - 1}"
            )
        return lane

    def _write_slice(
        self, track: int, begin_ns: int, end_ns: int, name: str, arguments: Arguments = NONE, **fields: Any
    ) -> None:
        self._write_event(BEGIN, track, begin_ns, name, arguments, **fields)
        self._write_event(END, track, end_ns)

    def _write_counter(self, track: int, at_ns: int, value: float) -> None:
        if math.isfinite(value):
            self._write_event(TrackEvent.TYPE_COUNTER, track, at_ns, double_counter_value=value)

    def _write_event(
        self, kind: int, track: int, at_ns: int, name: str = "", arguments: Arguments = NONE, **fields: Any
    ) -> None:
        """Write an event with the arguments that are known: parts of the message, one after the other."""
        event = _on_track(track) + _of_kind(kind, self._number_of_name("event_names", name) if name else 0)
        for key, value in arguments.items():
            if isinstance(value, float):
                if math.isfinite(value):
                    # The number stands at the end: the bytes before it are the same for every value.
                    event += self._annotation(key, 0.0)[: -DOUBLE.size] + DOUBLE.pack(value)
            elif value is not None:
                event += self._annotation(key, value)
        if fields:
            event += TrackEvent(**fields).SerializeToString()
        # Unsigned in the format: by the error of a clock an event may lie before the start.
        self._packet.timestamp = max(0, at_ns)
        packet = self._packet.SerializeToString() + _pack_field(EVENT_TAG, event)
        self._file.write(_pack_field(PACKET_TAG, packet))

    def _annotation_bytes(self, key: str, value: str | int | float) -> bytes:
        number = self._number_of_name("debug_annotation_names", key)
        annotation = {"name_iid": number, VALUES[type(value)]: safe_data(value)}
        return bytes(TrackEvent(debug_annotations=[annotation]).SerializeToString())

    def _describe_track(self, track: int, **fields: Any) -> None:
        self._tracks.add(track)
        self._write_packet(track_descriptor={"uuid": track, **fields})

    def _write_packet(self, **fields: Any) -> None:
        """Write a packet. All are of one sequence, so that each name is sent once."""
        fields.setdefault("sequence_flags", NEEDS_NAMES)
        self._builder.write_packet(TracePacket(trusted_packet_sequence_id=1, **safe_data(fields)))

    def _number_of_name(self, field: str, name: str) -> int:
        """The number of a name; one that is new is sent."""
        number = self._names.get((field, name))
        if number is None:
            number = self._names[field, name] = len(self._names) + 1
            self._write_packet(interned_data={field: [{"iid": number, "name": name}]})
        return number


@cache
def _on_track(track: int) -> bytes:
    return bytes(TrackEvent(track_uuid=track).SerializeToString())


@cache
def _of_kind(kind: int, name: int) -> bytes:
    return bytes(TrackEvent(type=kind, **({"name_iid": name} if name else {})).SerializeToString())


def _pack_field(begin: bytes, message: bytes) -> bytes:
    """A field with a message: its length has seven bits in each byte."""
    bits, length = len(message), b""
    while bits > 127:
        bits, length = bits >> 7, length + bytes((bits & 127 | 128,))
    return begin + length + bytes((bits,)) + message
