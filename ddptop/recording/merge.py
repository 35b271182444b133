"""Completing the recording of a run by those that agents of other hosts have made themselves.

Every numbered message is in the result once, by session and number. The messages that only an agent has
recorded are put where they would have arrived: their times by the host's clock are put on the collector's by
the CLOCK messages of the host, or by the wall clocks where there are none.

A message that is added is known by its place until it is written: memory does not grow with what it holds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from ddptop.protocol.codec import encode
from ddptop.protocol.hosts import About, Host
from ddptop.protocol.messages import Clock, Event, Hello, Progress, Received, Run, count_rows
from ddptop.recording.format import RecordingError
from ddptop.recording.reader import Recording
from ddptop.recording.writer import HistorySource, Writer

UNLIMITED = 1 << 60
"""The result leaves nothing out."""

KEPT_BLOCKS = 64
"""Decoded at a time, of all recordings that are added: some 40 MB at most."""


class Merged(NamedTuple):
    """How much a merge has put together."""

    hosts: int
    """Hosts of the result."""
    added: int
    """Step records that the run's recording did not have."""
    known: int
    """Step records that it had already."""


class AddedMessage(NamedTuple):
    """A message that the run's recording does not have."""

    t_ns: int
    """Where it is put, on the collector's clock."""
    order: int
    recording: Recording
    block: int
    place: int
    """In which recording, in which block of it, and where in that."""
    session: int
    seq: int


class _Base(NamedTuple):
    """What of the run's recording decides where others' messages go."""

    numbered: dict[int, dict[int, int]]
    """By session, by number: when the message arrived."""
    introduced: set[int]
    """Sessions whose HELLO or HOST it has."""
    worlds: dict[int, int]
    """World size by incarnation."""
    ranks: set[tuple[int, int]]
    """Incarnation and rank of each session of a rank."""
    clocks: dict[str, list[Clock]]
    hosts: set[str]


def merge_recordings(
    paths: Sequence[Path],
    out: Path,
    *,
    history: HistorySource | None = None,
    feed: Callable[[Received], None] = lambda received: None,
) -> Merged:
    """Write one recording from several; `out` must not be there yet.

    `history`: the group's history, for the result; it comes of the messages, which `feed` is given in order.
    Raises RecordingError where they are not of one run or one is damaged beyond reading, OSError.
    """
    recordings = [Recording.open(path) for path in paths]
    try:
        # The collector has the clock that all times are put on, and most messages.
        recordings.sort(key=lambda recording: not _is_of_collector(recording))
        run, *local_recordings = recordings
        base = _survey_recording(run)
        added: list[AddedMessage] = []
        n_new = n_known = 0
        for local_recording in local_recordings:
            rows = _take_new_messages(local_recording, run, base, added)
            n_new, n_known = n_new + rows[0], n_known + rows[1]
        # By time, and at equal times as they were read.
        added.sort(key=lambda item: item[:2])
        writer = Writer(out, limit_bytes=UNLIMITED)
        writer.history = history
        _write_result(writer, _messages_in_order(run, added), feed)
        return Merged(len(base.hosts), n_new, n_known)
    finally:
        for recording in recordings:
            recording.close()


def _is_of_collector(recording: Recording) -> bool:
    """An agent does not record the run's settings."""
    return any(
        isinstance(item.message, Event) and item.message.kind == "settings"
        for item in recording.lasting_messages()
    )


def _survey_recording(recording: Recording) -> _Base:
    base = _Base({}, set(), {}, set(), {}, set())
    for received in recording.records():
        if received.seq:
            base.numbered.setdefault(received.session, {})[received.seq] = received.t_ns
        _note_message(received, base)
    return base


