"""Ranks of other hosts in one recording: made-up agents over the real link, a real collector process."""

from __future__ import annotations

from collections import Counter

from ddptop.protocol.hosts import Host
from ddptop.recording.reader import Recording
from tests.collector.test_recovery import steps_of, whole

SERVE = ("--serve", "127.0.0.1:0")


def messages(stage, kind):
    with Recording.open(stage.recording) as recording:
        return [item.message for item in recording.records() if isinstance(item.message, kind)]


def doubled(stage):
    """Numbered messages that are in the recording twice."""
    with Recording.open(stage.recording) as recording:
        numbers = Counter((r.session, r.seq) for r in recording.records() if r.session and r.seq)
    return [key for key, count in numbers.items() if count > 1]


def test_ranks_of_two_hosts_are_one_run(stage):
    collector = stage.collector(*SERVE)
    ranks = [stage.rank(rank, 4) for rank in (0, 1)]
    agents = [stage.agent("n1", 2, world=4)]
    stage.ended(ranks)
    stage.ended(agents)
    summary = stage.finish(collector)
    assert (summary["steps"], summary["records"], summary["lost"]) == (299, 1200, 0)
    with Recording.open(stage.recording) as recording:
        for rank in range(4):
            assert steps_of(recording, rank) == whole(300)
    assert [host.name for host in messages(stage, Host)] == ["n1"]
    assert not doubled(stage)
    assert not stage.directory.exists(), "its keys are removed with it"
