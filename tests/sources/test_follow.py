"""A recording that a collector on another host writes: no lock is seen here, and the size lags behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop.protocol.codec import encode
from ddptop.recording import index
from ddptop.recording.reader import Recording
from ddptop.recording.writer import Writer
from ddptop.sources.replay import ReplaySource
from tests.made_up_run import GIB, a_run
from tests.processes import until


class FarWriter:
    """Writes a recording elsewhere; `arrive` shows here what a network file system has of it."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / "here.ddptop"
        self.records = list(a_run(400))
        self._there = folder / "there.ddptop"
        self._writer = Writer(self._there, limit_bytes=GIB)
        self._written = 0

    def write(self, share: float) -> None:
        """Up to this share of the run; at 1 the file is closed."""
        end = int(share * len(self.records))
        for received in self.records[self._written : end]:
            self._writer.add(received, encode(received.message))
            self._writer.flush()
        self._written = end
        if share == 1.0:
            self._writer.close()

    def arrive(self, *, but_bytes: int = 0) -> None:
        """All that was written, except so many bytes at the end."""
        data = self._there.read_bytes()
        known = self.here.stat().st_size if self.here.exists() else 0
        with self.here.open("ab") as file:
            file.write(data[known : len(data) - but_bytes])


@pytest.fixture
def far(tmp_path: Path) -> FarWriter:
    made = FarWriter(tmp_path)
    made.write(0.3)
    made.arrive(but_bytes=5)  # the last frame is not whole
    return made


def test_a_file_without_a_lock_is_followed_until_it_is_closed(far: FarWriter) -> None:
    source = ReplaySource(far.here, follow=True)
    source.start()
    try:

        def step() -> int:
            frame = source.latest()
            return -1 if frame is None or frame.group.step is None else frame.group.step

        first = int(str(until(lambda: max(0, step()), "a step")))
        assert source.latest().run.state != "lost"  # type: ignore[union-attr]
        far.write(0.6)
        far.arrive(but_bytes=7)
        until(lambda: step() > first, "later steps")
        frame = source.latest()
        assert frame is not None and frame.playback is not None and frame.playback.growing
        far.write(1.0)
        far.arrive()
        until(lambda: source.latest().run.state == "finished", "the end")  # type: ignore[union-attr]
        assert step() == 399
        until(lambda: not source.latest().playback.growing, "no more to come")  # type: ignore[union-attr]
    finally:
        source.close()


def test_a_file_that_stopped_growing_counts_as_lost_and_is_watched_on(
    far: FarWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Recording.open(far.here) as plain:
        assert not plain.growing
        assert not plain.may_grow
    with Recording.open(far.here, follow=True) as followed:
        assert followed.growing
        assert followed.damage is None
        monkeypatch.setattr(index, "QUIET_S", 0.0)
        followed.refresh()
        assert not followed.growing
        assert followed.may_grow
        monkeypatch.undo()
        far.write(1.0)
        far.arrive()
        assert followed.refresh()
        assert (followed.growing, followed.may_grow, followed.damage) == (False, False, None)
