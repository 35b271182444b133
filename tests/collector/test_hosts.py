"""Ranks of other hosts in one recording: made-up agents over the real link, a real collector process."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from ddptop.agent.admission import Admission
from ddptop.agent.launcher import parse_arguments
from ddptop.analysis.reducer import Reducer
from ddptop.collector import agent_port, remote_hosts
from ddptop.collector.agent_port import Listen, choose_address
from ddptop.collector.backlog import Backlog
from ddptop.collector.remote_hosts import RemoteHosts
from ddptop.collector.supervisor import CollectorSupervisor
from ddptop.host.collector_address import read_address
from ddptop.protocol.hosts import Host
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Event, Hello, Received
from ddptop.recording.reader import Recording
from ddptop.transport.bundles import MAX_THIN
from ddptop.transport.sockets import new_context
from tests.collector.test_recovery import recorded_past, steps_of, whole
from tests.link import Link
from tests.recording.replays import frame_at
from tests.run_processes import RUN_ID

SERVE = ("--serve", "127.0.0.1:0")
WORLD = 6


def messages(stage, kind):
    with Recording.open(stage.recording) as recording:
        return [item.message for item in recording.records() if isinstance(item.message, kind)]


def doubled(stage):
    """Numbered messages that are in the recording twice."""
    with Recording.open(stage.recording) as recording:
        numbers = Counter((r.session, r.seq) for r in recording.records() if r.session and r.seq)
    return [key for key, count in numbers.items() if count > 1]


def rows(stage):
    """Step records in the recording; none is there twice."""
    with Recording.open(stage.recording) as recording:
        steps = [steps_of(recording, rank) for rank in range(WORLD)]
    assert all(len(set(of_rank)) == len(of_rank) for of_rank in steps)
    return sum(map(len, steps))


def hosts_begin(stage, *, steps, rate=300, port=0, steps_of_n2=0):
    """Two ranks on the collector's host, and two each on the hosts n1 and n2."""
    ranks = [stage.rank(rank, WORLD, steps=steps, rate=rate) for rank in (0, 1)]
    options = {"world": WORLD, "steps": steps, "rate": rate}
    agents = [stage.agent("n1", 2, **options)]
    agents.append(stage.agent("n2", 4, **options | {"steps": steps_of_n2 or steps}, port=port))
    return ranks, agents


def test_ranks_of_three_hosts_are_one_run_and_the_next_collector_has_port_and_keys(stage):
    collector = stage.collector(*SERVE)
    address = read_address(stage.directory)
    ranks, agents = hosts_begin(stage, steps=600)
    stage.wait_for(lambda: recorded_past(stage, 100, rank=5))
    collector.kill()
    collector.wait()
    collector = stage.collector(*SERVE)
    assert read_address(stage.directory) == address
    stage.ended(ranks)
    stage.ended(agents)
    summary = stage.finish(collector)
    assert (summary["steps"], summary["records"], summary["lost"]) == (599, WORLD * 600, 0)
    with Recording.open(stage.recording) as recording:
        for rank in range(WORLD):
            assert steps_of(recording, rank) == whole(600)
    assert {host.name for host in messages(stage, Host)} == {socket.gethostname(), "n1", "n2"}
    assert not doubled(stage)
    assert not stage.directory.exists(), "the keys are removed with it"


@pytest.mark.slow  # the collector waits half a minute for the host
def test_a_host_that_never_comes_back_is_named_and_what_it_kept_is_said_to_be_unknown(stage):
    words = ["--run-dir", stage.directory, "--run-id", RUN_ID, "--name", "n", "--record", stage.recording]
    supervisor = CollectorSupervisor([*map(str, words), *SERVE], stage.directory / "collector.log")
    supervisor.start_process()
    stage.wait_for(lambda: read_address(stage.directory))
    ranks, agents = hosts_begin(stage, steps=300, steps_of_n2=1_000_000)
    for agent in (*ranks, agents[0]):
        assert agent.wait(60) == 0
    stage.wait_for(lambda: all(recorded_past(stage, 20, rank=rank) for rank in (4, 5)))
    agents[1].kill()
    summary = supervisor.finish_run(0)
    assert summary is not None
    assert summary.missing == ("n2",)
    stage.wait_for(lambda: not stage.directory.exists())
    unsent = [event for event in messages(stage, Event) if event.kind == "unsent"]
    assert {event.rank for event in unsent} == {4, 5}
    assert all((event.fields["host"], event.fields["exact"]) == ("n2", False) for event in unsent)


