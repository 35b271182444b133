"""Intruders at the port of a collector that receives a run: no figure of it changes, no memory is taken."""

from __future__ import annotations

import socket

import pytest

from ddptop.host.collector_address import read_address
from ddptop.protocol.hosts import Host
from ddptop.protocol.messages import Hello, Steps
from ddptop.recording.reader import Recording
from ddptop.transport.curve import load_keys
from ddptop.transport.sockets import new_context
from tests.collector.test_hosts import SERVE, doubled, messages
from tests.collector.test_recovery import steps_of, whole
from tests.transport.intruders import attack, fuzz, knock, usage


@pytest.mark.slow
def test_thousands_of_connections_and_unknown_keys_change_no_figure_of_a_run(stage, capsys):
    collector = stage.collector(*SERVE)
    ranks = [stage.rank(rank, 4, steps=3000, rate=100) for rank in (0, 1)]
    agents = [stage.agent("n1", 2, world=4, steps=3000, rate=100)]
    source = stage.source()
    stage.until(source, lambda frame: (frame.group.step or 0) > 100)  # complete steps: of all four ranks
    address = read_address(stage.directory)
    assert address is not None
    port = int(address.endpoint.rpartition(":")[2])
    context = new_context()
    attack(port, 1000, seed=1)
    knock(context, port, address.server_key, 50)
    before = usage(collector.pid)
    attack(port, 5000, seed=2)
    knock(context, port, address.server_key, 200)
    after = usage(collector.pid)
    context.destroy(linger=0)
    with capsys.disabled():
        print(f"\ncollector of a run: {before[0]:.1f} MB, then {after[0]:.1f} MB; descriptors {after[1]}")
    stage.ended(ranks)
    stage.ended(agents)
    summary = stage.finish(collector)
    assert (summary["steps"], summary["records"], summary["lost"]) == (2999, 12_000, 0)
    with Recording.open(stage.recording) as recording:
        for rank in range(4):
            assert steps_of(recording, rank) == whole(3000)
    # The collector's own host, and the one that was let in.
    assert sorted(host.name for host in messages(stage, Host)) == sorted((socket.gethostname(), "n1"))
    assert not doubled(stage)
    assert after[0] < before[0] + 20  # the run itself goes on: its history grows
    assert after[1] <= before[1] + 5


@pytest.mark.slow
def test_an_agent_that_sends_damaged_bundles_does_not_end_the_collector_nor_the_records_of_others(
    stage, capsys
):
    collector = stage.collector(*SERVE)
    agents = [stage.agent("n1", 0, world=2, steps=2000, rate=100)]
    stage.until(stage.source(), lambda frame: (frame.group.step or 0) > 100)
    keys = load_keys(stage.directory)
    context = new_context()
    fuzz(context, keys.port, keys, 1000, seed=1)
    before = usage(collector.pid)
    fuzz(context, keys.port, keys, 3000, seed=2)
    after = usage(collector.pid)
    context.destroy(linger=0)
    with capsys.disabled():
        print(f"\n3,000 damaged bundles at a run: {before[0]:.1f} MB, then {after[0]:.1f} MB")
    stage.ended(agents)
    stage.finish(collector)
    assert not doubled(stage)
    with Recording.open(stage.recording) as recording:
        for rank in range(2):
            hello = next(
                item
                for item in recording.records()
                if isinstance(item.message, Hello) and (item.rank, item.message.host) == (rank, "n1")
            )
            own = [
                item.message
                for item in recording.records()
                if item.session == hello.session and isinstance(item.message, Steps)
            ]
            numbers = [steps.first_step + n for steps in own for n in range(len(steps.rows))]
            assert numbers == [*range(2000)]
    assert after[0] < before[0] + 30
