"""Whom the collector asks, and when: by a clock of the test's own, then with real processes."""

from __future__ import annotations

import os
import signal
import time

import pytest

from ddptop.collector.stall_watch import ASK_AGAIN_NS, NEXT_ROUND_NS, StallWatch
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Event, Progress, Steps
from ddptop.recording.reader import Recording, RecordingError
from ddptop.report.build import read_report
from tests.recording.replays import frame_at

BEGAN = 1_000 * NS
RANKS = (11, 12, 13)


class Asked(list):
    """What was asked: (session, number). The Unix clock runs with the other one."""

    def __init__(self):
        self.now_ns = BEGAN
        self.watch = StallWatch(lambda session, number: self.append((session, number)), lambda: self.now_ns)

    def after(self, seconds, since_ns=BEGAN, sessions=RANKS, positions=b""):
        self.now_ns = BEGAN + int(seconds * NS)
        self.watch.ask_ranks_due(self.now_ns, since_ns, sessions, positions)
        new, self[:] = list(self), []
        return new

    def numbers(self, seconds, **kwargs):
        return {number for _, number in self.after(seconds, **kwargs)}


@pytest.fixture
def asked():
    return Asked()


def test_nobody_is_asked_while_steps_move(asked):
    assert asked.after(1, since_ns=None) == asked.after(100, since_ns=None) == []
    assert not asked.watch.is_asking


def test_each_rank_is_asked_once_and_again_until_it_answers(asked):
    first = asked.after(15)
    number = BEGAN + 15 * NS
    assert first == [(11, number), (12, number), (13, number)]
    asked.watch.note_answer(11, number)
    asked.watch.note_answer(12, number - 1)
    assert asked.after(19.9) == []
    assert asked.after(20) == [(12, number), (13, number)]
    asked.watch.note_answer(13, number)
    assert asked.after(24) == []
    assert asked.after(25) == [(12, number)]


def test_a_rank_that_comes_or_goes_during_a_stall_is_asked_or_not(asked):
    number = asked.after(15, sessions=(11,))[0][1]
    assert asked.after(16, sessions=(12,)) == [(12, number)]
    assert asked.after(21, sessions=()) == []


