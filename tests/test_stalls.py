"""A run that stands still says within seconds who is missing and where, and goes on as if nobody had
looked.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddptop.frames.snapshot import snapshot
from tests.processes import DDPTOP, DDPTOP_RUN, TORCHRUN, environment, run, run_plain, started, until
from tests.recording.replays import frame_at

pytestmark = pytest.mark.slow  # two real stalls, one of them for half a minute

SCRIPT = Path(__file__).parent / "scripts" / "troubled.py"
STEP = 40
"""At which the script gets into trouble."""
STEPS = 400
WITHIN_S = 20.0
"""From the beginning of a stall to its verdict, at the default --ddptop-stall of 15 seconds."""


@dataclass
class Watched:
    """A run, and looks at it while it lives."""

    home: Path
    env: dict[str, str]
    process: subprocess.Popen[str]

    def look(self) -> dict[str, Any]:
        """The present snapshot; one with nothing in it before there is a run."""
        done = run([*DDPTOP, "troubled", "--json"], self.env, self.home)
        return json.loads(done.stdout) if done.returncode == 0 else {"stall": None, "group": {"step": None}}

    def verdict(self, since: float) -> dict[str, Any]:
        """The snapshot with the first whole verdict, which must come in time; `since` in Unix seconds."""

        last: list[dict[str, Any]] = []
        began: list[float] = []

        def judged() -> bool:
            began.append(time.time())
            last.append(self.look())
            stall = last[-1]["stall"]
            return stall is not None and all(told(stall, rank) for rank in stall["ranks"] or [-1])

        try:
            until(judged, "a verdict")
        finally:
            print(f"{time.time() - since:.1f} s after its beginning: {json.dumps(last[-1]['stall'])}")
        # When this look began, not when it was over: it takes seconds on a busy machine.
        assert began[-1] - since < WITHIN_S + 2
        return last[-1]

    def goes_on(self, step: int) -> dict[str, Any]:
        """The first snapshot past `step` without a stall."""
        last: list[dict[str, Any]] = []

        def moved() -> bool:
            last.append(self.look())
            return last[-1]["stall"] is None and (last[-1]["group"]["step"] or 0) > step

        until(moved, f"a step after {step}, and no stall")
        return last[-1]


@contextmanager
def watched_run(home: Path, trouble: str, *options: str) -> Iterator[Watched]:
    """A run under ddptop-run. Ranks are in sessions of their own: one that hangs is killed by itself."""
    env = environment(home)
    with started(command(home, trouble, STEPS, *options), env, home) as process:
        try:
            yield Watched(home, env, process)
        finally:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()


def command(home: Path, trouble: str, steps: int, *options: str) -> list[str]:
    words = ["--standalone", "--nproc-per-node", "2", str(SCRIPT), trouble, str(steps), str(home)]
    recorded = ["--ddptop-name", "troubled", "--ddptop-record", str(home / "run.ddptop")]
    return [*DDPTOP_RUN, *recorded, *options, *words]


def begun(home: Path) -> float:
    """When the script got into trouble, in Unix seconds; waits for it."""
    mark = home / "trouble"
    until(mark.exists, "the trouble")
    return mark.stat().st_mtime


def told(stall: dict[str, Any], rank: int) -> bool:
    """Whether the rank has answered, or it is known why it cannot."""
    return any(
        one["rank"] == rank and (one["at_s"] is not None or one["process"] == "stopped")
        for one in stall["positions"]
    )


def one_of(stall: dict[str, Any], rank: int) -> dict[str, Any]:
    return next(one for one in stall["positions"] if one["rank"] == rank)


@pytest.fixture(scope="module")
def slept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run whose rank 1 sleeps in `tokenize`, is let go on, is stopped from outside, and let go on again."""
    home = tmp_path_factory.mktemp("slept")
    seen: dict[str, Any] = {"home": home}
    with watched_run(home, "asleep") as watched:
        seen["asleep"] = watched.verdict(begun(home))
        (home / "go").touch()
        seen["awake"] = watched.goes_on(STEP + 10)
        pid = int(seen["awake"]["ranks"][1]["pid"])
        assert psutil.Process(pid).ppid() == watched.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            seen["stopped"] = watched.verdict(time.time())
        finally:
            os.kill(pid, signal.SIGCONT)
        _, seen["err"] = watched.process.communicate(timeout=120)
        seen["code"] = watched.process.returncode
    return seen


def test_a_rank_asleep_in_user_code_is_missing_and_its_function_named(slept: dict[str, Any]) -> None:
    stall = slept["asleep"]["stall"]
    assert (stall["kind"], stall["ranks"], stall["waiting"], stall["step"]) == ("missing", [1], [0], STEP)
    call = one_of(stall, 1)["user_call"]
    assert (call["function"], Path(call["file"]).name) == ("tokenize", SCRIPT.name)
    assert "tokenize" in "\n".join(stall["detail"])
    assert [alert["rank"] for alert in slept["asleep"]["alerts"] if alert["kind"] == "stall"] == [1]
    assert slept["asleep"]["run"]["state"] == "stalled"


def test_so_is_a_rank_that_was_stopped_and_it_is_said_to_be(slept: dict[str, Any]) -> None:
    stall = slept["stopped"]["stall"]
    assert (stall["kind"], stall["ranks"]) == ("missing", [1])
    assert one_of(stall, 1)["process"] == "stopped"
    assert "SIGSTOP" in "\n".join(stall["detail"])


