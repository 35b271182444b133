"""Real ranks report what they are doing while they are stuck, and why they end."""

from __future__ import annotations

import signal
import stat
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from ddptop.host.end_notices import give_notice
from ddptop.host.runs import flight_folder
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.messages import Bye, Hello, Membership, Phase, Progress, Replica
from ddptop.training.evidence.flight_analysis import analyse_dumps, read_dumps
from tests.processes import DEADLINE_S, environment, free_port, run, until
from tests.training.conftest import Ear, Ranks

SCRIPTS = Path(__file__).parent / "scripts"
STUCK = SCRIPTS / "stuck.py"


def functions(evidence: Evidence) -> list[str]:
    return [call.function for call in evidence.stacks[0].frames]


def test_ranks_asleep_and_in_a_collective_answer_with_their_stacks(ear: Ear, ranks: Ranks) -> None:
    """Also unasked, before their launcher ends them."""
    processes = ranks.start(STUCK, "sleep", world=2, env=ear.environment())
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "trained\n"
    for rank in (0, 1):
        beats = len(ear.said(rank, Progress))
        ear.next_said(rank, Progress, already=beats + 1)  # by now it is where it stays
        ear.ask(rank, 111)
    waiting, asleep = (ear.next_said(rank, Evidence) for rank in (0, 1))

    assert asleep.stacks[0].main
    assert functions(asleep)[0] == "tokenize"
    assert asleep.stacks[0].frames[0].code == "time.sleep(600)"
    assert "all_reduce" in functions(waiting)
    assert "main" in functions(waiting)
    assert not any(stack.thread.startswith("ddptop") for stack in (*waiting.stacks, *asleep.stacks))
    for evidence in (waiting, asleep):
        assert (evidence.number, evidence.phase, evidence.reason) == (111, Phase.OTHER, "")
        assert [(group.backend, group.size) for group in evidence.groups] == [("gloo", 2)] * 2

    default, own = ({group.name: group for group in e.groups} for e in (waiting, asleep))
    assert default["0"].sequence == own["0"].sequence
    assert default["0"].completed in (default["0"].sequence, -1)  # -1: torch 2.6 does not tell it for gloo
    (metrics,) = set(default) - {"0"}
    assert (default[metrics].sequence, own[metrics].sequence) == (1, 0)
    if waiting.operations:  # torch keeps a flight recorder for gloo from 2.13 on
        last = waiting.operations[-1]
        assert (last.group, last.sequence, last.name, last.sizes) == (metrics, 1, "all_reduce", "[[7]]")
        assert not last.done
        assert all(operation.done for operation in asleep.operations)
        assert [op.sequence for op in asleep.operations] == sorted(op.sequence for op in asleep.operations)
        dumps = flight_folder(ear.directory)
        assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in dumps.iterdir()} == {
            "ddptop_gloo_rank_0": 0o600,
            "ddptop_gloo_rank_1": 0o600,
        }
        assert analyse_dumps(read_dumps(dumps, 111)["gloo"]) in (
            [],  # before torch 2.10 there is no analyser
            [f"rank 1 has not joined all_reduce: sequence 1 of group {metrics} (metrics)"],
        )

    for rank in (0, 1):
        assert set(ear.said(rank, Membership)) == {Membership(0, "0", "gloo", ())}
    sums = [{told.step: told.values for told in ear.said(rank, Replica)} for rank in (0, 1)]
    assert sums[0] == sums[1]
    assert list(sums[0]) == [0, 16]

    beats = len(ear.said(0, Progress))
    ear.ask(0, 222)
    assert ear.next_said(0, Evidence, already=1).number == 222
    ear.next_said(0, Progress, already=beats + 1)
    if waiting.operations:
        assert {rank for number in (111, 222) for rank in read_dumps(dumps, number)["gloo"]} == {0, 1}
        assert set(read_dumps(dumps, 222)["gloo"]) == {0}
    assert len(ear.said(1, Evidence)) == 1, "asked once, answered once"
    assert all(process.poll() is None for process in processes)

    def unasked(rank: int, since_ns: int = 222) -> list[Evidence]:
        return [evidence for evidence in ear.said(rank, Evidence) if evidence.number > since_ns]

    # Once their step has lasted long enough.
    until(lambda: give_notice(ear.directory, DEADLINE_S) and unasked(0) and unasked(1), "where they are")
    since_ns = time.time_ns()
    assert give_notice(ear.directory, DEADLINE_S) == 2
    for process in processes:
        process.kill()
    for rank, answer in enumerate((waiting, asleep)):
        (evidence,) = until(partial(unasked, rank, since_ns), "what was sent before the answer")
        assert functions(evidence)[0] == functions(answer)[0]


def test_a_rank_that_fails_says_why_and_the_one_that_waited_says_what_for(ear: Ear, ranks: Ranks) -> None:
    for process in ranks.start(STUCK, "raise", world=2, env=ear.environment()):
        assert process.wait(DEADLINE_S) == 1
    failed, survivor = ear.next_said(1, Evidence), ear.next_said(0, Evidence)
    assert ear.next_said(1, Bye).reason == failed.reason == "ValueError: no such luck"
    assert failed.number == 0
    assert functions(failed) == ["leave", "main", "<module>"]
    assert failed.stacks[0].thread == "traceback"
    assert survivor.reason.startswith("RuntimeError: ")
    assert "all_reduce" in functions(survivor)
    if survivor.operations:
        assert survivor.operations[-1].sizes == "[[7]]"
    assert not list(ear.directory.glob("crash-*")), "an empty crash file is removed"


@pytest.mark.slow
def test_children_of_mp_spawn_say_how_they_end(ear: Ear) -> None:
    done = run([sys.executable, SCRIPTS / "spawned_ends.py", str(free_port())], ear.environment(), ear.home)
    assert done.stdout == "[0, 1, 3]\n", done.stderr
    reasons = [ear.next_said(rank, Bye, already=1).reason for rank in range(3)]  # after having left
    assert reasons == ["finished", "KeyError: 'theirs'", "exit code 3"]
    assert not ear.said(0, Evidence)
    for rank in (1, 2):
        (words,) = ear.said(rank, Evidence)
        assert (words.number, words.reason) == (0, reasons[rank])
        assert functions(words)[0] == "end"


def test_an_abort_leaves_the_stacks_in_a_file_and_is_otherwise_as_without_us(ear: Ear, ranks: Ranks) -> None:
    gate = ear.home / "gate"
    (watched,) = ranks.start(STUCK, "abort", str(gate), world=1, env=ear.environment())
    session = ear.next_said(0, Hello).session
    gate.touch()
    (plain,) = ranks.start(STUCK, "abort", str(gate), world=1, env=environment(ear.home))
    said = [process.communicate(timeout=DEADLINE_S) for process in (plain, watched)]
    assert plain.returncode == watched.returncode == -signal.SIGABRT
    assert said[0] == said[1]
    file = ear.directory / f"crash-{session}.txt"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert text.startswith("Fatal Python error: Aborted")
    assert f'File "{STUCK}", line' in text and "in leave" in text
    assert not ear.said(0, Bye)