def _note_message(received: Received, base: _Base) -> None:
    message = received.message
    if isinstance(message, Hello):
        base.introduced.add(message.session)
        base.worlds.setdefault(message.incarnation, message.world_size)
        base.ranks.add((message.incarnation, message.rank))
        base.hosts.add(message.host)
    elif isinstance(message, Host):
        base.introduced.add(message.session)
        base.hosts.add(message.name)
    elif isinstance(message, Clock):
        base.clocks.setdefault(message.host, []).append(message)


def _take_new_messages(
    local_recording: Recording, run: Recording, base: _Base, added: list[AddedMessage]
) -> tuple[int, int]:
    """Put into `added` what only `local_recording` has.

    Returns how many step records are new, and how many were known.
    Raises RecordingError where it is not of the same run.
    """
    _refuse_other_run(local_recording, base)
    n_new = n_known = 0
    ordered: dict[int, list[int]] = {}
    clocks = _clocks_of(local_recording, base)
    wall_ns = _wall_ns(local_recording) - _wall_ns(run)
    for block, place, received in _messages_with_places(local_recording):
        if _is_in_base(received, base):
            n_known += count_rows(received.message)
            continue
        # Never before the run begins: a clock that is badly known must not put messages before its RUN.
        t_ns = max(run.start_ns, _on_collectors_clock(received.t_ns, clocks, wall_ns))
        if received.seq:
            numbers = base.numbered.setdefault(received.session, {})
            # Sorted once for each session: most of its messages are in this order already.
            if received.session not in ordered:
                ordered[received.session] = sorted(numbers)
            t_ns = _time_in_order(t_ns, received.seq, numbers, ordered[received.session])
            numbers[received.seq] = t_ns
        _note_message(received, base)
        n_new += count_rows(received.message)
        added.append(
            AddedMessage(t_ns, len(added), local_recording, block, place, received.session, received.seq)
        )
    return n_new, n_known


def _refuse_other_run(local_recording: Recording, base: _Base) -> None:
    """Raise RecordingError where the number of ranks differs, or both have the same rank and no session in
    common, as two runs of one script."""
    is_known = False
    ranks: set[tuple[int, int]] = set()
    for received in local_recording.lasting_messages():
        message = received.message
        if isinstance(message, (Hello, Host)):
            # The collector's own host has session 0 in every run.
            is_known |= message.session != 0 and message.session in base.introduced
        if isinstance(message, Hello):
            ranks.add((message.incarnation, message.rank))
            world = base.worlds.get(message.incarnation, message.world_size)
            if world != message.world_size:
                raise RecordingError(f"not of one run: {message.world_size} ranks here, {world} there")
    both = sorted(ranks & base.ranks)
    if both and not is_known:
        raise RecordingError(f"not of one run: each has a rank {both[0][1]} of its own")


def _messages_with_places(recording: Recording) -> Iterator[tuple[int, int, Received]]:
    """All messages with their places: the block, and where in it."""
    for block in count():
        messages = recording.read_block(block)
        if messages is None:
            return
        for place, received in enumerate(messages):
            yield block, place, received


def _is_in_base(received: Received, base: _Base) -> bool:
    message, session, seq = received.message, received.session, received.seq
    if not session or isinstance(message, Run):
        return True  # the agent's own notes about its file
    if isinstance(message, (Hello, Host)):
        return session in base.introduced
    # Of readings only the newest counts, and the collector has later ones; heartbeats tell of silences.
    if not seq:
        return not isinstance(message, Progress)
    numbers = base.numbered.get(session, {})
    # The collector records an agent's readings as those of the rank, which have no number.
    return seq in numbers or (isinstance(message, About) and seq <= max(numbers, default=0))


def _clocks_of(local_recording: Recording, base: _Base) -> list[Clock]:
    """Comparisons of the clock of the host that made a recording, in order of time; none where unknown."""
    lasting = [item.message for item in local_recording.lasting_messages()]
    hosts = [message.name for message in lasting if isinstance(message, Host)]
    recorded_clocks = [item.message for item in local_recording.records() if isinstance(item.message, Clock)]
    # Those that reached the collector, and those that the agent measured meanwhile.
    collected_clocks = base.clocks.get(hosts[0], []) if hosts else []
    return sorted(
        {clock.t_ns: clock for clock in [*collected_clocks, *recorded_clocks]}.values(),
        key=lambda clock: clock.t_ns,
    )


