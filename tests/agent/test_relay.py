"""An agent relays its ranks to a collector elsewhere: all of it, once; and what it sees of their exits."""

from __future__ import annotations

import json
import sys

import zmq

from ddptop.host.collector_address import write_role
from ddptop.host.runs import ingest_endpoint, read_run_file
from ddptop.protocol.decoding import decode
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.hosts import About, HostUsage
from ddptop.protocol.messages import Bye, Clock, Event, Flag, Hello, Steps
from ddptop.transport.bundles import MAX_THIN
from ddptop.transport.sockets import connect_dealer, new_context
from tests.run_processes import RUN_ID, wait_for


def test_all_steps_arrive_once_and_the_run_ends_with_its_launcher(host):
    host.collector.start()
    host.collector.write_address(host.directory)
    agent = host.agent()
    host.ended([host.rank(rank, steps=200) for rank in (0, 1)])
    *others, summary = host.finish(agent)
    assert others == []
    assert host.collector.steps() == {0: [*range(200)], 1: [*range(200)]}
    assert [item.rank for item in host.collector.of(Bye)] == [0, 1] or len(host.collector.of(Bye)) == 2
    assert {item.rank for item in host.collector.of(Hello)} == {0, 1}
    assert host.collector.of(Clock)
    assert (summary["records"], summary["recording"]) == (400, None)
    assert host.local_recordings() == []
    assert not host.directory.exists()


def test_how_a_rank_exits_is_reported_with_the_steps_that_never_arrived(host):
    host.collector.start()
    host.collector.write_address(host.directory)
    agent = host.agent()
    killed, crashed = host.rank(0, steps=50, end="hang"), host.rank(1, steps=50, end="crash")
    crashed.wait(60)
    wait_for(lambda: host.collector.steps() == {0: [*range(50)], 1: [*range(50)]})
    killed.kill()
    wait_for(lambda: {event.rank for event in host.collector.events("lost_rank")} == {0, 1})
    signals = {event.rank: event.fields["signal"] for event in host.collector.events("lost_rank")}
    assert signals == {0: "SIGKILL", 1: "SIGABRT"} or None in signals.values()
    evidence = [decode(item.message.body) for item in host.collector.of(About)]
    assert any(isinstance(message, Evidence) and "Aborted" in message.reason for message in evidence)
    host.finish(agent, 1)


def test_an_agent_answers_for_its_ranks_at_a_stall_and_thins_out_bucket_detail(host):
    host.collector.thin = MAX_THIN
    host.collector.start()
    host.collector.write_address(host.directory)
    agent = host.agent()
    host.rank(0, 1, steps=100, end="hang")
    wait_for(lambda: host.collector.of(Hello) and host.collector.of(HostUsage))
    (hello,) = host.collector.of(Hello)
    host.collector.to_ask.append((hello.session, 77))
    wait_for(lambda: [item.message.number for item in host.collector.of(Evidence)] == [77])
    wait_for(lambda: host.collector.steps() == {0: [*range(100)]})
    rows = [row for item in host.collector.of(Steps) for row in item.message.rows]
    thinned = sum(not row.cells for row in rows)
    assert thinned > 0
    wait_for(lambda: host.collector.of(HostUsage)[-1].message.thinned == thinned)
    assert all(bool(row.cells) == bool(row.flags & Flag.DETAIL) for row in rows)
    run = read_run_file(host.directory)
    assert run is not None
    assert (run.collector_host, run.collector_reached, run.recording) == ("far", True, None)
    host.finish(agent)


def test_what_an_agent_refuses_is_counted_for_the_collector(host):
    host.collector.start()
    host.collector.write_address(host.directory)
    agent = host.agent()

    def refused():
        """On a busy machine there may be other events, such as an interruption."""
        events = [item.message for item in host.collector.of(Event)]
        return [event for event in events if event.kind == "refused_messages"]

    context = new_context()
    socket = connect_dealer(
        context, ingest_endpoint(host.directory), send_high=8, receive_high=8, max_bytes=99
    )
    try:
        wait_for(lambda: socket.poll(100, zmq.POLLOUT))
        socket.send_multipart([b"no head", b"no body"])
        wait_for(refused)
    finally:
        socket.close()
        context.term()
    (event,) = refused()
    assert event.fields["refused"] == 1
    host.finish(agent)


def test_an_agent_becomes_the_collector_where_its_host_is_to_collect(host):
    """The same process, and the ranks lose nothing."""
    words = ["--run-dir", host.directory, "--run-id", RUN_ID, "--name", "name", "--record"]
    collector = [sys.executable, "-m", "ddptop.collector", *words, host.state / "run.ddptop"]
    code = "import json, sys; from ddptop.agent.__main__ import main; collector = json.loads(sys.argv.pop())"
    agent = host.spawn(
        "-c",
        f"{code}; sys.exit(main(collector=collector))",
        *words,
        "unused",
        json.dumps([str(word) for word in collector]),
    )
    ranks = [host.rank(rank, steps=600) for rank in (0, 1)]
    wait_for(lambda: (run := read_run_file(host.directory)) and run.world_size == 2)
    write_role(host.directory, "127.0.0.1:0")
    wait_for(lambda: (run := read_run_file(host.directory)) and run.collector_host is None)
    assert read_run_file(host.directory).pid == agent.pid
    host.ended(ranks)
    *_, summary = host.finish(agent)
    assert (summary["steps"], summary["records"], summary["lost"]) == (599, 1200, 0)
