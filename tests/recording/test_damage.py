"""Cut off, flipped, killed, out of space: what is read is always a part of what was written."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.cli.main import main
from ddptop.frames.verdict import verdict
from ddptop.protocol.codec import encode
from ddptop.protocol.limits import MAX_WORLD
from ddptop.protocol.messages import Event, Progress, Received, Steps
from ddptop.recording import disk, pending_index
from ddptop.recording import records as records_module
from ddptop.recording import writer as writer_module
from ddptop.recording.index import load_contents
from ddptop.recording.reader import Recording, RecordingError
from ddptop.recording.records import BlockReader, is_of_type, pack_record
from ddptop.recording.writer import Writer
from tests.faults.row import CannotTryError
from tests.faults.trial import small_disk
from tests.made_up_run import GIB, START_NS, a_run, feed_together, steps, write
from tests.recording.replays import frame_at

TRIES = 120


def is_part_of(some: Sequence[Received], whole: Sequence[Received]) -> bool:
    """Whether `some` are of `whole`, in the same order."""
    rest = iter(whole)
    return all(any(one == other for other in rest) for one in some)


def rows_in(received: Received) -> int:
    return len(received.message.rows) if isinstance(received.message, Steps) else 0


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.fixture(scope="module")
def records() -> list[Received]:
    return list(a_run(600, buckets=3))


@pytest.fixture(scope="module")
def whole(records: list[Received], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "train.ddptop"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_index, "INDEX_STEPS", 50)  # several of them, as in a large file
        writer = Writer(path, limit_bytes=GIB)
        for number, received in enumerate(records):
            writer.add(received, encode(received.message))
            if number % 7 == 0:
                writer.flush()
        writer.close()
    return path.read_bytes()


def test_truncations(records: list[Received], whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.ddptop"
    chance = random.Random(2)
    complete = 0
    for cut in sorted(chance.randrange(len(whole)) for _ in range(TRIES)):
        path.write_bytes(whole[:cut])
        try:
            with Recording.open(path) as recording:
                read = list(recording.records())
                assert recording.damage
        except RecordingError:
            continue
        assert read == records[: len(read)], "all up to the cut"
        assert len(read) >= complete, "a longer file never has less"
        complete = len(read)
    assert complete > 0.9 * len(records)


def test_bit_flips(records: list[Received], whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "flipped.ddptop"
    chance = random.Random(3)
    readable = 0
    for _ in range(TRIES):
        data = bytearray(whole)
        at = chance.randrange(8, len(data))
        data[at] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        with Recording.open(path) as recording:
            read = list(recording.records())
            assert is_part_of(read, records)
            assert len(read) >= len(records) - 20, "one block is lost at most"
            assert len(read) == len(records) or recording.damage
            list(recording.tail(before_ns=START_NS + 10**9, steps=50))
            assert recording.latest_run.run_id == "run-1"
        readable += len(read) == len(records)
    assert readable >= 0.97 * TRIES


@pytest.mark.parametrize("selected", [Steps, Progress, Event])
def test_only_what_cannot_be_read_of_a_block_is_lost(
    selected: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of its messages were requested."""
    records = list(a_run(100))[:30]

    def pack_with_damage(received: Received, body: bytes) -> bytes:
        rank = MAX_WORLD if received is records[20] else received.rank
        return pack_record(received._replace(rank=rank), body)

    monkeypatch.setattr(records_module, "pack_record", pack_with_damage)
    path = tmp_path / "train.ddptop"
    writer = Writer(path, limit_bytes=GIB)
    for received in records:
        writer.add(received, encode(received.message))
    writer.close()
    with path.open("rb") as file:
        *_, entry = load_contents(file.fileno(), path.stat().st_size).blocks
        reader = BlockReader(file.fileno())
        messages = reader.read_messages(entry, is_of_type(selected))
        before = records[len(records) - entry.summary.records : 20]
        assert messages == [received for received in before if isinstance(received.message, selected)]
        assert (reader.unreadable, reader.lost) == (1, 10)


