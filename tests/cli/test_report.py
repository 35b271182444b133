"""`ddptop report` over recordings: the page, the JSON, and what it says of what is not whole."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.cli import find
from ddptop.cli.main import main
from ddptop.frames.frame import Frame
from ddptop.frames.overhead import MeasuredCost
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.messages import CODES, Phase, Received, Run, Steps
from ddptop.recording.format import MAGIC, BlockEntry
from ddptop.recording.reader import Recording
from ddptop.recording.records import BlockReader, Selector
from ddptop.report import build
from ddptop.report.build import read_report
from ddptop.report.check import figures_of_report
from ddptop.report.content import Report
from ddptop.report.sampling import MIN_SAMPLES
from ddptop.report.sentences import footing_lines
from ddptop.report.text import text_page
from tests.made_up_run import LATE_US, STEP_US, World, a_run, progress, write, write_recording
from tests.processes import until

NS = 1_000_000_000
STEPS = 300


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "train-k7qf.ddptop"
    write_recording(path, count=STEPS)
    return path


def report_of(path: Path) -> Report:
    with Recording.open(path) as recording:
        return read_report(recording)


def test_a_page_tells_who_why_and_what_it_cost(ddptop, recording: Path) -> None:
    done = ddptop("report", str(recording))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines[:-1])) <= 80  # the last one is the path, which is never cut
    assert len(lines) <= 85  # the bill is a third of them
    assert lines[0] == "ddptop report train-k7qf   ✓ FINISHED"
    assert "2 ranks on node0 · gloo" in lines[1]
    assert "300 steps · exit code 0" in lines[2]
    lost_s = STEPS * LATE_US / 1e6
    share = 100 * LATE_US // STEP_US
    assert lines[4] == f"▲ rank 1 was slow: data loading · cost {lost_s:.1f} s, {share}% of the time in steps"
    assert any(line.startswith("step ms") and "█" in line for line in lines)
    assert any(line.startswith("slow rank") and "111" in line for line in lines)
    assert any(line.startswith("cost %") and "-" in line.split()[-1] for line in lines)
    assert any(line.split()[:1] == ["1"] and "5.0 ±0.1" in line for line in lines)
    assert "1 Speed up the data loading of rank 1" in done.stdout
    assert f"all {STEPS} steps read · 0 records missing" in done.stdout
    assert "\x1b" not in done.stdout


def test_what_ddptop_took_is_not_told_where_the_run_was_too_short_to_know_it(recording: Path) -> None:
    report = report_of(recording)
    costs = [
        replace(report, overhead=replace(report.overhead, measured_pct=measured_pct))
        for measured_pct in (0.4, None)
    ]
    assert ["ddptop took" in footing_lines(cost)[0] for cost in costs] == [True, False]
    assert [figures_of_report(cost)["own_cost_pct"] for cost in costs] == [0.4, None]


@pytest.mark.parametrize(("high", "taken_pct"), [(1.9, 1.4), (9.0, 0.4)])
def test_check_takes_what_the_screen_says_that_ddptop_costs(
    recording: Path, high: float, taken_pct: float
) -> None:
    """What is measured, once its interval is narrow, and what is counted before."""
    report, measured = report_of(recording), MeasuredCost(1.4, 0.9, high, 20)
    overhead = replace(report.overhead, measured_pct=0.4, measured=measured)
    assert figures_of_report(replace(report, overhead=overhead))["own_cost_pct"] == taken_pct
    assert overhead.phrase.startswith(f"{taken_pct}%")


def test_ascii_is_ascii_and_no_wider(ddptop, recording: Path) -> None:
    text = ddptop("report", str(recording), "--ascii").stdout
    assert text.isascii()
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert "step ms   ####" in text


def test_json_is_the_same_as_data(ddptop, recording: Path) -> None:
    done = ddptop("report", str(recording), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["schema"], found["source"]) == (1, "recording")
    assert found["run"]["recording"] == str(recording)
    assert found["stragglers"][0]["cause"] == "data"
    assert found["cost"]["flagged_s"] == pytest.approx(STEPS * LATE_US / 1e6, rel=0.01)
    assert found["reading"]["whole"] is True


def test_a_run_is_found_by_how_its_name_begins(ddptop, tmp_path: Path) -> None:
    state = tmp_path / "state" / "ddptop"
    state.mkdir(mode=0o700)
    write_recording(state / "train-k7qf.ddptop", run_id="beef01")
    write_recording(state / "other-a2a2.ddptop", run_id="cafe02")
    for word in ("tr", "beef01"):
        assert ddptop("report", word).stdout.startswith("ddptop report train-k7qf")


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("nothing", 3, "no run is called"),
        ("nothing.ddptop", 3, "no such file"),
        ("./", 3, "folder"),
        ("text", 3, "not a ddptop recording"),
        ("empty.ddptop", 3, "empty"),
    ],
)
def test_mistakes_are_one_line(ddptop, tmp_path: Path, word: str, code: int, said: str) -> None:
    (tmp_path / "text").write_text("this is no recording\n" * 100)
    (tmp_path / "empty.ddptop").touch()
    done = ddptop("report", word)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["report", "--html", "{}"],  # FILE is taken for the recording
        ["report", "{}", "--html", "{}"],
        ["check", "{}", "--against", "{}", "--junit", "{}"],
        ["export", "{}", "--to", "json", "-o", "{}", "--force"],
    ],
)
def test_no_command_writes_over_a_recording(
    recording: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = recording.read_bytes()
    assert main([word.format(recording) for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"ddptop: {recording} is a recording, which is not replaced: ")
    assert recording.read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_page_that_cannot_be_written_is_one_line(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(recording), "--html", "/dev/full"]) == 1
    assert capsys.readouterr() == ("", "ddptop: /dev/full: No space left on device\n")


def test_a_page_that_may_not_be_written_is_refused(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, _text: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("ddptop.cli.commands.report.write_text", refuse)
    assert main(["report", str(recording), "--html", "/there/x.html"]) == 4
    assert capsys.readouterr() == ("", "ddptop: /there/x.html: permission denied\n")


def test_a_recording_cut_off_in_the_middle(tmp_path: Path) -> None:
    cut = tmp_path / "cut.ddptop"
    write_recording(cut, count=2000)
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    found = report_of(cut)
    text = text_page(found, 80)
    assert 0 < found.reading.steps < 1500
    assert found.stragglers[0].rank == 1
    assert "✖ LOST" in text
    assert "how the run ended is unknown" in text
    assert "damage: " in text


def test_a_thinned_recording_says_how_little_was_compared(tmp_path: Path) -> None:
    path = tmp_path / "thin.ddptop"
    write(path, a_run(6000), limit_bytes=80_000)
    found = report_of(path)
    assert found.reading.steps > found.reading.read_steps
    assert (found.reading.judged_pct or 0) < 40
    assert found.verdict[-1].kind == "little_judged"
    assert all(rank.lost_records == 0 for rank in found.ranks)
    assert "Raise --ddptop-record-limit" in text_page(found, 80)


def test_one_rank_and_no_step(tmp_path: Path) -> None:
    write(tmp_path / "one.ddptop", a_run(50, world=1))
    write(tmp_path / "none.ddptop", a_run(0))
    assert "one rank: no other rank to wait for" in text_page(report_of(tmp_path / "one.ddptop"), 80)
    text = text_page(report_of(tmp_path / "none.ddptop"), 80)
    assert "no step was finished by all 2 ranks: nothing can be measured" in text
    assert "nan" not in text.lower()
    assert "None" not in text


def test_a_run_without_a_step_is_not_told_to_shorten_its_start(tmp_path: Path) -> None:
    world = World(2, now_us=60_000_000)
    ends = [world.bye(rank) for rank in range(2)]
    write(tmp_path / "none.ddptop", [world.run(), *world.introduce(), *ends, world.run("failed", 1)])
    found = report_of(tmp_path / "none.ddptop")
    assert found.ledger is not None
    assert found.ledger.seconds_of("start").sum() > 100.0
    text = text_page(found, 80)
    assert "Shorten the start" not in text
    assert "start-up (100% less)" not in text


def test_a_run_of_which_no_rank_reported_says_so(tmp_path: Path) -> None:
    write(tmp_path / "none.ddptop", [World(0).run(), World(0).run("finished", 0)])
    assert "no rank has reported: nothing can be measured" in text_page(
        report_of(tmp_path / "none.ddptop"), 80
    )


def test_a_simulated_run_says_so(tmp_path: Path) -> None:
    records = [
        r._replace(message=replace(r.message, simulated=True)) if isinstance(r.message, Run) else r
        for r in a_run(50)
    ]
    write(tmp_path / "sim.ddptop", records)
    assert "SIMULATED" in text_page(report_of(tmp_path / "sim.ddptop"), 80).splitlines()[0]


@pytest.mark.slow
def test_of_a_long_recording_stretches_tell_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.ddptop"
    write(path, a_run(12_000, buckets=1, batch=25, event_at=7_777))
    whole = report_of(path)
    monkeypatch.setattr(build, "WHOLE_ROWS", 1000)
    monkeypatch.setattr(build, "STRETCH_ROWS", 0)
    part = report_of(path)
    assert not part.reading.whole
    assert part.reading.read_steps < 0.7 * whole.reading.read_steps
    assert part.reading.steps == whole.reading.steps == 12_000
    assert part.cost.flagged_s == pytest.approx(whole.cost.flagged_s, rel=0.02)
    assert [one.rank for one in part.stragglers] == [1]
    assert not part.stalls
    assert all(rank.lost_records == 0 for rank in part.ranks)
    assert "mute" in [one.kind for one in part.events]
    assert "evenly spread; all events" in " ".join(text_page(part, 80).split())


def with_a_stall(messages: list[Received], at: int, seconds: int) -> Iterator[Received]:
    """The run stands still before message `at` and after: only heartbeats, and a question after 15 s."""
    pause_ns = seconds * NS
    yield from messages[:at]
    t_ns = messages[at - 1].t_ns
    done = {r.rank: r.message for r in messages[:at] if isinstance(r.message, Steps)}
    for second in range(1, seconds):
        for rank, last in done.items():
            step = last.first_step + len(last.rows)
            beat = progress(t_ns + second * NS, step, phase=Phase.FORWARD, bucket=0)
            yield Received(beat.t_ns, rank, 1000 + rank, 0, beat)
            if second == 16:
                said = Evidence(beat.t_ns, 7, step, 2, 0, "", (), (), ())
                yield Received(beat.t_ns, rank, 1000 + rank, 5_000_000, said)
    for r in messages[at:]:
        later = r.message
        if isinstance(later, Steps):
            later = replace(later, base_ns=later.base_ns + pause_ns)
        yield r._replace(t_ns=r.t_ns + pause_ns, message=later)


def test_stretches_do_not_miss_a_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stall.ddptop"
    messages = list(a_run(4_000, buckets=1, batch=25))
    write(path, with_a_stall(messages, 333, seconds=40))
    monkeypatch.setattr(build, "WHOLE_ROWS", 1000)
    monkeypatch.setattr(build, "STRETCH_ROWS", 0)
    found = report_of(path)
    assert not found.reading.whole
    (stall,) = found.stalls
    assert stall.lasted_s == pytest.approx(40, abs=2)
    assert found.cost.step_s == pytest.approx(4_000 * 0.02, rel=0.05)


def test_around_exits_fewer_blocks_are_read_than_around_stalls(tmp_path: Path) -> None:
    messages = [*a_run(20_000, buckets=1, batch=25)]
    blocks_read = {}
    for number in (0, 7):  # sent by a rank at its exit, in answer to an ASK
        path = tmp_path / f"{number}.ddptop"
        records = []
        for place, received in enumerate(messages):
            records.append(received)
            if place % 200 == 8 and isinstance(received.message, Steps):
                said = Evidence(received.t_ns, number, received.message.first_step, 2, 0, "", (), (), ())
                records.append(received._replace(seq=received.seq + 5_000_000, message=said))
        write(path, records)
        with Recording.open(path) as recording:
            blocks_read[number] = sum(len(blocks) for blocks in build.choose_stretches(recording, 20))
    assert blocks_read[0] + 20 < blocks_read[7]


def test_a_stretch_goes_on_to_where_all_ranks_have_sent_a_message_of_many_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "WHOLE_ROWS", 1000)
    path = tmp_path / "run.ddptop"
    messages = [*a_run(960, world=32, batch=96, buckets=1)]
    # All ranks' last messages have arrived at one moment, in several blocks.
    write(path, [*messages[:-65], *(r._replace(t_ns=messages[-1].t_ns) for r in messages[-65:])])
    reading = report_of(path).reading
    assert (reading.whole, reading.steps) == (False, 960)
    assert reading.read_steps >= 900  # 576 where it ends at the steps of the first ranks


def test_magic_is_what_makes_a_recording(ddptop, tmp_path: Path) -> None:
    (tmp_path / "future.ddptop").write_bytes(MAGIC[:-1] + bytes([MAGIC[-1] + 1]) + b"x" * 100)
    done = ddptop("report", "future.ddptop")
    assert done.returncode == 3
    assert "format" in done.stderr


@pytest.mark.parametrize("whole_rows", [0, pytest.param(10**9, marks=pytest.mark.slow)])
def test_no_block_is_read_twice_and_frames_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_rows: int
) -> None:
    """Neither where all is read nor where stretches are: with many ranks the reading is all the time."""
    path = tmp_path / "run.ddptop"
    write(path, a_run(2000))
    monkeypatch.setattr(build, "WHOLE_ROWS", whole_rows)
    # Only recordings of earlier versions, without sums of the ledger, are read a second time for it.
    monkeypatch.setattr(build, "SUMMED_ROWS", 0)
    blocks: list[int] = []
    frames: list[int] = []
    read_block, whole_block, frame = BlockReader.read_messages, BlockReader.read_raw, Reducer.frame

    def counted_read(reader: BlockReader, entry: BlockEntry, selects: Selector) -> list[Received]:
        if selects(CODES[Steps]):
            blocks.append(entry.offset)
        return read_block(reader, entry, selects)

    def counted_whole(reader: BlockReader, entry: BlockEntry) -> list[Any] | None:
        blocks.append(entry.offset)
        return whole_block(reader, entry)

    def counted_frame(reducer: Reducer, now_ns: int, **options: Any) -> Frame:
        frames.append(now_ns)
        return frame(reducer, now_ns, **options)

    monkeypatch.setattr(BlockReader, "read_messages", counted_read)
    monkeypatch.setattr(BlockReader, "read_raw", counted_whole)
    monkeypatch.setattr(Reducer, "frame", counted_frame)
    report_of(path)
    assert len(blocks) == len(set(blocks)) > 10
    assert len(frames) <= 2 * MIN_SAMPLES + 4


class Terminal(io.StringIO):
    """Of 80 columns: it does not tell its size."""

    def isatty(self) -> bool:
        return True


def show_progress_at_once(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """On this terminal; called by the test itself, since pytest sets stderr anew after the fixtures."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(find, "PATIENCE_S", 0.0)
    monkeypatch.setattr(find, "RENEW_S", 0.01)
    return terminal


def test_reading_that_takes_long_is_announced_on_a_terminal_and_erased(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = show_progress_at_once(monkeypatch)
    with find.read_whole(recording):
        until(lambda: re.search(r"reading train-k7qf.ddptop \[#* *\] \d+%", terminal.getvalue()), "a bar")
    assert terminal.getvalue().endswith("\r\x1b[K")
    with find.progress_shown("merging 2 recordings"):
        until(lambda: re.search(r"merging 2 recordings \d+ s", terminal.getvalue()), "the seconds")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_progress_of_a_long_name_stays_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that wraps is not replaced by the next one: the terminal would fill with bars."""
    terminal = show_progress_at_once(monkeypatch)
    with find.progress_shown(f"exporting {'long-name-' * 8}.ddptop", lambda: 0.42):
        until(lambda: terminal.getvalue().count("%") > 1, "two bars")
    for line in terminal.getvalue().split("\r\x1b[K")[1:-1]:
        assert line.startswith("exporting long-name-long") and line.endswith("… [########            ] 42%")
        assert len(line) < 80
