"""What becomes of a host's records while its agent does not reach the collector, or is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

from ddptop.host.runs import read_run_file
from ddptop.protocol.messages import Hello, Steps
from ddptop.recording.reader import Recording
from tests.run_processes import wait_for

SOON = ("ddptop.agent.outbox.OUTAGE_NS=0.5", "ddptop.transport.bundle_sender.RESEND_NS=0.5")
"""For `host.agent`: it does without the collector sooner."""


def recorded_steps(path):
    """By rank: the steps in a recording."""
    steps: dict[int, list[int]] = {}
    with Recording.open(path) as recording:
        for received in recording.records():
            message = received.message
            if isinstance(message, Steps):
                steps.setdefault(received.rank, []).extend(
                    range(message.first_step, message.first_step + len(message.rows))
                )
    return steps


def test_without_a_collector_the_agent_records_and_delivers_later(host):
    agent = host.agent(haste=SOON)
    host.ended([host.rank(rank, steps=100) for rank in (0, 1)])
    assert agent.stdout is not None
    notice = json.loads(agent.stdout.readline())
    (path,) = host.local_recordings()
    assert notice["news"] == "local" and str(path) in notice["text"]
    wait_for(lambda: read_run_file(host.directory).recording == str(path))
    assert read_run_file(host.directory).collector_reached is False
    assert recorded_steps(path) == {0: [*range(100)], 1: [*range(100)]}
    host.collector.start()
    host.collector.write_address(host.directory)
    wait_for(lambda: not path.exists())
    assert host.collector.steps() == {0: [*range(100)], 1: [*range(100)]}
    host.finish(agent)
    assert host.local_recordings() == []


def test_a_run_that_ends_without_its_collector_leaves_a_recording_and_names_it(host):
    agent = host.agent(haste=SOON)
    host.ended([host.rank(rank, steps=50) for rank in (0, 1)])
    assert agent.stdin is not None and agent.stdout is not None
    agent.stdin.write(json.dumps({"exit_code": 0}) + "\n")
    agent.stdin.flush()
    lines = [json.loads(agent.stdout.readline()) for _ in range(2)]
    summary = next(line for line in lines if "records" in line)
    (path,) = host.local_recordings()
    assert (summary["records"], summary["recording"]) == (100, str(path))
    assert recorded_steps(path) == {0: [*range(50)], 1: [*range(50)]}
    host.collector.start()  # within 30 s: the agent delivers, and nothing is left
    host.collector.write_address(host.directory)
    agent.wait(60)
    assert host.collector.steps() == {0: [*range(50)], 1: [*range(50)]}
    assert host.local_recordings() == [] and not host.directory.exists()


@pytest.mark.slow
def test_agents_killed_at_any_moment_lose_and_double_nothing(host):
    host.collector.start()
    host.collector.write_address(host.directory)
    chance = random.Random(15)
    agent = host.agent()
    ranks = [host.rank(rank, steps=2000, rate=100) for rank in (0, 1)]
    for _ in range(12):
        time.sleep(chance.uniform(0.1, 1.5))
        agent.kill()
        agent.wait()
        agent = host.agent()
    host.ended(ranks)
    host.finish(agent)
    assert host.collector.steps() == {0: [*range(2000)], 1: [*range(2000)]}
    assert host.local_recordings() == []


@pytest.mark.slow
def test_agents_killed_while_the_collector_is_away_lose_and_double_nothing(host):
    """Each next agent goes on with the local recording of the one before."""
    chance = random.Random(15)
    agent = host.agent()
    ranks = [host.rank(rank, steps=3000, rate=100) for rank in (0, 1)]
    for number in range(10):
        time.sleep(chance.uniform(0.1, 3))
        agent.kill()
        agent.wait()
        agent = host.agent()
        if number in (4, 7):
            host.collector.start()
            host.collector.write_address(host.directory)
        elif number == 5:
            host.collector.stop()
    host.ended(ranks)
    host.finish(agent)
    assert host.collector.steps() == {0: [*range(3000)], 1: [*range(3000)]}
    assert host.local_recordings() == []


def test_a_rank_that_died_while_there_was_no_agent_is_reported_by_the_next(host):
    host.collector.start()
    host.collector.write_address(host.directory)
    agent = host.agent()
    ranks = [host.rank(rank, steps=20, end="hang") for rank in (0, 1)]
    wait_for(lambda: len(host.collector.of(Hello)) == 2)
    wait_for(lambda: host.collector.steps() == {0: [*range(20)], 1: [*range(20)]})
    agent.kill()
    agent.wait()
    os.kill(ranks[1].pid, signal.SIGKILL)
    ranks[1].wait()
    agent = host.agent(
        haste=["ddptop.host.rank_processes.SILENCE_NS=0.5", "ddptop.agent.service.LAST_MESSAGES_NS=0.5"]
    )
    wait_for(lambda: host.collector.events("lost_rank"))
    assert [event.rank for event in host.collector.events("lost_rank")] == [1]
    host.finish(agent, 1)