def test_a_long_stall_is_looked_at_anew_and_never_more_often_than_that(asked):
    rounds = []
    for second in range(15, 15 + 5 * NEXT_ROUND_NS // NS):
        questions = asked.after(second)
        for session, number in questions:
            asked.watch.note_answer(session, number)
        rounds += [(second, len(questions))] if questions else []
    assert rounds == [(15, 3), (30, 3), (60, 3), (120, 3), (180, 3), (240, 3), (300, 3)]


def test_ranks_are_asked_again_as_soon_as_one_of_them_has_moved_on_and_not_for_ever(asked):
    rounds = []
    for second in range(15, 120):
        moves = b"" if second < 17 else second.to_bytes()  # it moves on all the time from then on
        questions = asked.after(second, positions=moves)
        for session, number in questions:
            asked.watch.note_answer(session, number)
        rounds += [second] if questions else []
    assert rounds == [15, 20, 25, 30, 35, 44, 55, 69, 87, 109]


def test_a_round_is_heard_out_once_when_all_have_answered_or_had_time_to(asked):
    take_complete = asked.watch.take_complete
    assert take_complete(asked.now_ns, RANKS) is None
    (first,) = asked.numbers(15)
    began_ns = asked.now_ns
    assert take_complete(began_ns + ASK_AGAIN_NS, RANKS) is None, "nobody has answered"
    for session in RANKS:
        assert take_complete(began_ns, RANKS) is None
        asked.watch.note_answer(session, first)
    assert take_complete(began_ns, RANKS) == (began_ns, first)
    assert take_complete(began_ns, RANKS) is None
    (second,) = asked.numbers(75)
    asked.watch.note_answer(12, second)
    assert take_complete(asked.now_ns + ASK_AGAIN_NS - 1, RANKS) is None
    assert take_complete(asked.now_ns + ASK_AGAIN_NS, RANKS) == (asked.now_ns, second)


def test_of_a_death_there_is_nothing_to_hear_out(asked):
    asked.watch.note_death(BEGAN, RANKS)
    for session, number in asked:
        asked.watch.note_answer(session, number)
    assert asked.watch.take_complete(BEGAN + ASK_AGAIN_NS, RANKS) is None


def test_the_next_stall_has_a_number_of_its_own(asked):
    first = asked.numbers(15)
    assert asked.numbers(16, since_ns=None) == set()
    second = asked.numbers(40, since_ns=BEGAN + 20 * NS)
    assert len(first) == len(second) == 1
    assert first != second
    # The step moved between two looks: the same stall it is not.
    assert asked.numbers(60, since_ns=BEGAN + 45 * NS) not in (set(), first, second)


def test_at_a_death_the_others_are_asked_at_once_and_once_more(asked):
    asked.watch.note_death(BEGAN, (11, 12))
    (number,) = {number for _, number in asked}
    assert [session for session, _ in asked] == [11, 12]
    asked.clear()
    asked.watch.note_death(BEGAN + NS, (12,))  # many ranks go when one has gone
    assert asked == []
    asked.watch.note_answer(11, number)
    assert (
        asked.watch.is_asking
    )  # so that those which have not answered are known although nothing is stalled
    assert asked.after(ASK_AGAIN_NS / NS, since_ns=None, sessions=(11, 12)) == [(12, number)]
    assert asked.after(10, since_ns=None) == asked.after(30, since_ns=None) == []
    assert not asked.watch.is_asking


def test_what_ranks_said_at_a_death_does_not_answer_for_the_stall_after_it(asked):
    asked.watch.note_death(BEGAN, RANKS)
    (before,) = {number for _, number in asked}
    asked.clear()
    assert before not in asked.numbers(8) != set()


def test_numbers_never_come_twice_even_if_the_clock_goes_back(asked):
    (first,) = asked.numbers(15)
    asked.watch.ask_ranks_due(asked.now_ns, None, RANKS)
    asked.now_ns = BEGAN
    asked.watch.ask_ranks_due(BEGAN + 40 * NS, BEGAN + 20 * NS, RANKS)
    assert {number for _, number in asked} == {first + 1}


def test_a_new_collector_asks_only_those_that_have_not_answered_the_one_before(asked):
    number = BEGAN + 15 * NS
    asked.now_ns = BEGAN + 20 * NS
    asked.watch.recall_answer(11, number - NS, asked.now_ns)
    asked.watch.recall_answer(11, number, asked.now_ns)
    asked.watch.recall_answer(12, number, asked.now_ns)
    asked.watch.recall_answer(13, 0, asked.now_ns)  # a rank's own word at its end
    asked.watch.recall_answer(13, number + 3600 * NS, asked.now_ns)  # nobody has asked this yet
    assert asked.after(20) == [(13, number)]
    assert asked.after(29) == [(13, number)]
    assert asked.numbers(30) == {BEGAN + 30 * NS}


# ------------------------------------------------------------------ real processes


def recorded(stage, kind):
    """Messages of this kind that are on disk."""
    try:
        return [item for item in Recording.open(stage.recording).records() if isinstance(item.message, kind)]
    except (OSError, RecordingError):  # not there yet
        return []


@pytest.mark.slow
def test_ranks_that_stand_still_are_asked_once_also_when_the_collector_restarts(stage):
    # Four times as long before the first step: a rank that is slow to start must not be a stall of its own.
    collector = stage.collector("--stall", "2")
    ranks = [stage.rank(0, end="hang", steps=30), stage.rank(1, end="deaf", steps=30)]
    source = stage.source()
    stage.until(source, lambda frame: "stalled" in frame.ranks.state)
    stage.wait_for(lambda: recorded(stage, Evidence))
    collector.kill()
    collector.wait()
    collector = stage.collector("--stall", "2")

    def restarts():
        return [item for item in recorded(stage, Event) if item.message.kind == "collector_restart"]

    stage.wait_for(restarts)
    (restart,) = restarts()
    # One heartbeat a second is kept of each rank: after these it has looked three times at least.
    stage.wait_for(lambda: sum(beat.t_ns > restart.t_ns for beat in recorded(stage, Progress)) >= 8)
    for rank in ranks:
        rank.kill()
    stage.finish(collector, 1)
    (evidence,) = recorded(stage, Evidence)
    assert (evidence.rank, evidence.message.number > 0, evidence.seq > 0) == (0, True, True)
    assert evidence.message.stacks[0].frames[0].function == "load"


def test_a_collector_that_was_stopped_takes_nobody_for_stalled(stage):
    collector = stage.collector("--stall", "2")
    ranks = stage.ranks(4, steps=900, rate=150)
    stage.wait_for(lambda: recorded(stage, Steps))
    os.kill(collector.pid, signal.SIGSTOP)
    time.sleep(4)  # what is tested: longer than a stall, and more messages than the sockets hold
    os.kill(collector.pid, signal.SIGCONT)
    stage.ended(ranks)
    summary = stage.finish(collector)
    assert (summary["steps"], summary["lost"]) == (899, 0)
    with Recording.open(stage.recording) as recording:
        report = read_report(recording)
        frame = frame_at(stage.recording, None)
    assert report.stalls == ()
    assert {alert.kind for alert in report.troubles} == {"interruption"}
    assert frame.run.state == "finished"
    assert [one.kind for one in frame.events if "stall" in one.kind] == []


def test_a_stopped_process_is_told_and_goes_on(stage):
    collector = stage.collector()
    rank = stage.rank(0, 1, end="hang", steps=30)

    def states():
        return [
            item.message.fields["state"] for item in recorded(stage, Event) if item.message.kind == "process"
        ]

    stage.wait_for(lambda: recorded(stage, Progress))
    os.kill(rank.pid, signal.SIGSTOP)
    stage.wait_for(lambda: states() == ["stopped"])
    os.kill(rank.pid, signal.SIGCONT)
    stage.wait_for(lambda: states() == ["stopped", "running"])
    rank.kill()
    stage.finish(collector, 1)


LOOKS = ("counts", "kernel", "worker_call")
"""Kinds of events that say nothing of an end; the last of a rank that sends nothing for 3 s."""


def test_the_recording_says_how_every_process_ended(stage):
    collector = stage.collector()
    ends = ("hang", "crash", "exit", "bye")
    ranks = [stage.rank(rank, 4, end=end, steps=30) for rank, end in enumerate(ends)]

    def told():
        messages = [item.message for item in recorded(stage, Event)]
        return {event.rank: event for event in messages if event.rank >= 0 and event.kind not in LOOKS}

    # Nobody reaps them before: only a new kernel tells how a process ended that is reaped.
    stage.wait_for(lambda: set(told()) == {1, 2, 3})
    # Rank 0 is asked when rank 1 dies.
    stage.wait_for(lambda: {item.rank for item in recorded(stage, Evidence)} == {0, 1})
    ranks[0].kill()
    stage.wait_for(lambda: 0 in told())
    stage.finish(collector, 1)
    ended = {
        rank: (event.kind, event.fields["exit_code"], event.fields["signal"])
        for rank, event in told().items()
    }
    assert ended == {
        0: ("lost_rank", None, "SIGKILL"),
        1: ("lost_rank", None, "SIGABRT"),
        2: ("exit", 3, None),
        3: ("exit", 0, None),
    }
    (last,) = (item for item in recorded(stage, Evidence) if item.rank == 1)
    assert (last.message.number, last.message.reason) == (0, "Fatal Python error: Aborted")
    assert last.message.stacks[0].frames[0].code == "os.abort()"
    assert last.message.step == 30
    order = [item.message for item in Recording.open(stage.recording).records()]
    assert order.index(last.message) < order.index(told()[1])
    assert not stage.directory.exists()