def test_two_machines_of_one_name_are_told_apart_and_one_machine_is_one_host(stage):
    collector = stage.collector(*SERVE)
    agents = [stage.agent(name, 2 * at, world=WORLD) for at, name in enumerate(("n", "n'", "n"))]
    stage.ended(agents)
    stage.finish(collector)
    assert {hello.rank: hello.host for hello in messages(stage, Hello)}.keys() == {*range(WORLD)}
    hosts = [{hello.host for hello in messages(stage, Hello) if hello.rank // 2 == at} for at in range(3)]
    assert hosts[0] == hosts[2]
    assert sorted([*hosts[0], *hosts[1]]) == ["n", "n (2)"]


def test_the_end_waits_for_both_agents_of_one_host_name_while_they_report(stage):
    words = ["--run-dir", str(stage.directory), "--run-id", RUN_ID, "--name", "name", "--record", "unused"]
    context = new_context()
    listen, admission = Listen.parse_text("127.0.0.1:0"), Admission(launcher=0)
    hosts = RemoteHosts(context, parse_arguments(words), listen, Reducer(), admission, epoch=1)
    begun_ns = time.monotonic_ns()
    for session, name in ((1, "n"), (2, "n"), (3, "other")):
        host = Host(1, RUN_ID, session, name, 1, begun_ns, time.time_ns(), 8, 1 << 34, "boot")
        hosts.recall_message(Received(begun_ns, -1, session, 0, host))
    hosts.note_end(2)
    assert hosts.not_ended(begun_ns) == {"n", "other"}
    assert hosts.not_ended(begun_ns + 5 * NS) == {"other"}, "the other agent has taken its place"
    hosts.note_end(1)
    assert hosts.not_ended(begun_ns) == {"other"}
    hosts.close()
    context.term()


def test_free_memory_goes_back_to_the_system_now_and_then_and_after_a_host_has_joined(monkeypatch, stage):
    words = ["--run-dir", str(stage.directory), "--run-id", RUN_ID, "--name", "name", "--record", "unused"]
    now_ns, given_s = 10 * NS, []
    clock = SimpleNamespace(monotonic_ns=lambda: now_ns, time_ns=time.time_ns)
    library = SimpleNamespace(malloc_trim=lambda _: given_s.append(now_ns / NS))
    monkeypatch.setattr(remote_hosts, "time", clock)
    monkeypatch.setattr(remote_hosts, "ctypes", SimpleNamespace(CDLL=lambda _: library))
    context = new_context()
    listen, admission = Listen.parse_text("127.0.0.1:0"), Admission(launcher=0)
    hosts = RemoteHosts(context, parse_arguments(words), listen, Reducer(), admission, epoch=1)
    hosts.begin_reports(lambda message, t_ns: None, lambda: ())
    for tenth in range(100, 300):
        now_ns = tenth * NS // 10
        if tenth in (160, 163):
            host = Host(1, RUN_ID, tenth, f"n{tenth}", 1, now_ns, time.time_ns(), 8, 1 << 34, "boot")
            hosts.recall_message(Received(now_ns, -1, tenth, 0, host))
        hosts.check_hosts(now_ns, emptied=True, interrupted=False)
    hosts.close()
    context.term()
    assert given_s == [15, 17, 18, 19, 20, 21, 22, 27]


def test_a_rank_whose_process_reports_is_not_taken_by_another_host(stage, monkeypatch):
    """Neither by one of the same incarnation nor, as rank 1, by one that claims to be of a later one."""
    collector = stage.collector(*SERVE)
    source = stage.source()
    holder = stage.agent("n1", 0, world=2, steps=10_000)
    stage.wait_for(lambda: recorded_past(stage, 100, rank=1))
    monkeypatch.setenv("INCARNATION", "1")
    helper = stage.agent("n2", 0, world=2, steps=100, end="hang")
    stage.until(source, lambda frame: any("of host n2" in event.message for event in frame.events))
    helper.kill()
    holder.kill()
    collector.kill()
    assert {hello.host for hello in messages(stage, Hello)} == {"n1"}


def test_a_collector_that_falls_behind_asks_for_less_and_for_more_when_there_is_room():
    backlog, now_ns, thin = Backlog(), 0, []

    def rounds(count, lasting_ns, *, emptied):
        nonlocal now_ns
        for _ in range(count):
            begun_ns, now_ns = now_ns, now_ns + lasting_ns
            if backlog.note_round(begun_ns, now_ns, emptied=emptied):
                thin.append(backlog.change_event(now_ns).fields["thin"])

    rounds(1000, NS // 20, emptied=True)
    assert thin == []
    rounds(40, NS // 2, emptied=False)
    assert thin == [1, 2, 3, 4, 5, 6, MAX_THIN]
    assert "no bucket detail" in str(backlog.change_event(now_ns).fields["message"])
    thin.clear()
    rounds(1, NS // 20, emptied=True)
    assert thin == [], "there must be room for some time"
    for _ in range(200):
        rounds(14, NS // 20, emptied=True)
        rounds(1, 3 * NS // 10, emptied=True)  # many messages that were taken together
    assert thin == [6, 5, 4, 3, 2, 1, 0]
    rounds(8, NS // 2, emptied=False)
    assert thin[7:] == [1, 2]
    before = Backlog()
    before.recall_message(backlog.change_event(now_ns))
    assert before.thin == backlog.thin


def test_where_agents_connect_is_an_address_that_other_hosts_can_reach(monkeypatch):
    assert Listen.parse_text("host.example:0") == ("host.example", 0)
    assert Listen.parse_text("[fd00::1]:5") == ("fd00::1", 5)
    for wrong in ("host", ":5", "host:x", "host:70000"):
        with pytest.raises(ValueError, match="ADDRESS:PORT"):
            Listen.parse_text(wrong)
    own = ["127.0.0.1", "10.1.2.3", "10.9.9.9"]
    down: list[str] = []
    monkeypatch.setattr(
        agent_port, "own_addresses", lambda *, also_down=False: own + down if also_down else own
    )
    monkeypatch.setattr(agent_port, "source_address", lambda target: "10.9.9.9" if "." in target else "")
    names = {"node": ["127.0.1.1"], "good": ["127.0.1.1", "10.1.2.3"], "localhost": ["127.0.0.1"]}
    monkeypatch.setattr(agent_port, "resolve_name", lambda host: names.get(host, []))
    assert choose_address("localhost") == ("127.0.0.1", None)
    assert choose_address("good") == ("10.1.2.3", None)
    address, remark = choose_address("node")
    assert (address, "127.0.1.1" in remark, "10.9.9.9" in remark) == ("10.9.9.9", True, True)
    assert choose_address("elsewhere")[0] == "10.9.9.9"
    monkeypatch.setattr(agent_port, "source_address", lambda target: "")
    assert choose_address("node")[0] == "10.1.2.3"
    own[1:] = []
    with pytest.raises(OSError, match="no address that other hosts can reach"):
        choose_address("node")
    down[:] = ["10.5.5.5", "10.1.2.3"]  # its cable is out, for a time
    assert (choose_address("good")[0], choose_address("node")[0]) == ("10.1.2.3", "10.5.5.5")


def test_a_port_that_is_taken_is_reported_and_this_host_is_recorded(stage):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        collector = stage.collector("--serve", f"127.0.0.1:{taken.getsockname()[1]}")
        stage.ended(stage.ranks(steps=100))
        out, _ = collector.communicate(json.dumps({"exit_code": 0}) + "\n", timeout=60)
    said = [json.loads(line) for line in out.splitlines()]
    assert said[-1]["records"] == 200
    assert any("other hosts are not recorded" in line.get("text", "") for line in said)


@pytest.mark.slow
def test_records_made_are_recorded_or_counted_whenever_the_collector_is_killed(stage):
    """Ten times at random moments; on a machine with time the last steps come after the last of them."""
    chance, steps = random.Random(5), 4000
    collector = stage.collector(*SERVE)
    ranks, agents = hosts_begin(stage, steps=steps, rate=100)
    for _ in range(10):
        time.sleep(0.3 + 2 * chance.random())
        collector.kill()
        assert collector.communicate()[1] == "", "an error of ours costs the figures what it was about"
        collector = stage.collector(*SERVE)
    said = stage.ended(ranks) + stage.ended(agents)
    assert [one["left"] + one["dropped"] for one in said] == [0] * 4
    summary = stage.finish(collector)
    assert summary["records"] + summary["lost"] == WORLD * steps
    assert rows(stage) == summary["records"]
    assert not doubled(stage)


@pytest.mark.slow
def test_a_collector_that_was_stopped_for_ten_seconds_loses_nothing(stage):
    collector = stage.collector(*SERVE)
    ranks, agents = hosts_begin(stage, steps=3000, rate=150)
    stage.wait_for(lambda: recorded_past(stage, 100, rank=5))
    os.kill(collector.pid, signal.SIGSTOP)
    time.sleep(10)
    os.kill(collector.pid, signal.SIGCONT)
    stage.ended(ranks)
    stage.ended(agents)
    summary = stage.finish(collector)
    assert (summary["records"], summary["lost"], rows(stage)) == (WORLD * 3000, 0, WORLD * 3000)
    assert not doubled(stage)
    assert not [event for event in messages(stage, Event) if event.kind == "lost_rank"]


@pytest.mark.slow
@pytest.mark.parametrize("cut_s", [6, 12])
def test_a_host_that_trains_is_lost_after_ten_seconds_without_reports_and_comes_back_without_doubles(
    stage, cut_s
):
    """The other ranks finish steps meanwhile, which they cannot without this host."""
    collector = stage.collector(*SERVE)
    port = int(read_address(stage.directory).endpoint.rpartition(":")[2])
    source = stage.source()
    with Link(("127.0.0.1", port)) as link:
        ranks, agents = hosts_begin(stage, steps=4500, rate=150, port=link.port)
        stage.wait_for(lambda: recorded_past(stage, 100, rank=5))
        link.cut()
        began = time.monotonic()
        silent = stage.until(source, lambda frame: max(host.age_ms or 0.0 for host in frame.hosts) > 4000)
        assert {host.state for host in silent.hosts} == {"live"}
        if cut_s > 10:
            lost = stage.until(source, lambda frame: "lost" in [host.state for host in frame.hosts])
            assert [host.name for host in lost.hosts if host.state == "lost"] == ["n2"]
        time.sleep(max(0.0, began + cut_s - time.monotonic()))
        link.restore()
        stage.until(source, lambda frame: {host.state for host in frame.hosts} == {"live"})
        stage.ended(ranks)
        stage.ended(agents)
    summary = stage.finish(collector)
    assert (summary["records"], summary["lost"], rows(stage)) == (WORLD * 4500, 0, WORLD * 4500)
    assert not doubled(stage)
    last = frame_at(stage.recording, None)
    assert last.lost_records == 0
    kinds = [event.kind for event in last.events if event.kind.startswith("host_")]
    assert kinds == (["host_lost", "host_back"] if cut_s > 10 else [])


@pytest.mark.slow
def test_a_stall_that_a_cut_link_causes_names_the_host_and_its_ranks_are_not_asked(stage):
    """All ranks hang once the host is cut off, as they do when the training's own link is cut with it."""
    collector = stage.collector(*SERVE, "--stall", "8")
    port = int(read_address(stage.directory).endpoint.rpartition(":")[2])
    source = stage.source()
    with Link(("127.0.0.1", port)) as link:
        options = {"world": 4, "steps": 300, "rate": 100, "end": "hang"}
        agents = [stage.agent("n1", 0, **options), stage.agent("n2", 2, **options, port=link.port)]
        stage.wait_for(lambda: recorded_past(stage, 290, rank=3))
        link.cut()
        stage.until(source, lambda frame: frame.run.state == "unreachable")
        frame = stage.until(source, lambda frame: frame.run.state == "lost")
        assert [host.name for host in frame.hosts if host.state == "lost"] == ["n2"]
        for agent in agents:
            agent.kill()
    stage.finish(collector, 1)
