"""Runs incidents, and compares what is said of them at every moment with what the script did."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np

from ddptop.analysis.reducer import Reducer
from ddptop.frames.conditions import AlertKind
from ddptop.frames.frame import Frame
from ddptop.frames.verdict import verdict
from ddptop.host.runs import read_run_file
from ddptop.recording.reader import Recording
from ddptop.sources.live import LiveSource
from tests.processes import DDPTOP_RUN, environment, started, until
from tests.truth.incidents import Incident
from tests.truth.trials import Trials

SCRIPT = Path(__file__).parent / "incident_script.py"
STALL_S = 5
"""`--ddptop-stall`."""

DEADLINE_S = 400.0
"""Until a fault, or the end of a run."""

STEPS, EARLIEST, LATEST = 100_000, 60, 200
"""Steps of a run, and between which of them the fault is."""

LATER_STEP = 2_000
"""So many steps more are needed to compare with, where all ranks become slower."""

HEALTHY_STEPS = 400
"""Of a run without a fault, to its end."""

LOOK_NS = 250_000_000
"""Between two frames of a recording."""

AFTER_S = 2.0
"""A run goes on for so long after the first right verdict."""

WELL = frozenset({"starting", "waiting", "alone", "good", "even", "finished", "stale", "skew", "none"})
"""Kinds of a verdict that say nothing against any rank."""

GRAVE = frozenset(get_args(AlertKind)) - {
    *("loss_spread", "network", "disk", "lost_records", "recording", "refused_messages", "interruption")
}
"""Alerts that name a rank, or that something is wrong: all kinds but these."""


@dataclass(frozen=True)
class Said:
    """What a frame says."""

    unix_s: float
    ranks: tuple[int, ...]
    """That it sets apart; empty: none."""
    lines: tuple[str, ...]
    """Empty: nothing is wrong."""


def said(frame: Frame) -> Said:
    """Sentences, and the ranks that they are about."""
    alerts = [alert for alert in frame.alerts if alert.kind in GRAVE]
    asks = frame.stall is not None and frame.stall.kind == "asking"
    if asks:
        alerts = [alert for alert in alerts if alert.kind != "stall"]
    if not alerts and (frame.stall is None or asks):
        slower = [event.message for event in frame.events if event.kind == "slower"]
        return Said(frame.unix_s, (), tuple(slower))
    shown = verdict(frame)
    lines = [shown.sentence, shown.detail]
    if frame.stall is not None:
        lines += [frame.stall.sentence, *frame.stall.detail]
    for alert in alerts:
        calls = [str(value) for name, value in alert.evidence.items() if name.endswith("call") and value]
        lines += [alert.message, *calls]
    ranks = () if frame.stall is None or asks or frame.stall.kind == "dead" else frame.stall.ranks
    return Said(frame.unix_s, ranks or _first(alerts), tuple(filter(None, lines)))


def _first(alerts: list[Any]) -> tuple[int, ...]:
    """The rank of the alert that has the cause: a mismatch explains the death that it led to."""
    by_kind = {alert.kind: alert for alert in alerts}
    first = by_kind.get("mismatch") or (alerts[0] if alerts else None)
    return (first.rank,) if first is not None and first.rank is not None else ()


@dataclass
class Trial:
    """One run of one incident."""

    row: Incident
    rank: int
    skipped: str = ""
    right_rank: bool = False
    right_words: bool = False
    right_place: bool | None = None
    told_after_s: float | None = None
    """From the fault to the first frame that says all of it and names nobody else."""
    wrong_looks: int = 0
    """Frames after the fault that set another rank apart."""
    false_before: bool = False
    """Something was said before the fault, or in a run without one."""
    healthy_s: float = 0.0
    lines: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Rank, words and place."""
        return self.right_rank and self.right_words and self.right_place is not False


