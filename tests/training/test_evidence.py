"""Answers to the collector's questions: once each, in time, and never too large."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.evidence import Evidence, GroupState, Operation, Stack, StackFrame
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES
from ddptop.training.evidence import flight_recorder
from ddptop.training.evidence import reporter as module
from ddptop.training.evidence.errors import fit_evidence
from ddptop.training.evidence.reporter import EvidenceReporter
from ddptop.training.exit import ExitReason
from ddptop.training.guard import Guard
from tests.processes import until

PLACE = (12, 3, 1)


@pytest.fixture
def fresh_guard(monkeypatch: pytest.MonkeyPatch) -> Guard:
    fresh = Guard()
    monkeypatch.setattr(module, "guard", fresh)
    return fresh


def reporter() -> EvidenceReporter:
    return EvidenceReporter(threading.get_ident(), lambda: PLACE)


def answer(one: EvidenceReporter, asked: int) -> Evidence:
    found = until(lambda: one.answer_request(asked), "an answer")
    assert isinstance(found, Evidence)
    return found


def test_every_question_is_answered_once(fresh_guard: Guard) -> None:
    one = reporter()
    assert one.answer_request(0) is None, "nobody has asked"
    first = answer(one, 111)
    assert (first.number, first.step, first.phase, first.bucket, first.reason) == (111, *PLACE, "")
    functions = [call.function for call in first.stacks[0].frames]
    assert "test_every_question_is_answered_once" in functions
    assert any("answer(one, 111)" in call.code for call in first.stacks[0].frames)
    assert one.answer_request(111) is None
    assert answer(one, 222).number == 222
    assert fresh_guard.count == 0
    assert decode(encode(first)) == first


def test_what_blocks_is_left_out_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, fresh_guard: Guard
) -> None:
    release = threading.Event()
    monkeypatch.setattr(
        flight_recorder, "read_flight", lambda _now: release.wait() and flight_recorder.NOTHING
    )
    monkeypatch.setattr(module, "DEADLINE_S", 0.1)
    one = reporter()
    assert one.answer_request(5) is None, "it does not wait itself"
    found = answer(one, 5)
    assert found.stacks and not found.operations
    again = answer(one, 6)
    assert again.number == 6 and again.groups == found.groups
    assert any("answer(one, 6)" in call.code or call.function == "answer" for call in again.stacks[0].frames)
    gathering = [thread for thread in threading.enumerate() if thread.name == "ddptop-evidence"]
    assert len(gathering) == 1, "the blocked one is not joined by another at every question"
    release.set()
    gathering[0].join(60)
    assert answer(one, 7).stacks


def test_a_completed_collective_counts_where_a_late_thread_wrote_an_older_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def entry(sequence: int, *, done: bool) -> dict[str, Any]:
        return {
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": sequence,
            "profiling_name": "gloo:all_reduce",
            "input_sizes": [[1]],
            "record_id": sequence,
            "time_created_ns": sequence,
            "state": "scheduled",
            "retired": done,
        }

    def completed(last: int, *done: bool) -> int:
        entries = [entry(23 + i, done=is_done) for i, is_done in enumerate(done)]
        dump = {"entries": entries, "pg_status": {"0": {"last_completed_collective": last}}}
        monkeypatch.setattr(flight_recorder, "flight_dumps", lambda: [dump])
        return flight_recorder.read_flight(10**9).completed["0"]

    assert completed(23, True, True, True) == 25
    assert completed(25, True, True, True) == 25
    assert completed(23, True, True, False) == 24
    assert completed(22, True, False, True) == 23
    assert completed(-1, False) == 22


def test_what_fails_is_counted_and_left_out(monkeypatch: pytest.MonkeyPatch, fresh_guard: Guard) -> None:
    def fail(_now: int) -> Any:
        raise RuntimeError("no flight recorder")

    monkeypatch.setattr(flight_recorder, "read_flight", fail)
    assert answer(reporter(), 5).stacks
    assert fresh_guard.count == 1


def test_of_a_device_in_error_the_flight_recorder_is_not_read(
    monkeypatch: pytest.MonkeyPatch, fresh_guard: Guard
) -> None:
    """NCCL's queries an event for each of its entries, and prints a trace for each error that it gets."""
    asked: list[int] = []
    monkeypatch.setattr(
        flight_recorder, "read_flight", lambda _now: asked.append(1) or flight_recorder.NOTHING
    )
    for failed in (True, False):
        one = EvidenceReporter(threading.get_ident(), lambda: PLACE, lambda failed=failed: failed)
        assert answer(one, 1).stacks
    assert (len(asked), fresh_guard.count) == (1, 0)


def test_exit_evidence_holds_the_traceback_and_the_reason(fresh_guard: Guard) -> None:
    trace = Stack("traceback", True, (StackFrame("train.py", 3, "load", ""),))
    told = reporter().exit_evidence(ExitReason("ValueError: " + "x" * 1000, trace, ("ValueError: x", "y")))
    assert (told.stacks, told.message) == ((trace,), ("ValueError: x", "y"))
    assert told.number == 0
    assert len(told.reason) == module.REASON_CHARACTERS


@pytest.mark.parametrize("threads", [1, 12])
@pytest.mark.parametrize("operations", [0, 128])
def test_the_longest_evidence_fits_the_link(threads: int, operations: int) -> None:
    frame = StackFrame("/" + "ö" * 400, 10**6, "f" * 400, "c" * 120)
    told = Evidence(
        1, 2, 3, 4, 5, "r" * 500,
        tuple(GroupState("g" * 200, "gloo", 2, 3, 4) for _ in range(64)),
        tuple(Stack(f"t{n}", not n, (frame,) * 48) for n in range(threads)),
        tuple(Operation("g" * 100, n, "all_reduce", "[" * 200, "Float", True, 1) for n in range(operations)),
        ("ö" * 500,) * 12,
    )  # fmt: skip
    cut = fit_evidence(told)
    assert len(encode(cut)) < MAX_RANK_MESSAGE_BYTES
    assert cut.stacks and cut.stacks[0] == told.stacks[0]
    if operations:
        assert cut.operations[-1] == told.operations[-1], "the newest stay"