def test_training_goes_on_after_both_as_if_nothing_had_been(slept: dict[str, Any], tmp_path: Path) -> None:
    assert slept["code"] == 0, slept["err"]
    assert slept["awake"]["run"]["state"] == "live"
    words = ["--standalone", "--nproc-per-node", "2", str(SCRIPT), "none", str(STEPS), str(tmp_path)]
    plain = run_plain([*TORCHRUN, *words], environment(tmp_path), tmp_path)
    assert plain.returncode == 0, plain.stderr
    for rank in range(2):
        ours, theirs = (folder / f"weights-{rank}.pt" for folder in (slept["home"], tmp_path))
        assert ours.read_bytes() == theirs.read_bytes()


def test_a_replay_shows_the_stall_at_its_step_and_not_at_the_end(slept: dict[str, Any]) -> None:
    recording = slept["home"] / "run.ddptop"
    then = snapshot(frame_at(recording, STEP - 1))["stall"]
    assert isinstance(then, dict)
    assert (then["kind"], then["ranks"]) == ("missing", [1])
    assert one_of(then, 1)["user_call"]["function"] == "tokenize"
    assert snapshot(frame_at(recording, None))["stall"] is None


def test_a_rank_that_left_out_a_collective_is_a_mismatch_with_both_sides_shown(tmp_path: Path) -> None:
    with watched_run(tmp_path, "barrier", "--ddptop-stall", "5") as watched:
        stall = watched.verdict(begun(tmp_path))["stall"]
        (words,) = until(lambda: analysers_words(watched), "the words of torch's analyser")  # type: ignore[misc]
    assert stall["kind"] == "mismatch", stall
    assert "barrier" in stall["sentence"] and "all_reduce" in stall["sentence"], stall["sentence"]
    operations = {one["rank"]: one["operation"] for one in stall["positions"]}
    assert "barrier" in operations[0] and "all_reduce" in operations[1]
    assert words.startswith("torch's analyser: rank ")
    assert "barrier" in words and "all_reduce" in words, words
    by_hand = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
    kept = tmp_path / "run.ddptop.flight"
    done = run([*by_hand, "--allow-incomplete-ranks", str(kept)], environment(tmp_path), tmp_path)
    assert "COLLECTIVE_TYPE_MISMATCH" in done.stderr, done.stderr


def analysers_words(watched: Watched) -> list[str]:
    stall = watched.look()["stall"]
    return [line for line in stall["detail"] if "analyser" in line] if stall is not None else []


def ended(home: Path, trouble: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """A run that ended in trouble, and what its recording shows at the end."""
    done = run(command(home, trouble, STEPS), environment(home), home)
    return done, snapshot(frame_at(home / "run.ddptop", None))


def test_a_tensor_of_another_size_kills_a_rank_and_both_sides_are_shown(tmp_path: Path) -> None:
    for attempt in range(5):
        done, shown = ended(new_folder(tmp_path, str(attempt)), "size")
        assert done.returncode == 1
        first, second = shown["deaths"]
        assert first["signal"] == "SIGABRT"  # gloo's doing, and of which rank is chance
        assert first["position"]["user_call"]["function"] == "trouble"
        evidence = next(alert["evidence"] for alert in shown["alerts"] if alert["kind"] == "mismatch")
        assert evidence["side0_rank"] == first["rank"]
        if "side1_rank" in evidence:
            break
        # torchrun ended the other rank before its exception was raised: that side is unknown.
        assert second["signal"] == "SIGTERM" and not second["reason"], second
    assert evidence["side1_rank"] == 1 - first["rank"]
    for side in ("side0", "side1"):
        assert evidence[f"{side}_operation"].startswith("all_reduce")
        assert "trouble" in evidence[f"{side}_call"]


def new_folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def words_of(text: str, select: Callable[[str], bool]) -> set[str]:
    """Lines without their numbers and times; in no order, for which of two failures the launcher sees first
    is chance."""
    return {re.sub(r"\d+", "#", line).strip() for line in text.splitlines() if select(line)}


def test_a_killed_rank_is_named_with_its_signal_and_the_launcher_says_what_torchrun_says(
    tmp_path: Path,
) -> None:
    home, other = tmp_path / "ours", tmp_path / "plain"
    home.mkdir()
    other.mkdir()
    done, shown = ended(home, "kill")
    first = shown["deaths"][0]
    assert (first["rank"], first["signal"]) == (1, "SIGKILL")
    # As far as either rank had told, four times a second, when one was killed and the other ended for it.
    assert max(rank["step"] for rank in shown["ranks"]) - 1 <= first["step"] <= STEP
    assert first["step"] >= STEP / 2
    assert first["since_s"] - begun(home) < 5
    assert shown["alerts"][0]["rank"] == 1 and "SIGKILL" in shown["alerts"][0]["message"]
    words = ["--standalone", "--nproc-per-node", "2", str(SCRIPT), "kill", str(STEPS), str(other)]
    plain = run_plain([*TORCHRUN, *words], environment(other), other)
    assert (done.returncode, plain.returncode) == (1, 1)

    def of_the_root_cause(line: str) -> bool:
        is_of_torchrun = not line.startswith("ddptop: ")
        return is_of_torchrun and ("SIGKILL" in line or "Root Cause" in line or "FAILED" in line)

    assert words_of(done.stderr, of_the_root_cause) == words_of(plain.stderr, of_the_root_cause)
    assert "ddptop: run troubled: FAILED · rank 1 was killed by SIGKILL" in done.stderr
    assert words_of(plain.stderr, of_the_root_cause)