class Expected:
    """What is to be said of a trial."""

    def __init__(self, row: Incident, rank: int, step: int, stamp: dict[str, Any]) -> None:
        self.ranks = (rank,)
        others = " and ".join(str(one) for one in range(row.world) if one != rank)
        near = "|".join(f"{one:,}" for one in range(step - 16, step + 17))
        values = {"rank": str(rank), "others": others, "step": f"{step:,}", "near": f"({near})"}
        words = row.words
        for name, value in values.items():
            words = words.replace(f"{{{name}}}", value)
        self.words = re.compile(words)
        self.place = f"{SCRIPT.name}:{stamp['line']}" if row.place else None
        self.either = row.kind in ("order", "all")
        """No rank alone is at fault."""

    def rank_is(self, one: Said) -> bool:
        return self.either or one.ranks == self.ranks

    def words_are(self, one: Said) -> bool:
        return any(self.words.search(line) for line in one.lines)

    def place_is(self, one: Said) -> bool | None:
        return None if self.place is None else any(self.place in line for line in one.lines)

    def all_of(self, one: Said) -> bool:
        return self.rank_is(one) and self.words_are(one) and self.place_is(one) is not False


def run(row: Incident, folder: Path, seed: int) -> None:
    """One trial: its recording and stamps into the folder."""
    chance = Random(f"{row.name} {seed}")
    rank, step = chance.randrange(row.world), chance.randrange(EARLIEST, LATEST)
    spec = {"kind": row.kind, "rank": rank, "step": step, "steps": STEPS, "world": row.world}
    if row.group == "healthy":
        spec["steps"] = HEALTHY_STEPS
    if row.group == "slower":
        spec["step"] = step = LATER_STEP + step
    (folder / "spec.json").write_text(json.dumps(spec))
    options = ["--ddptop-record", str(folder / "run.ddptop"), "--ddptop-stall", str(STALL_S)]
    options += ["--standalone", "--nproc-per-node", str(row.world)]
    with tempfile.TemporaryDirectory() as home:
        env = environment(Path(home))
        with started([*DDPTOP_RUN, *options, str(SCRIPT), str(folder), json.dumps(spec)], env, folder) as ran:
            if row.group not in ("death", "healthy"):
                until(
                    lambda: (folder / "fault.json").exists() or ran.poll() is not None,
                    "the fault",
                    DEADLINE_S,
                )
                _watch(row, rank, step, folder, env, ran)
                (folder / "ended").write_text(str(time.time()))
            else:
                ran.communicate(timeout=DEADLINE_S)
    with suppress(OSError):
        Path((folder / "cgroup").read_text()).rmdir()


def _watch(row: Incident, rank: int, step: int, folder: Path, env: dict[str, str], ran: Any) -> None:
    """Until everything has been said for a while, or the run has ended, or it was waited long enough."""
    stamp = (
        json.loads((folder / "fault.json").read_text()) if (folder / "fault.json").exists() else {"line": 0}
    )
    expected, right_s, end = Expected(row, rank, step, stamp), None, time.monotonic() + row.most_s
    source = None
    try:
        while ran.poll() is None and time.monotonic() < (end if right_s is None else right_s + AFTER_S):
            files = [
                read_run_file(path.parent) for path in Path(env["XDG_RUNTIME_DIR"]).glob("ddptop/*/run.json")
            ]
            if source is None and files and files[0] is not None:
                source = LiveSource(files[0])
                source.start()
            frame = source.latest() if source is not None else None
            if right_s is None and frame is not None and expected.all_of(said(frame)):
                right_s = time.monotonic()
            time.sleep(0.2)
    finally:
        if source is not None:
            source.close()


def judge(row: Incident, folder: Path) -> Trial:
    """Compare a recording with its stamps."""
    spec = json.loads((folder / "spec.json").read_text())
    trial = Trial(row, spec["rank"])
    path = folder / "fault.json"
    stamp = json.loads(path.read_text()) if path.exists() else {"unix_s": float("inf"), "line": 0}
    ended = folder / "ended"
    until_s = float(ended.read_text()) if ended.exists() else float("inf")
    expected = Expected(row, spec["rank"], spec["step"], stamp)
    seen = looks(folder / "run.ddptop", until_s)
    before = [one for one in seen if one.unix_s < stamp["unix_s"]]
    after = [one for one in seen if one.unix_s >= stamp["unix_s"]]
    trial.false_before = any(one.lines for one in before)
    trial.healthy_s = len(before) * LOOK_NS / 1e9
    trial.lines = [line for one in before for line in one.lines][:3]
    if row.group == "healthy":
        return trial
    trial.wrong_looks = sum(
        bool(one.lines) and bool(one.ranks) and not expected.rank_is(one) for one in after
    )
    first = next((one for one in after if expected.all_of(one)), None)
    trial.told_after_s = None if first is None else first.unix_s - stamp["unix_s"]
    last = after[-1] if after else Said(0.0, (), ())
    trial.right_rank, trial.right_words = expected.rank_is(last), expected.words_are(last)
    trial.right_place = expected.place_is(last)
    trial.lines += list(last.lines)
    return trial