def test_many_flips_and_a_cut(records: list[Received], whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ruined.ddptop"
    chance = random.Random(4)
    for _ in range(TRIES // 2):
        data = bytearray(whole[: chance.randrange(len(whole) // 2, len(whole))])
        for _ in range(chance.randint(2, 40)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            with Recording.open(path) as recording:
                assert is_part_of(list(recording.records()), records)
        except RecordingError:
            continue


def test_a_ruined_file_can_be_gone_on_with(records: list[Received], whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "resumed.ddptop"
    chance = random.Random(5)
    added = Received(START_NS + 10**12, -1, 0, 0, Event("mute", START_NS, -1, -1))
    for _ in range(TRIES // 4):
        data = bytearray(whole[: chance.randrange(8, len(whole))])
        if len(data) > 100:
            data[chance.randrange(8, len(data))] ^= 4
        path.write_bytes(data)
        writer = Writer(path, limit_bytes=GIB, resume=True)
        writer.add(added, encode(added.message))
        writer.close()
        with Recording.open(path) as recording:
            read = list(recording.records())
        assert read[-1] == added
        assert is_part_of(read[:-1], records)


def test_a_killed_writer_loses_what_it_had_not_flushed(tmp_path: Path) -> None:
    path = tmp_path / "killed.ddptop"
    program = f"""
import sys
from pathlib import Path
from ddptop.cli.main import main
from ddptop.frames.verdict import verdict
from ddptop.protocol.codec import encode
from ddptop.recording.writer import Writer
from tests.made_up_run import a_run
writer = Writer(Path({str(path)!r}), limit_bytes=1 << 30)
for number, received in enumerate(a_run(10**9)):
    writer.add(received, encode(received.message))
    writer.write_due(received.t_ns)
    if number % 100 == 0:
        print(Path({str(path)!r}).stat().st_size, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        while int(process.stdout.readline()) < 400_000:
            pass
        with Recording.open(path) as growing:
            assert growing.growing
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with Recording.open(path) as recording:
        before = list(recording.records())
        assert not recording.growing
        assert recording.damage
    expected = [received for _, received in zip(range(len(before)), a_run(10**9), strict=False)]
    assert before == expected
    last = before[-1].message
    assert isinstance(last, Steps) or before
    writer = Writer(path, limit_bytes=GIB, resume=True)
    more = Received(before[-1].t_ns + 1, 0, 1000, before[-1].seq + 1, steps(0, 1, 0))
    writer.add(more, encode(more.message))
    writer.close()
    with Recording.open(path) as recording:
        assert list(recording.records()) == [*before, more]
        assert recording.damage is None


@pytest.mark.parametrize("limit_bytes", [9_500, 11_000, 28_000])
def test_under_a_limit_of_file_sizes_it_thins_itself_and_ends_well(
    records: list[Received], tmp_path: Path, limit_bytes: int
) -> None:
    path = tmp_path / "full.ddptop"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    descriptors = open_descriptors()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        writer = write(path, records, close=False)
        assert writer.note == "recording at its limit: nothing more is recorded"
        writer.write_due(records[-1].t_ns)
        assert writer.buffered < 1_000  # how it ended, at most
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert open_descriptors() == descriptors
    assert path.stat().st_size <= limit_bytes
    with Recording.open(path) as recording:
        assert (recording.damage, recording.latest_run.state) == (None, "finished")
        assert recording.last_step is not None and recording.last_step > 20


def test_no_space_in_the_middle_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes half of a frame: it is cut back to the last whole one."""
    path = tmp_path / "half.ddptop"
    records = list(a_run(20))
    writer = write(path, records[:4], close=False)
    size = path.stat().st_size
    real = os.write

    def half(descriptor: int, data: memoryview) -> int:
        if len(data) > 60:
            return real(descriptor, data[:50])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    for received in records[4:]:
        writer.add(received, encode(received.message))
    writer.flush()
    monkeypatch.undo()
    assert writer.note == "recording stopped before the first step: the disk is full"
    assert path.stat().st_size == size
    with Recording.open(path) as recording:
        assert list(recording.records()) == records[:4]


class FullDisk:
    """A disk that takes nothing while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        real = os.write

        def write_if_room(descriptor: int, data: memoryview) -> int:
            if self.full:
                real(descriptor, data[: len(data) // 2])
                raise OSError(28, "No space left on device")
            return real(descriptor, data)

        monkeypatch.setattr(os, "write", write_if_room)


def test_a_disk_that_was_full_for_a_moment_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, disk = tmp_path / "full.ddptop", FullDisk(monkeypatch)
    writer = Writer(path, limit_bytes=GIB)
    records = list(a_run(1000))
    for number, received in enumerate(records):
        disk.full = len(records) // 3 < number < len(records) // 2
        writer.add(received, encode(received.message))
        writer.write_due(received.t_ns)
        if disk.full and writer.note is not None:
            assert (writer.buffered, "recording stopped at" in writer.note) == (0, True)
    writer.close()
    assert writer.unwritten == 0
    assert writer.note == ("recording goes on: the disk had taken nothing for a time (the disk is full)")
    with Recording.open(path) as recording:
        assert list(recording.records()) == records
        assert recording.damage is None


def test_what_a_full_disk_cost_is_counted_and_the_rest_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, disk = tmp_path / "full.ddptop", FullDisk(monkeypatch)
    monkeypatch.setattr(writer_module, "WAITING_BYTES", 20_000)
    writer = Writer(path, limit_bytes=GIB)
    records = list(a_run(2000))
    for number, received in enumerate(records):
        disk.full = len(records) // 4 < number < len(records) // 2
        writer.add(received, encode(received.message))
        writer.write_due(received.t_ns)
    writer.close()
    assert writer.unwritten > 100
    assert f"{writer.unwritten:,} step records are missing" in str(writer.note)
    with Recording.open(path) as recording:
        kept = list(recording.records())
        assert recording.damage is None
    reducer = Reducer()
    feed_together(reducer, kept)
    assert sum(member.lost_records for member in reducer.state.ranks) == writer.unwritten
    assert (kept[0], kept[-1]) == (records[0], records[-1])


def test_a_disk_that_stays_full_leaves_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, disk = tmp_path / "full.ddptop", FullDisk(monkeypatch)
    records = list(a_run(200))
    writer = write(path, records[:100], close=False)
    disk.full = True
    for received in records[100:]:
        writer.add(received, encode(received.message))
        writer.write_due(received.t_ns)
    writer.close()
    assert writer.unwritten == sum(map(rows_in, records[100:]))
    with Recording.open(path) as recording:
        assert list(recording.records()) == records[:100]


def fill(folder: Path, name: str) -> None:
    """As other programs do: write into a file until the disk takes nothing any more."""
    with suppress(OSError), (folder / name).open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            continue


def cannot_allocate(*_: object) -> None:
    raise OSError(errno.EOPNOTSUPP, "as NFS says")


@pytest.mark.parametrize(
    "allocates", [pytest.param(True, marks=pytest.mark.slow), False], ids=["blocks", "a spare file"]
)
def test_on_a_full_disk_the_end_has_room_and_every_outlet_says_why_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], allocates: bool
) -> None:
    if not allocates:
        monkeypatch.setattr(disk, "allocate_blocks", cannot_allocate)
    for variable in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(
        "ddptop.host.folders.SHARED_TMP", tmp_path
    )  # or this machine's own runs would be listed
    monkeypatch.setattr(disk, "ALLOCATED_AHEAD_BYTES", 4096)
    folder = tmp_path / "ddptop"
    records = [*a_run(1500)]
    with ExitStack() as stack:
        try:
            stack.enter_context(small_disk(folder, 128 << 10))
        except CannotTryError as reason:
            pytest.skip(str(reason))
        folder.chmod(0o700)
        path = folder / "full.ddptop"
        writer = Writer(path, limit_bytes=GIB)
        for number, received in enumerate(records):
            if number == len(records) // 2:
                fill(folder, "others")
            writer.add(received, encode(received.message))
            writer.write_due(received.t_ns)
        fill(folder, "more")
        killed = Path(shutil.copy(path, tmp_path / "killed.ddptop"))
        writer.close()
        assert [one.name for one in folder.glob("*.ddptop*")] == ["full.ddptop"]
        assert main(["ls"]) == 0
        (folder / "others").unlink()
        told = {"ls": capsys.readouterr().out}
        for name, words in {
            "once": ["replay", "--once"],
            "json": ["replay", "--json"],
            "report": ["report"],
        }.items():
            assert main([words[0], str(path), *words[1:]]) == 0
            told[name] = " ".join(capsys.readouterr().out.split())
        frame, of_killed = frame_at(path, None), frame_at(killed, None)
        with Recording.open(path) as recording, Recording.open(killed) as cut:
            assert (recording.damage, recording.latest_run.state) == (None, "finished")
            assert cut.stop_note == recording.stop_note == writer.note
            assert writer.note == f"recording stopped at step {recording.last_step:,}: the disk is full"
            assert frame.records == sum(rows_in(received) for received in recording.records())
    step = frame.group.step
    assert step is not None
    assert all(writer.note in text for text in told.values()), told
    assert frame.run.state == "finished"
    assert frame.lost_records == writer.unwritten == 3000 - frame.records
    assert f"finished: 1,500 steps, {step + 1:,} of them recorded" in told["once"]
    assert f"{step + 1:,} steps recorded" in told["report"]
    assert all(f"{writer.unwritten:,}" in told[name] for name in ("once", "json", "report"))
    assert verdict(of_killed).sentence == f"LOST · how the run ended is unknown: {writer.note}"


def test_after_a_full_disk_the_room_for_the_end_is_kept_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, allocated = tmp_path / "full.ddptop", disk.allocate_blocks
    records = [*a_run(900)]
    full: list[bool] = []

    def allocate_if_room(descriptor: int, offset: int, length: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocated(descriptor, offset, length)

    monkeypatch.setattr(disk, "allocate_blocks", allocate_if_room)
    monkeypatch.setattr(disk, "ALLOCATED_AHEAD_BYTES", 0)
    monkeypatch.setattr(writer_module, "WAITING_BYTES", 5_000)
    writer = Writer(path, limit_bytes=GIB)
    for number, received in enumerate(records):
        full[:] = [True] if number * 6 // len(records) in (1, 3, 5) else []
        writer.add(received, encode(received.message))
        writer.write_due(received.t_ns)
    writer.close()
    live, replayed = Reducer(), Reducer()
    feed_together(live, records)
    for event in writer.take_missing():
        live.feed(Received(event.t_ns, -1, 0, 0, event))
    with Recording.open(path) as recording:
        assert (recording.damage, recording.latest_run.state) == (None, "finished")
        kept = [*recording.records()]
        ends_ns = [recording.block_summary(at).last_ns for at in range(recording.blocks_until(1 << 62))]
    assert ends_ns == sorted(ends_ns)
    feed_together(replayed, kept)
    assert 0 < writer.unwritten < 1800
    for reducer in (live, replayed):
        lost = [member.lost_records for member in reducer.state.ranks]
        assert (sum(lost), reducer.state.missing.lost_since_ns is not None) == (writer.unwritten, True)
