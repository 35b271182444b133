"""Which messages leave a mark on the bar of a replay."""

from __future__ import annotations

import pytest

from ddptop.frames.frame import LoggedEvent
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.messages import Bye, Event, Message, Received
from ddptop.sources.past import Marks
from tests.made_up_run import hello, run_message

S = 1_000_000_000


def evidence(number: int) -> Evidence:
    return Evidence(1, number, 7, 3, 0, "", (), (), ())


def marks(*messages: tuple[float, Message]) -> list[tuple[float, str]]:
    found = Marks()
    found.add_messages((Received(int(at_s * S), 0, 1, 0, message) for at_s, message in messages), 0)
    return [(round(share * 1000, 1), kind) for share, kind in found.marks_by_share(1000.0)]


def test_a_stall_is_one_mark_however_often_the_ranks_are_asked() -> None:
    answers = [(at_s, evidence(1 + at_s // 60)) for at_s in range(100, 400, 5)]
    assert marks(*answers) == [(100.0, "stall")]


def test_the_next_stall_is_another_mark() -> None:
    assert marks((100, evidence(1)), (300, evidence(2))) == [(100.0, "stall"), (300.0, "stall")]


def test_the_last_words_of_a_rank_are_no_stall() -> None:
    assert marks((5, evidence(0))) == []


def test_a_stall_that_a_growing_recording_goes_on_with_stays_one_mark() -> None:
    found = Marks()
    for at_s in (100, 160, 220):
        found.add_messages([Received(at_s * S, 0, 1, 0, evidence(at_s))], 0)
    assert [kind for _, kind in found.marks_by_share(1000.0)] == ["stall"]


def test_the_verdict_on_a_stall_is_no_second_mark_of_it() -> None:
    found = Marks()
    found.add_messages([Received(100 * S, 0, 1, 0, evidence(1))], 0)
    told = [LoggedEvent(112.0, "stall", "critical", 1, 7, "rank 1 is missing")]
    for _ in range(2):
        found.add_events([*told, LoggedEvent(500.0, "nan", "critical", 1, 57, "NaN")], 0.0)
    assert [(round(share * 1000), kind) for share, kind in found.marks_by_share(1000.0)] == [
        (100, "stall"),
        (500, "nan"),
    ]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Event("lost_rank", 1, 2, -1, {"session": 1, "exit_code": None, "signal": "SIGKILL"}), "lost_rank"),
        (Event("exit", 1, 2, -1, {"exit_code": 1, "signal": None}), "exit"),
        (Event("exit", 1, 2, -1, {"exit_code": None, "signal": "SIGABRT"}), "exit"),
        (Event("exit", 1, 2, -1, {"exit_code": 0, "signal": None}), None),
        (Event("process", 1, 2, -1, {"state": "stopped"}), "process"),
        (Event("process", 1, 2, -1, {"state": "running"}), None),
        (Event("timer", 1, 2, 9, {"ready_us": 3, "end_us": 0}), None),
        (Event("phase_begins", 1, 2, 9, {"name": "evaluate"}), None),
        (Event("rebuild", 1, 2, 1), None),
        (Event("mute", 1, 2, -1), "mute"),
        (Bye(1, "ValueError"), "failed_rank"),
        (Bye(1, "finished"), None),
        (run_message("failed", 1), "failed"),
        (hello(0, 1, incarnation=1), "restart"),
    ],
)
def test_marks(message: Message, kind: str | None) -> None:
    assert marks((5, message)) == ([] if kind is None else [(5.0, kind)])
