"""`ddptop rm` and `ddptop prune`: what goes, what stays, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddptop.cli.main import main
from ddptop.recording.writer import Writer
from tests.made_up_run import write_recording

DAY_S = 86_400


@pytest.fixture
def recordings(home_here: Path) -> Path:
    """The state folder with recordings `a`, `ab` and `c`, written 30, 20 and 10 days after the epoch."""
    folder = home_here / "state" / "ddptop"
    folder.mkdir(mode=0o700)
    for name, days in (("a", 30), ("ab", 20), ("c", 10)):
        path = folder / f"{name}.ddptop"
        write_recording(path)
        os.utime(path, (days * DAY_S, days * DAY_S))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(".ddptop") for path in folder.iterdir())


def test_rm_removes_by_whole_name_unique_beginning_and_path(
    recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rm", "a"]) == 0
    assert names(recordings) == ["ab", "c"]
    assert main(["rm", "a", str(recordings / "c.ddptop")]) == 0
    assert names(recordings) == []
    assert capsys.readouterr().out.count("removed") == 3


def test_rm_removes_nothing_where_one_word_is_wrong(
    recordings: Path, live_run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rm", "c", "nobody"]) == 3
    (recordings / "abc.ddptop").write_bytes(b"")
    assert main(["rm", "ab", "abx"]) == 3
    (recordings / "a.ddptop").rename(recordings / "abd.ddptop")
    (recordings / "ab.ddptop").unlink()
    assert main(["rm", "ab"]) == 3
    assert "several recordings match 'ab'" in capsys.readouterr().err
    live_run("run", "aa11", recording=str(recordings / "c.ddptop"))
    assert main(["rm", "run"]) == 1
    assert main(["rm", str(recordings / "c.ddptop")]) == 1
    assert "run is live" in capsys.readouterr().err
    assert names(recordings) == ["abc", "abd", "c"]


def test_rm_removes_only_recordings_and_follows_no_link(recordings: Path, tmp_path: Path) -> None:
    precious = tmp_path / "model.pt"
    precious.write_bytes(b"weights")
    link = tmp_path / "link.ddptop"
    link.symlink_to(recordings / "a.ddptop")
    assert main(["rm", str(precious)]) == 3
    assert main(["rm", str(link)]) == 3
    assert precious.exists() and link.is_symlink() and names(recordings) == ["a", "ab", "c"]


def test_prune_removes_what_both_options_give_up(
    recordings: Path, live_run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 31.0 * DAY_S)
    assert main(["prune"]) == 2
    assert main(["prune", "--keep", "0", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("would remove") == 3
    assert main(["prune", "--older-than", "15d", "--keep", "3"]) == 0
    assert names(recordings) == ["a", "ab", "c"]
    assert main(["prune", "--older-than", "15d"]) == 0
    assert names(recordings) == ["a", "ab"]
    live_run("run", "aa11", recording=str(recordings / "ab.ddptop"))
    assert main(["prune", "--keep", "1"]) == 0
    assert names(recordings) == ["a", "ab"], "one is kept, the other is being written"
    assert main(["prune", "--keep", "0"]) == 0
    assert names(recordings) == ["ab"]


def test_a_recording_that_a_collector_holds_is_left_whatever_path_leads_to_it(
    recordings: Path, live_run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live_run("run", "aa11", recording=str(recordings / "a.ddptop"))
    linked = tmp_path / "link"
    linked.symlink_to(recordings)
    writers = [Writer(recordings / f"{name}.ddptop", limit_bytes=1 << 20, resume=True) for name in ("a", "c")]
    try:
        assert main(["rm", str(linked / "a.ddptop")]) == 1
        assert main(["rm", "c"]) == 1, "its collector is just being started again"
        assert "is being written" in capsys.readouterr().err
        assert main(["prune", "--keep", "0"]) == 0
        assert names(recordings) == ["a", "c"]
    finally:
        for writer in writers:
            writer.close()


def test_rm_takes_the_dumps_that_ddptop_kept_along_and_nothing_else(
    recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, mixed = recordings / "a.ddptop.flight", recordings / "c.ddptop.flight"
    for folder in (own, mixed):
        folder.mkdir(mode=0o700)
        (folder / "ddptop_gloo_rank_0").touch()
    (mixed / "model_rank_0").touch()
    assert main(["rm", "a", "c"]) == 0
    assert not own.exists()
    assert [path.name for path in mixed.iterdir()] == ["model_rank_0"]
    assert f"{mixed} is left" in capsys.readouterr().err