def _wall_ns(recording: Recording) -> int:
    """CLOCK_REALTIME less CLOCK_MONOTONIC, as the run was begun there."""
    return recording.run.unix_ns - recording.run.monotonic_ns


def _on_collectors_clock(t_ns: int, clocks: Sequence[Clock], wall_ns: int) -> int:
    if not clocks:
        return t_ns + wall_ns
    # The last comparison before, or the first one for what is older.
    clock = clocks[max(0, bisect_right(clocks, t_ns, key=lambda clock: clock.t_ns) - 1)]
    return t_ns + clock.offset_ns + round(clock.drift_ppb * (t_ns - clock.t_ns) / 1e9)


def _time_in_order(t_ns: int, seq: int, numbers: dict[int, int], ordered: Sequence[int]) -> int:
    """The time, or the nearest one at which this number is in order among those of its session that the run's
    recording has."""
    index = bisect_left(ordered, seq)
    if index > 0:
        # Between its neighbours: a reader takes a session's messages by their order.
        t_ns = max(t_ns, numbers[ordered[index - 1]])
    return min(t_ns, numbers[ordered[index]]) if index < len(ordered) else t_ns


def _write_result(writer: Writer, messages: Iterator[Received], feed: Callable[[Received], None]) -> None:
    try:
        for received in messages:
            feed(received)
            writer.add(received, encode(received.message))
        writer.close()
    except BaseException:  # Ctrl-C too: half a recording would be taken for a whole one
        writer.close()
        writer.path.unlink(missing_ok=True)
        raise
    if writer.note is not None:
        # An error of the disk is in the note, since a writer raises none: half a result is no result.
        writer.path.unlink(missing_ok=True)
        raise RecordingError(writer.note)


def _messages_in_order(run: Recording, added: Sequence[AddedMessage]) -> Iterator[Received]:
    """Everything by time, and each session by number; first the RUN that the run's recording begins with."""
    of_session: dict[int, deque[int]] = {}
    """Where in `added` the messages are that are numbered."""
    for number, item in enumerate(added):
        if item.seq:
            of_session.setdefault(item.session, deque()).append(number)
    # A byte for each: there may be millions.
    written = bytearray(len(added))
    read = _Blocks()
    next_number = 0
    for index, received in enumerate(run.records()):
        # `index and`: nothing comes before the RUN that begins the file.
        while index and next_number < len(added) and added[next_number].t_ns < received.t_ns:
            if not written[next_number]:
                yield read.read_message(added[next_number])
                written[next_number] = True
            next_number += 1
        waiting = of_session.get(received.session) if received.seq else None
        # Before a later number of its session, also where the clock would put it behind.
        while waiting and added[waiting[0]].seq < received.seq:
            number = waiting.popleft()
            if not written[number]:
                yield read.read_message(added[number])
                written[number] = True
        yield received
    yield from (read.read_message(item) for number, item in enumerate(added) if not written[number])


class _Blocks:
    """The blocks that were read last: those of one time are written one after the other."""

    def __init__(self) -> None:
        self._read: dict[tuple[int, int], list[Received]] = {}

    def read_message(self, item: AddedMessage) -> Received:
        """An added message, at its time by the collector's clock."""
        key = (id(item.recording), item.block)
        block = self._read.get(key)
        if block is None:
            if len(self._read) >= KEPT_BLOCKS:
                # The one that was read first: messages come about in the order of time.
                del self._read[next(iter(self._read))]
            block = self._read[key] = item.recording.read_block(item.block) or []
        return block[item.place]._replace(t_ns=item.t_ns)
