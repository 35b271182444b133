"""States of ranks and of the run, alerts and what happened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.snapshot import snapshot
from ddptop.protocol.limits import MUTE_AFTER
from ddptop.protocol.machine import Disk, Usage
from ddptop.protocol.messages import Received
from ddptop.report.sampling import Incidents
from tests.made_up_run import feed_together

NS = 1_000_000_000
START_NS = 5_000 * NS


@pytest.fixture
def running(make_world):
    """A world of two after 40 steps of 14 ms, and a way to look at it some seconds later."""
    world, reducer = make_world(2), Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(40)])

    def look(after_s: float = 0.0):
        return reducer.frame(START_NS + world.now_us * 1000 + int(after_s * NS))

    return world, reducer, look


def kinds(frame) -> list[str]:
    return [alert.kind for alert in frame.alerts]


def test_a_late_heartbeat_is_stale_then_lost(running) -> None:
    world, reducer, look = running
    assert look(1.4).ranks.state == ("live", "live")
    reducer.feed(world.progress(0, t_us=world.now_us + 1_000_000))
    found = look(2.0)
    assert found.ranks.state == ("live", "stale")
    assert found.run.state == "live"
    assert found.ranks.age_ms.tolist() == [1000, 2000]
    assert look(3.0).run.state == "stale"
    assert look(10.5).ranks.state == ("stale", "stale"), "the host was heard 9.5 s ago"
    found = look(11.5)
    assert found.ranks.state == ("lost", "lost")
    assert found.run.state == "lost"
    assert kinds(found) == ["lost_rank"]


def test_a_silent_rank_whose_process_is_there_is_stale_not_lost(running) -> None:
    world, reducer, look = running
    at = START_NS + world.now_us * 1000
    for second in range(1, 13):
        read_ns = at + second * NS
        reducer.feed(Received(read_ns, 1, world.session(1), 0, Usage(read_ns, 1, 0.0)))
    assert look(12).ranks.state == ("stale", "stale")
    assert look(12).ranks.age_ms.tolist() == [12_000, 12_000]
    assert look(23).ranks.state == ("lost", "lost")


def test_heartbeats_without_a_step_are_a_stall(running) -> None:
    world, reducer, look = running
    stuck = world.now_us + 16_000_000
    reducer.feed(world.progress(0, t_us=stuck, step=41))
    reducer.feed(world.progress(1, t_us=stuck, phase=1))
    assert look(14).run.state == "live"
    found = look(16)
    assert found.ranks.state == ("live", "stalled")
    assert found.run.state == "stalled"
    assert (found.alerts[0].kind, found.alerts[0].rank, found.alerts[0].step) == ("stall", 1, 40)
    assert found.alerts[0].evidence["phase"] == "data"
    assert found.unix_s - found.alerts[0].since_s == pytest.approx(16.0, abs=0.1)


def test_a_declared_phase_is_no_stall(running) -> None:
    world, reducer, look = running
    reducer.feed(world.event("phase_begins", 1, name="evaluate"))
    for rank in range(2):
        reducer.feed(world.progress(rank, t_us=world.now_us + 60_000_000))
    found = look(60)
    assert found.ranks.state == ("live", "live")
    assert [h.kind for h in found.events] == ["joined"]
    world.now_us += 61_000_000
    reducer.feed(world.event("phase_ends", 1, name="evaluate"))
    assert look(0).ranks.state == ("live", "live"), "after it the step has its time again"
    assert reducer.stalled_since(START_NS + world.now_us * 1000 + 14 * NS) is None
    assert reducer.stalled_since(START_NS + world.now_us * 1000 + 15 * NS) == START_NS + world.now_us * 1000


def test_the_collector_s_own_readings_are_no_sign_of_life(running) -> None:
    world, reducer, look = running
    at = START_NS + world.now_us * 1000 + 5 * NS
    reducer.feed(Received(at, 1, world.session(1), 0, Usage(at, 1, 0.0)))
    assert look(5).ranks.state[1] == "stale"
    assert look(5).ranks.rss_bytes[1] == 1


def test_long_steps_are_given_ten_times_their_median(make_world) -> None:
    world, reducer = make_world(2, delays={(0, "forward"): 3_000_000, (1, "forward"): 3_000_000}), Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(20)])
    for after_s, state in ((29, "live"), (31, "stalled")):
        at = world.now_us + after_s * 1_000_000
        for rank in range(2):
            reducer.feed(world.progress(rank, t_us=at))
        assert reducer.frame(START_NS + at * 1000).run.state == state


def test_a_first_step_is_given_four_times_as_long(make_world) -> None:
    world, reducer = make_world(2), Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    for after_s, state in ((59, "live"), (60, "stalled")):
        at = after_s * 1_000_000
        for rank in range(2):
            reducer.feed(world.progress(rank, t_us=at))
        assert reducer.frame(START_NS + at * 1000).run.state == state


def test_a_process_that_is_gone_is_lost_at_once(running) -> None:
    world, reducer, look = running
    reducer.feed(world.event("lost_rank", 1))
    found = look()
    assert found.ranks.state == ("live", "lost")
    assert (found.alerts[0].kind, found.alerts[0].severity) == ("lost_rank", "critical")
    assert found.events[-1].message == "rank 1 lost: no process any more"


def test_goodbyes(running) -> None:
    world, reducer, look = running
    reducer.feed(world.bye(0))
    assert look().ranks.state == ("finished", "live")
    assert look(60).ranks.state == ("finished", "lost"), "silence after a goodbye is no alarm"
    reducer.feed(world.bye(1, "RuntimeError"))
    found = look()
    assert found.ranks.state == ("finished", "failed")
    assert found.run.state == "lost"
    assert (found.alerts[0].kind, found.alerts[0].rank) == ("failed_rank", 1)
    assert "RuntimeError" in found.alerts[0].message


def test_a_finished_run_stays_finished(running) -> None:
    world, reducer, look = running
    for rank in range(2):
        reducer.feed(world.bye(rank))
    reducer.feed(world.run("finished", 0))
    found = look(100)
    assert found.run.state == "finished"
    assert found.run.exit_code == 0
    assert found.run.elapsed_s == pytest.approx(world.now_us / 1e6)
    assert found.alerts == ()
    assert [h.message for h in found.events][-2:] == ["2 ranks finished", "run finished, exit code 0"]


def test_a_failed_run_says_who_gave_no_word(running) -> None:
    world, reducer, look = running
    reducer.feed(world.bye(1, "ValueError"))
    reducer.feed(world.run("failed", 1))
    found = look(5)
    assert found.ranks.state == ("lost", "failed")
    assert found.run.state == "failed"
    assert kinds(found) == ["failed_rank", "lost_rank"]


def test_events_of_the_collector(running) -> None:
    world, reducer, look = running
    reducer.feed(world.event("collector_restart"))
    reducer.feed(world.event("recording", message="disk full: recording stopped"))
    found = look()
    assert kinds(found) == ["recording"]
    assert found.alerts[0].message == "disk full: recording stopped"
    assert [h.kind for h in found.events] == ["joined", "collector_restart", "recording"]


def test_usage_and_heartbeat_columns(running) -> None:
    world, reducer, look = running
    reducer.feed(Received(START_NS, 1, 0, 0, Usage(START_NS, 123_456_789, 98.5)))
    reducer.feed(Received(START_NS, 1, world.session(1), 0, Disk(START_NS, 4096)))
    reducer.feed(world.progress(1, step=40, bucket=2, sequence=81, phase=3))
    found = look()
    assert found.ranks.rss_bytes[1] == 123_456_789
    assert [rank["step_read_bytes"] for rank in snapshot(found)["ranks"]] == [None, 4096]
    assert found.ranks.cpu_pct[1] == 98.5
    assert (found.ranks.step[1], found.ranks.bucket[1], found.ranks.sequence[1]) == (40, 2, 81)
    assert found.ranks.phase[1] == "backward"
    assert found.overhead.us_per_step == 25.0


@pytest.mark.parametrize(
    ("of_late", "of_other", "words"),
    [
        (
            {"major_faults_s": 300.0, "blocked_pct": 90.0},
            {},
            "reads pages back from disk: 300 major faults/s",
        ),
        (
            {"blocked_pct": 40.0},
            {"blocked_pct": 20.0},
            "blocked in 40% of readings (state D: a disk, a network file system or a device)",
        ),
        ({"blocked_pct": 40.0}, {"blocked_pct": 30.0}, ""),
        (
            {"major_faults_s": 300.0, "swapped_bytes": 700 << 20, "swap_ins_s": 400.0},
            {"swapped_bytes": 900 << 20, "swap_ins_s": 400.0},
            "reads pages back from swap: 300 major faults/s, 700 MiB of it are swapped out",
        ),
        (
            {"major_faults_s": 300.0, "swapped_bytes": 700 << 20, "swap_ins_s": 100.0},
            {},
            "reads pages back from disk: 300 major faults/s",
        ),
        (
            {"heat_pct": 40.0, "clock_pct": 50.0},
            {"heat_pct": 20.0, "clock_pct": 95.0},
            "its processor is throttled for heat in 40% of the time",
        ),
        (
            {"heat_pct": 40.0, "clock_pct": 50.0},
            {"heat_pct": 30.0, "clock_pct": 95.0},
            "its processor runs at 50% of its highest clock, those of other ranks at 95% or more",
        ),
        ({"clock_pct": 50.0}, {}, ""),
        ({"clock_pct": 80.0, "heat_pct": 9.0, "swapped_bytes": 1 << 30}, {"clock_pct": 95.0}, ""),
        ({}, {"major_faults_s": 300.0, "blocked_pct": 90.0}, ""),
    ],
)
def test_a_slow_rank_has_its_reason_from_the_readings_of_its_process(
    make_world, of_late, of_other, words
) -> None:
    world, reducer = make_world(2, delays={(1, "data"): 10_000}), Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(150)])
    for rank, figures in enumerate((of_other, of_late)):
        reducer.feed(Received(START_NS, rank, world.session(rank), 0, Usage(START_NS, 1, 30.0, **figures)))
    straggler = reducer.frame(START_NS + world.now_us * 1000).straggler
    assert (straggler.rank, straggler.cause, straggler.waits_for) == (1, "data", words)


@pytest.mark.parametrize(
    ("every", "cost_pct", "failures", "expected"),
    [
        (1, 0.9, 3, None),
        (32, 0.9, 3, "bucket detail in 1 of 32 steps: more would exceed the 1% budget"),
        (32, 2.31, 3, "bucket detail in 1 of 32 steps: ddptop takes 2.3% of the step, its budget is 1%"),
        (4, 0.9, MUTE_AFTER, "no bucket detail: a rank stopped to record it after 100 internal errors"),
    ],
)
def test_detail_that_is_rare_or_off_has_its_reason(running, every, cost_pct, failures, expected) -> None:
    world, reducer, look = running
    told = world.progress(1)
    changed = {"detail_every": every, "cost_pct": cost_pct, "failures": failures}
    reducer.feed(told._replace(message=replace(told.message, **changed)))
    found = look().overhead
    assert found.detail_sentence == expected
    shown = snapshot(look())["overhead"]
    assert shown["detail_reason"] == found.detail_reason
    assert shown["detail_every"] == (None if failures == MUTE_AFTER else every)


def test_what_the_collectors_and_agents_take_is_that_of_the_one_that_takes_most(running) -> None:
    world, reducer, look = running
    assert look().overhead.collector_pct is None
    for rank, watcher_pct in ((0, 1.5), (1, 4.25)):
        usage = Usage(START_NS, 1, 30.0, watcher_pct=watcher_pct)
        reducer.feed(Received(START_NS, rank, world.session(rank), 0, usage))
    assert look().overhead.collector_pct == snapshot(look())["overhead"]["collector_pct"] == 4.25


def test_only_the_last_hundred_happenings_are_kept(running) -> None:
    world, reducer, look = running
    for i in range(300):
        reducer.feed(world.event("note", message=f"number {i}"))
    found = look()
    assert len(found.events) == 100
    assert found.events[-1].message == "note: number 299"


def test_a_full_disk_is_an_alert_with_its_folder_and_host_until_it_is_no_longer_full(running) -> None:
    world, reducer, look = running

    def told(full: bool, folder: str = "/data/run (working folder)") -> None:
        event = world.event("disk", 1, session=world.session(1), folder=folder, full=full)
        reducer.feed(event._replace(t_ns=event.t_ns + (0 if full else 9 * NS)))

    told(True)
    told(True)
    (alert,) = [alert for alert in look().alerts if alert.kind == "disk"]
    assert alert.message == "disk full: /data/run (working folder) on host node0"
    assert (alert.rank, alert.evidence["folder"]) == (None, "/data/run (working folder)")
    told(True, "/dev/shm (shared memory of DataLoader workers)")
    (alert,) = [alert for alert in look().alerts if alert.kind == "disk"]
    assert alert.message.endswith("on host node0, and 1 more")
    told(False)
    told(False, "/dev/shm (shared memory of DataLoader workers)")
    assert not [alert for alert in look().alerts if alert.kind == "disk"]
    kinds = [entry.message for entry in look().events if entry.kind == "disk"]
    assert len(kinds) == 4, kinds
    troubles = [alert.message for alert in Incidents(reducer).troubles]
    assert troubles == ["disk full: /data/run (working folder) on host node0"], "both at one moment are one"


def test_a_full_disk_of_which_nothing_more_is_reported_is_no_alert_for_long(running) -> None:
    world, reducer, look = running
    for minute in range(3):
        event = world.event("disk", 1, session=world.session(1), folder="/data", full=True)
        reducer.feed(event._replace(t_ns=event.t_ns + minute * 60 * NS))
    shown = {
        after_s: [alert.since_s for alert in look(after_s).alerts if alert.kind == "disk"]
        for after_s in (0, 299, 301)
    }
    assert len(shown[0]) == 1 and shown[0] == shown[299] and not shown[301]
    assert len([entry for entry in look(301).events if entry.kind == "disk"]) == 1
