"""A rank on its way to the first step is asked where it is while a viewer wants to see it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ddptop.collector.position_requests import PositionRequests
from ddptop.collector.stall_watch import ASK_AGAIN_NS
from ddptop.protocol.limits import NS


def asked(step: int | None, *wants: tuple[str, int]) -> list[int]:
    """The sessions that are asked for requests, each at a moment, of a run that has come to a step."""
    ranks = [SimpleNamespace(session=10 + rank, running=rank != 2) for rank in range(3)]
    reducer: Any = SimpleNamespace(state=SimpleNamespace(complete_step=step, ranks=ranks))
    sessions: list[int] = []
    requests = PositionRequests(reducer, lambda session, number: sessions.append(session))
    for want, at_ns in wants:
        requests.ask_wanted(want, at_ns)
    return sessions


def test_a_rank_is_asked_at_once_and_again_as_long_as_it_is_wanted() -> None:
    again = NS + ASK_AGAIN_NS
    assert asked(None, ("position 1", NS)) == [11]
    assert asked(None, ("position 1", NS), ("position 1", again - 1), ("position 1", again)) == [11, 11]
    assert asked(None, ("position 1", NS), ("position 0", NS)) == [11, 10]


def test_nobody_is_asked_without_a_request_after_the_start_or_who_does_not_run() -> None:
    for want in ("", "timeline -1 0", "position 2", "position 3", "position x"):
        assert asked(None, (want, NS)) == [], want
    assert asked(0, ("position 1", NS)) == []
