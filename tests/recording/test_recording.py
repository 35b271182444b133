"""Writing, reading, finding the way in a recording."""

from __future__ import annotations

import errno
import os
import random
import stat
from pathlib import Path

import pytest

from ddptop.collector.record import EarlierRun, Record
from ddptop.protocol import limits
from ddptop.protocol.codec import encode
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import Bye, Hello, Progress, Received, Steps
from ddptop.recording import disk
from ddptop.recording.format import MAGIC
from ddptop.recording.reader import Recording, RecordingError
from ddptop.recording.writer import Writer
from tests.made_up_run import GIB, NS, START_NS, STEP_US, a_run, hello, steps, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.ddptop"


def test_what_is_written_is_read(path: Path) -> None:
    records = list(a_run(300, world=3))
    write(path, records)
    with Recording.open(path) as recording:
        assert list(recording.records()) == records
        assert (recording.first_step, recording.last_step) == (0, 299)
        assert (recording.start_ns, recording.end_ns) == (records[0].t_ns, records[-1].t_ns)
        assert (recording.run.name, recording.latest_run.state) == ("train-k7qf", "finished")
        assert (recording.world_size, recording.messages) == (3, len(records))
        assert (recording.damage, recording.growing) == (None, False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "today" / "train.ddptop"
    write(path, a_run(3))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with Recording.open(path) as recording:
        assert recording.last_step == 2


def test_reading_from_a_moment(path: Path) -> None:
    records = list(a_run(300))
    write(path, records)
    with Recording.open(path) as recording:
        for at in (START_NS - NS, START_NS, START_NS + 2 * NS + 7, records[-1].t_ns, records[-1].t_ns + 1):
            assert list(recording.records(from_ns=at)) == [r for r in records if r.t_ns >= at]


def test_the_tail_is_what_it_takes_to_stand_somewhere(path: Path) -> None:
    records = list(a_run(5000))
    write(path, records)
    at = START_NS + 3000 * STEP_US * 1000
    before = [r for r in records if r.t_ns < at]
    with Recording.open(path) as recording:
        tail = list(recording.tail(before_ns=at, steps=200))
        end = list(recording.tail(steps=200))
    assert tail == [r for r in before if r in tail], "in order, nothing new"
    passing = (Steps, Progress, Usage)
    assert [r for r in tail if not isinstance(r.message, passing)] == [
        r for r in before if not isinstance(r.message, passing)
    ]
    for rank in range(2):
        rows = [r.message for r in tail if isinstance(r.message, Steps) and r.rank == rank]
        assert 200 <= sum(len(message.rows) for message in rows) <= 260
        newest = [next(r for r in reversed(x) if isinstance(r.message, Usage)) for x in (before, tail)]
        assert newest[0] == newest[1]
    assert end[-1] == records[-1]
    assert max(r.seq for r in end if r.session == 1001) == max(r.seq for r in records if r.session == 1001)


def test_the_last_number_of_a_session_that_has_long_been_silent(path: Path) -> None:
    """Its host was not reached: what it sends again is not recorded twice."""
    records = [r for r in a_run(5000) if r.rank != 1 or r.t_ns < START_NS + NS]
    write(path, records)
    silent = max(r.seq for r in records if r.session == 1001)
    with Recording.open(path) as recording:
        assert 1001 not in {r.session for r in recording.tail(steps=200) if isinstance(r.message, Steps)}
        numbers = recording.last_numbers([1000, 1001, 4711])
        assert numbers == {1000: max(r.seq for r in records if r.session == 1000), 1001: silent}
        assert EarlierRun(path, None, recording).last_numbers() == numbers


def test_the_tail_of_a_restarted_run_does_not_go_back_to_its_start(path: Path) -> None:
    records = list(a_run(1000, ending=False))
    later = records[-1].t_ns
    for rank in range(2):
        again = hello(rank, 2, session=2000 + rank, incarnation=1, t_ns=later)
        records.append(Received(later, rank, 2000 + rank, 0, again))
    for first in range(0, 1000, 10):
        later += 10 * STEP_US * 1000
        records += [Received(later, k, 2000 + k, 1 + first // 10, steps(first, 10, k)) for k in range(2)]
    write(path, records)
    with Recording.open(path) as recording:
        rows = [r for r in recording.tail(steps=300) if isinstance(r.message, Steps)]
        assert {r.session for r in rows} == {2000, 2001}
        assert min(r.message.first_step for r in rows if isinstance(r.message, Steps)) >= 680
        begin, end = recording.span_of_step(500) or (0, 0)
        assert begin > records[-1].t_ns - 11 * NS, "the last time it came past that step"
        earlier = recording.span_of_step(500, before_ns=START_NS + 15 * NS)
        assert earlier is not None
        assert earlier[1] < begin <= end


def test_little_of_a_large_recording_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened, it costs its index; standing in the middle, a few blocks more."""
    writer = Writer(path, limit_bytes=GIB)
    chance = random.Random(1)  # what is random does not compress
    for number in range(4_100):
        cells = tuple(chance.randrange(limits.MAX_BUCKETS) for _ in range(3 * 200))
        message = Steps(1, number, START_NS, (steps(number, 1, 0).rows[0]._replace(cells=cells),))
        writer.add(Received(START_NS + number * NS // 10, 0, 1000, number + 1, message), encode(message))
    writer.close()
    size = path.stat().st_size
    read = 0
    pread = os.pread

    def counting(descriptor: int, count: int, offset: int) -> bytes:
        nonlocal read
        data = pread(descriptor, count, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    with Recording.open(path) as recording:
        assert size > 4 << 20
        assert read < size / 10
        list(zip(range(10), recording.records(from_ns=START_NS + 200 * NS), strict=False))
        list(recording.tail(before_ns=START_NS + 200 * NS, steps=100))
        assert read < size / 5


def test_a_growing_file_is_followed(path: Path) -> None:
    records = list(a_run(400))
    half = len(records) // 2
    writer = Writer(path, limit_bytes=GIB)
    for received in records[:half]:
        writer.add(received, encode(received.message))
    writer.flush()
    with Recording.open(path) as recording:
        cursor = recording.open_cursor()
        seen = []
        while (received := cursor.take_message()) is not None:
            seen.append(received)
        assert seen == records[:half]
        assert (recording.growing, recording.damage, recording.refresh()) == (True, None, False)
        for more in records[half:]:
            writer.add(more, encode(more.message))
            writer.flush()
        assert recording.refresh()
        writer.close()
        recording.refresh()
        while (received := cursor.take_message()) is not None:
            seen.append(received)
        assert seen == records
        assert (recording.growing, recording.damage, recording.last_step) == (False, None, 399)


def test_a_closed_recording_can_be_gone_on_with(path: Path) -> None:
    records = list(a_run(200))
    write(path, records[:30])
    writer = Writer(path, limit_bytes=GIB, resume=True)
    for received in records[30:]:
        writer.add(received, encode(received.message))
    writer.close()
    with Recording.open(path) as recording:
        assert list(recording.records()) == records
        assert recording.damage is None


def test_writing_is_due_after_a_quarter_of_a_second(path: Path) -> None:
    writer = Writer(path, limit_bytes=GIB)
    received = Received(START_NS, 0, 1000, 1, steps(0, 1, 0))
    writer.add(received, encode(received.message))
    writer.write_due(START_NS + NS // 5)
    assert writer.buffered > 0
    writer.write_due(START_NS + NS // 4)
    assert writer.buffered == 0
    assert path.stat().st_size > 100
    writer.close()
    size = path.stat().st_size
    writer.close()
    writer.add(received, encode(received.message))
    assert path.stat().st_size == size


def test_a_second_writer_is_refused(path: Path) -> None:
    writer = Writer(path, limit_bytes=GIB)
    with pytest.raises(RecordingError, match="another process"):
        Writer(path, limit_bytes=GIB, resume=True)
    writer.close()


def test_a_second_run_of_the_same_name_is_recorded_beside_the_first(path: Path) -> None:
    first = Record(path, limit_bytes=GIB, resume=False)
    second = Record(path, limit_bytes=GIB, resume=False)
    assert (first.path, second.path) == (path, path.with_stem(f"{path.stem}-2"))
    assert first.trouble_note is None and second.trouble_note is None
    for record in (first, second):
        record.close()


@pytest.mark.parametrize("allocates", [True, False], ids=["blocks", "a spare file"])
def test_without_space_at_the_start_no_empty_file_is_left(
    path: Path, monkeypatch: pytest.MonkeyPatch, allocates: bool
) -> None:
    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    def cannot_allocate(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "as NFS says")

    if not allocates:
        monkeypatch.setattr(disk, "allocate_blocks", cannot_allocate)
    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="No space"):
        Writer(path, limit_bytes=GIB)
    assert not path.exists()
    links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert not [link for link in links if path.name in link]


def test_a_recording_that_is_there_is_not_written_over_and_no_link_is_followed(path: Path) -> None:
    write(path, list(a_run(20)))
    before = path.read_bytes()
    link = path.with_name("link.ddptop")
    for target in (path, path.with_name("nowhere")):
        link.symlink_to(target)
        for resume in (False, True):
            with pytest.raises(OSError, match="symbolic links"):
                Writer(link, limit_bytes=GIB, resume=resume)
        link.unlink()
    with pytest.raises(FileExistsError):
        Writer(path, limit_bytes=GIB)
    assert path.read_bytes() == before
    assert not path.with_name("nowhere").exists()
    path.write_bytes(MAGIC)  # what a collector has left that was killed at its start
    Writer(path, limit_bytes=GIB).close()


def test_a_file_of_somebody_else_is_not_overwritten(path: Path) -> None:
    path.write_text("import torch\n")
    path.chmod(0o664)
    for resume in (False, True):
        with pytest.raises(RecordingError, match="not overwritten"):
            Writer(path, limit_bytes=GIB, resume=resume)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("import torch\n", 0o664)
    with pytest.raises(OSError):
        Writer(path.parent, limit_bytes=GIB)
    with pytest.raises(RecordingError, match="regular"):
        Writer(Path("/dev/full"), limit_bytes=GIB)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"import torch\n", "not a ddptop recording"),
        (MAGIC[:-1] + b"\x09", "format 9.*: install a newer ddptop"),
        (b"\x1f\x8b\x08\x00", "is compressed: unpack it first with gunzip"),
        (MAGIC, "empty"),
        (MAGIC + b"\x00" * 5000, "empty"),
    ],
)
def test_what_is_no_recording_is_said_in_a_line(path: Path, content: bytes, said: str) -> None:
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=said) as raised:
        Recording.open(path)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Recording.open(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        Recording.open(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordingError):
        Recording.open(tmp_path / "pipe")


def test_messages_of_a_later_version_are_passed_over(path: Path) -> None:
    writer = Writer(path, limit_bytes=GIB)
    bye = Received(START_NS, 0, 1000, 1, Bye(START_NS, "finished"))
    writer.add(bye, b"\x92\x63\x01")
    writer.add(bye, encode(bye.message))
    writer.add(Received(START_NS, 0, 1000, 0, hello(0, 1)), encode(hello(0, 1)))
    writer.close()
    with Recording.open(path) as recording:
        assert [type(r.message) for r in recording.records()] == [Bye, Hello]


def test_a_deleted_recording_is_written_anew_once(path: Path) -> None:
    records = list(a_run(400))
    half = len(records) // 2
    writer = Writer(path, limit_bytes=GIB)
    for received in records[:half]:
        writer.add(received, encode(received.message))
    writer.flush()
    writer.restore_if_deleted()
    assert writer.note is None
    path.unlink()
    writer.restore_if_deleted()
    assert (writer.removed, writer.note) == (
        False,
        "the recording was deleted while it was written, and has been written anew",
    )
    with pytest.raises(RecordingError, match="another process"):
        Writer(path, limit_bytes=GIB, resume=True)
    for received in records[half:]:
        writer.add(received, encode(received.message))
    writer.flush()
    with Recording.open(path) as recording:
        assert recording.growing
        assert list(recording.records()) == records
    path.unlink()
    writer.restore_if_deleted()
    assert writer.removed and "deleted" in str(writer.note)
    writer.add(records[0], encode(records[0].message))
    writer.close()
    assert not path.exists()


def test_a_deleted_recording_in_the_way_of_another_file_is_said_to_be_gone(path: Path) -> None:
    writer = Writer(path, limit_bytes=GIB)
    path.unlink()
    path.write_text("mine")
    writer.restore_if_deleted()
    writer.close()
    assert writer.removed and "nothing is recorded now: File exists" in str(writer.note)
    assert path.read_text() == "mine"


def test_a_file_in_the_place_of_the_recordings_folder_is_said_to_be_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    writer = Writer(folder / "run.ddptop", limit_bytes=GIB)
    (folder / "run.ddptop").unlink()
    folder.rmdir()
    folder.write_text("mine")
    writer.restore_if_deleted()
    writer.close()
    assert "nothing is recorded now: Not a directory" in str(writer.note)


def test_a_recording_deleted_in_the_last_moment_is_there_at_the_end(path: Path) -> None:
    records = list(a_run(40))
    writer = write(path, records, close=False)
    path.unlink()
    writer.close()
    with Recording.open(path) as recording:
        assert list(recording.records()) == records
