"""What a rank reads from disk, per step."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop.training import disk_reads
from ddptop.training.disk_reads import DiskReads


def test_what_was_read_is_divided_by_the_steps_since_the_reading_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disk_reads, "IO", tmp_path / "io")
    reads, readings = DiskReads(), []
    for step, n_bytes in [(3, 1_000), (7, 9_000), (7, 9_500), (9, 10_001), (10, 10_001)]:
        (tmp_path / "io").write_text(f"rchar: 77\nread_bytes: {n_bytes}\nwrite_bytes: 5\n")
        readings.append(reads.take_reading(step))
    assert [reading and reading.step_read_bytes for reading in readings] == [None, 2_000, None, 500, 0]


@pytest.mark.parametrize("text", [None, "", "rchar: 77\n", "read_bytes:", "read_bytes: many\n"])
def test_where_the_system_does_not_tell_nothing_is_sent(
    text: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disk_reads, "IO", tmp_path / "io")
    if text is not None:
        (tmp_path / "io").write_text(text)
    reads = DiskReads()
    assert [reads.take_reading(step) for step in (1, 2)] == [None, None]