def looks(path: Path, until_s: float) -> list[Said]:
    """What is said every LOOK_NS of a recording up to a time, and at its end if that is before."""
    reducer, due, seen = Reducer(), 0, list[Said]()
    with Recording.open(path) as recording:
        for received in recording.records():
            due = due or received.t_ns
            while due <= received.t_ns:
                seen.append(said(reducer.frame(due)))
                if seen[-1].unix_s > until_s:
                    return seen[:-1]
                due += LOOK_NS
            reducer.feed(received)
            newest = received.t_ns
        return [*seen, said(reducer.frame(newest))]


COLUMNS = (
    ("row", 20),
    ("trials", 7),
    ("rank", 7),
    ("cause", 7),
    ("file:line", 10),
    ("all told after s", 17),
    ("wrong", 6),
    ("flagged before", 14),
)

LEGEND = f"""\
rank, cause, file:line: trials in which the last frame names exactly the drawn rank, says what was done, and
  has the script's own line; all told after: seconds from the fault to the first frame with all of it,
  median and largest, with --ddptop-stall {STALL_S}; wrong: frames, {LOOK_NS / 1e9:g} s apart, after the fault
  that name another rank; flagged before: trials in which anything was said before the fault"""


def heading() -> str:
    """The names of the columns."""
    return _aligned([name for name, _ in COLUMNS])


def line(row: Incident, trials: list[Trial]) -> str:
    """A row's line."""
    made = [one for one in trials if not one.skipped]
    count = len(made)
    if not made:
        return _aligned([row.name, f"skipped: {trials[0].skipped}", *[""] * 6])
    told = [one.told_after_s for one in made if one.told_after_s is not None]
    faults = row.group != "healthy"
    cells = [
        row.name,
        str(count),
        f"{sum(one.right_rank for one in made)}/{count}" if faults else "-",
        f"{sum(one.right_words for one in made)}/{count}" if faults else "-",
        f"{sum(bool(one.right_place) for one in made)}/{count}" if row.place and faults else "-",
        f"{np.median(told):.1f}, {max(told):.1f}" if told else "-",
        str(sum(one.wrong_looks for one in made)),
        f"{sum(one.false_before for one in made)}/{count}",
    ]
    return _aligned(cells)


def _aligned(cells: list[str]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True)).rstrip()


def together(trials: list[Trial]) -> str:
    """Recall and precision of all trials."""
    made = [one for one in trials if not one.skipped]
    faults = [one for one in made if one.row.group != "healthy"]
    right = sum(one.right for one in faults)
    wrong = sum(not one.right_rank and bool(one.lines) for one in faults)
    false = sum(one.false_before for one in made)
    precision = right / (right + wrong + false) if right else 0.0
    recall = right / len(faults) if faults else 0.0
    healthy_s = sum(one.healthy_s for one in made)
    return (
        f"{right} of {len(faults)} faults right in every respect (recall {recall:.3f}); "
        f"{wrong} with a wrong rank, {false} flags in {len(made)} stretches without a fault, "
        f"{healthy_s:.0f} s together (precision {precision:.3f})"
    )


def why_not(row: Incident) -> str:
    """Why this machine cannot have such an incident; empty: it can."""
    if row.kind == "memory" and not os.access("/sys/fs/cgroup/memory", os.W_OK):
        return "no memory cgroup can be made here"
    return ""


def show(rows: list[Incident], trials: Trials) -> None:
    """Run the rows and print a line of each."""
    print(f"{LEGEND}\n{heading()}", flush=True)
    made: list[Trial] = []
    for row in rows:
        if reason := why_not(row):
            mine = [Trial(row, 0, skipped=reason)]
        else:
            mine = [judge(row, folder) for folder in trials.of(row.name, partial(run, row))]
        print(line(row, mine), flush=True)
        for one in mine:
            if not one.skipped and (one.false_before or (row.group != "healthy" and not one.right)):
                print(f"  rank {one.rank}: " + " / ".join(one.lines or ["nothing"]), flush=True)
        made += mine
    print(together(made))
