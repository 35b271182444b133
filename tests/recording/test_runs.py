"""Blocks read together give the same frame as their messages one by one."""

import math
import sys
from collections import Counter
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from ddptop.analysis import rank_messages
from ddptop.analysis.health.bad_loss import check_loss
from ddptop.analysis.health.hosts import HostLog
from ddptop.analysis.reducer import Reducer
from ddptop.cli.main import main
from ddptop.frames.codec import encode_frame
from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.hosts import Host, HostLink, HostUsage
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.message_run import MessageRun, Readings, StepMessages
from ddptop.protocol.messages import (
    Bye,
    Clock,
    Hello,
    Layout,
    Logged,
    Phase,
    Progress,
    Received,
    Replica,
    Run,
    Steps,
)
from ddptop.recording.format import CLOCKS
from ddptop.recording.reader import Recording
from ddptop.recording.records import BlockReader
from ddptop.report import build
from tests.made_up_run import NS, START_NS, a_run, feed_runs, numbers, progress, write

DATA = Path(__file__).with_name("data")


@pytest.mark.parametrize("name", ["straggler", "stall"])
@pytest.mark.parametrize("tail", [False, True])
def test_runs_give_the_same_frame(name, tail):
    failures = []
    with Recording.open(DATA / f"{name}.ddptop") as recording:
        one_by_one, together = Reducer(tail=tail), Reducer(tail=tail)
        messages = [*recording.tail(steps=40)] if tail else [*recording.records()]
        for received in messages:
            one_by_one.feed(received)
        for run in recording.tail_runs(steps=40) if tail else recording.runs():
            at = 0
            while at < len(run):
                at = together.feed_run(
                    run, at, lambda: failures.append(1), stop_ns=recording.start_ns + 10**9
                )
        now_ns = recording.end_ns
    assert not failures
    assert together.state.taken == one_by_one.state.taken
    assert encode_frame(together.frame(now_ns)) == encode_frame(one_by_one.frame(now_ns))


def test_losses_that_stay_nan_are_taken_together(tmp_path, monkeypatch):
    """Of rank 1 from step 33 to 150; 2 of 3 losses of rank 2 are not known; ranks 0 and 3 are well."""

    def loss(rank, step):
        if rank == 2 and step % 3:
            return None
        return math.nan if rank in (1, 2) and 33 <= step < 150 else 0.25

    path, messages = tmp_path / "run.ddptop", []
    for received in a_run(200, world=4):
        if isinstance(steps := received.message, Steps):
            rows = enumerate(steps.rows, steps.first_step)
            rows = tuple(row._replace(loss=loss(received.rank, step)) for step, row in rows)
            received = received._replace(message=replace(steps, rows=rows))
        messages.append(received)
    write(path, messages)
    one_by_one, together, special = Reducer(), Reducer(), []
    with Recording.open(path) as recording:
        for received in recording.records():
            one_by_one.feed(received)
        monkeypatch.setattr(
            rank_messages, "check_loss", lambda *args: (special.append(args[3]), check_loss(*args))
        )
        feed_runs(together, recording)
        for now_ns in (START_NS, recording.end_ns):
            assert encode_frame(together.frame(now_ns)) == encode_frame(one_by_one.frame(now_ns))
    assert together.state.log.all() == one_by_one.state.log.all()
    assert special
    assert not [step for step in special if 100 <= step < 140], "neither the begin nor the end"


@pytest.mark.parametrize("lost", [{0}, {1, 2, 3}, {0, 1, 2, 3}], ids=str)
def test_what_ranks_without_a_hello_reported_is_taken_as_one_by_one(tmp_path, lost):
    """The HELLOs of these ranks were in a damaged block."""
    path = tmp_path / "run.ddptop"
    messages = []
    for number, received in enumerate(a_run(200, world=4)):
        if not isinstance(received.message, Hello) or received.rank not in lost:
            messages.append(received)
        if received.rank >= 0 and number % 3 == 0:
            messages += readings_beside(received, received.rank, 1)
    write(path, messages)
    one_by_one, together = Reducer(), Reducer()
    with Recording.open(path) as recording:
        for received in recording.records():
            one_by_one.feed(received)
        feed_runs(together, recording)
    assert together.state.sessions.by_number == one_by_one.state.sessions.by_number
    assert numbers(together) == numbers(one_by_one)
    assert len(together.state.sessions.by_number) == 4 - len(lost)
    assert encode_frame(together.frame(recording.end_ns)) == encode_frame(one_by_one.frame(recording.end_ns))


def test_blocks_are_searched_for_a_type_only_where_something_lasts(tmp_path, monkeypatch):
    path = tmp_path / "run.ddptop"
    messages = []
    for received in a_run(400):
        messages.append(received)
        if isinstance(received.message, Progress):  # nearly every block of a run over several hosts has some
            t_ns = received.t_ns
            messages.append(Received(t_ns, -1, 7, 0, Clock(t_ns, "b", 0, 1000)))
    write(path, messages)
    searched, may_hold = [], BlockReader.may_hold
    monkeypatch.setattr(
        BlockReader,
        "may_hold",
        lambda reader, entry, type_: searched.append(entry) or may_hold(reader, entry, type_),
    )
    with Recording.open(path) as recording:
        blocks = recording.blocks_until(recording.end_ns)
        lasting = [at for at in range(blocks) if recording.block_summary(at).lasting % CLOCKS]
        assert [*recording.lasting_with(Evidence)] == []
    assert 0 < len(searched) == len(lasting) < blocks


def test_no_stall_is_searched_where_a_report_reads_all_blocks(tmp_path, monkeypatch):
    path = tmp_path / "run.ddptop"
    write(path, a_run(100))
    searched: list[str] = []
    monkeypatch.setattr(build, "WHOLE_ROWS", 0)
    monkeypatch.setattr(BlockReader, "may_hold", lambda *_: searched.append("") or True)
    with Recording.open(path) as recording:
        assert build.read_report(recording).reading.read_steps == 100
    assert not searched


def test_equal_layouts_of_ranks_are_one_object(tmp_path):
    path = tmp_path / "run.ddptop"
    write(path, a_run(10, world=4))
    with Recording.open(path) as recording:
        messages = [one.message for run in recording.runs() for _, one in run.others]
    layouts = [message for message in messages if isinstance(message, Layout)]
    assert len(layouts) == 4
    assert len({*map(id, layouts)}) == 1


def readings_beside(received, rank, every):
    """What else arrives with a message: a clock that drifts, usage of the host, readings of the rank, and a
    heartbeat of a process that is not known; these and evaluation where `every` is not 1."""
    t_ns = received.t_ns
    wave = (t_ns // 7_000_003 + 13 * rank) % 97
    phase = Phase.EVALUATE if every > 1 and wave == 5 else Phase.BACKWARD
    yield Received(
        t_ns, -1, 77, 0, Clock(t_ns - 5_000, "node0", 100 * wave - 60_000, 9_000, 7_000_000 * wave, 20_000)
    )
    yield Received(t_ns, -1, 77, 0, HostUsage(t_ns, 50.0, wave, 1.5, None, 170_000, 0, None, 0, None))
    of_rank = (t_ns, rank, 1000 + rank)
    yield Received(*of_rank, 0, Progress(t_ns - 30_000, wave, phase, 3, wave, every, 40.0, 0.5, 0))
    yield Received(*of_rank, 0, Memory(t_ns, wave << 20, 1 << 30, 1 << 29, 0))
    throttled_pct = None if every == 1 else float(wave)
    yield Received(*of_rank, 0, Usage(t_ns, wave << 20, 99.5, throttled_pct, 3, 96, None))
    yield Received(*of_rank, 0, Gpu(*(None, wave, 80 << 30, 60.5, None, None, 9, "", 1, None, 2, 3), t_ns))
    yield Received(*of_rank, 0, Logged(wave, {"lr": wave / 7, f"of {rank}": wave}))
    yield Received(*of_rank, 0, Replica(t_ns // 10**9, 0, 4, 0, (1, 2 + (rank == 3 and wave > 60))))
    if every > 1:
        yield Received(t_ns, rank, 9_999, 0, Progress(t_ns, 7, phase, 3, 4, every, 40.0, 0.5, 0))


@pytest.mark.parametrize("several", [False, True], ids=["steady", "changing"])
def test_readings_in_columns_leave_every_rank_as_one_by_one(tmp_path, several):
    """`changing`: the sampling interval changes, and a quota throttles ranks: these are no usual readings."""
    path, host = tmp_path / "run.ddptop", Host(1, "run-1", 77, "node0", 5, 1, 1, 64, 1 << 40, "boot")
    messages = [Received(START_NS, -1, 77, 0, host)]
    for number, received in enumerate(a_run(400, world=4)):
        messages.append(received)
        if number > 10 and number % 3 == 0 and received.rank >= 0:
            messages += readings_beside(received, received.rank, 1 + number // 60 if several else 1)
    write(path, messages)
    one_by_one, together = Reducer(), Reducer()
    failures, by_columns = [], 0
    with Recording.open(path) as recording:
        for received in recording.records():
            one_by_one.feed(received)
        for run in recording.runs():
            by_columns += sum(len(one.places) for one in run.readings)
            at = 0
            while at < len(run):
                at = together.feed_run(run, at, lambda: failures.append(1), stop=min(len(run), at + 150))
    assert not failures
    assert by_columns > 100
    newest = attrgetter("progress", "usage", "gpu", "memory")  # an object is made of what is read
    assert [*map(newest, together.state.ranks)] == [*map(newest, one_by_one.state.ranks)]
    assert together.state.ranks == one_by_one.state.ranks
    assert numbers(together) == numbers(one_by_one)
    assert together.state.sessions.by_number == one_by_one.state.sessions.by_number
    assert together.state.excuses.declared_ns == one_by_one.state.excuses.declared_ns
    assert together.state.figures.flags.throttled == one_by_one.state.figures.flags.throttled
    assert encode_frame(together.frame(recording.end_ns)) == encode_frame(one_by_one.frame(recording.end_ns))


def a_run_with_a_stall(begin_s, stall_s):
    """60 s of steps of four ranks, and between them a stall."""
    for received in a_run(3000, world=4):
        late_ns = int(NS * stall_s) if received.t_ns > START_NS + NS * begin_s else 0
        message = received.message
        if isinstance(message, Steps):
            message = replace(message, base_ns=message.base_ns + late_ns)
        elif isinstance(message, (Progress, Usage, Bye)):
            message = replace(message, t_ns=message.t_ns + late_ns)
        yield received._replace(t_ns=received.t_ns + late_ns, message=message)


def of_hosts(quarter):
    """What the agents of three hosts and the collector send in a quarter of a second.

    77 is silent from 8 to 16 s and from 56 to 69 s. It leaves out rows from 20 to 25 s; at 50 s its agent
    starts anew, and leaves out some from 52 s on. A link of 78 loses segments from 24 to 31 s, one of the
    collector's host from 42 to 49 s. 79 introduces itself at 18.3 s, and has left out rows before.
    """
    t_ns, at_s = START_NS + quarter * NS // 4, quarter / 4
    thinned = {77: max(0, min(quarter, 100) - 80) if at_s < 50 else max(0, quarter - 207), 79: 5}
    for session, bad in ((77, ()), (78, range(24, 31)), (79, ()), (0, range(42, 49))):
        silent = session == 77 and (8 <= at_s < 16 or 56 <= at_s < 69)
        links = None
        if quarter % 20 == {78: 0, 0: 10}.get(session):
            ends = ("10.0.0.1", "10.0.0.2") if session else ("10.0.0.2", "10.0.0.1")
            links = (HostLink(*ends, 1, 300, 200, 5_000, 100 if int(at_s) in bad else 0, 10**9),)
        if not silent:
            usage = HostUsage(
                t_ns, 50.0, 1 << 30, 1.5, None, 170_000, 0, None, thinned.get(session, 0), links
            )
            yield Received(t_ns, -1, session, 0, usage)


def together_of(messages, in_columns):
    """A run of them, with the usage of hosts in columns or not."""
    bodies = [encode(received.message) for received in messages]
    kinds = [type(received.message) for received in messages]
    steps, usage = ([at for at, one in enumerate(kinds) if one is kind] for kind in (Steps, HostUsage))
    usage = usage if in_columns else []
    others = [(at, one) for at, one in enumerate(messages) if at not in {*steps, *usage}]
    columns = (
        Readings.decoded(HostUsage, np.array(usage, np.int64), [bodies[at] for at in usage])
        if usage
        else None
    )
    heads = np.array([received[:4] for received in messages], np.int64).T
    of_steps = StepMessages.decoded([bodies[at] for at in steps])
    return MessageRun(heads, np.array(steps, np.int64), of_steps, others, [columns] if columns else [])


def is_own(received):
    """Whether it is usage of the collector's own host."""
    return received.session == 0 and isinstance(received.message, HostUsage)


def in_rounds(messages, seconds):
    """What arrives within so many seconds, that of agents and of the collector last: as it is taken live."""
    for _, some in groupby(messages, lambda received: (received.t_ns - START_NS) // int(seconds * NS)):
        yield sorted(some, key=lambda one: (is_own(one), one.rank < 0, isinstance(one.message, HostUsage)))


@pytest.mark.parametrize(
    ("live", "in_columns"),
    [
        pytest.param(False, False, id="recorded-objects", marks=pytest.mark.slow),
        pytest.param(False, True, id="recorded-columns", marks=pytest.mark.slow),
        pytest.param(True, False, id="live-objects", marks=pytest.mark.slow),
        pytest.param(True, True, id="live-columns"),
    ],
)
def test_checks_of_hosts_that_find_nothing_are_passed_over(monkeypatch, live, in_columns):
    """`live`: what has arrived in 250 ms is taken together, usage of the collector's host alone."""
    # All ranks are past the stall in a quarter of a second without a check.
    messages = [*a_run_with_a_stall(32, 12.26), *chain.from_iterable(map(of_hosts, range(1, 288)))]
    for session, at_s in {0: 0, 77: 0, 78: 0, 79: 18.3}.items():
        host = Host(1, "run-1", session, f"h{session}", 5, 1, 1, 64, 1 << 40, "boot")
        messages.append(Received(START_NS + int(at_s * NS), -1, session, 0, host))
    messages.sort(key=lambda received: (received.t_ns, not isinstance(received.message, (Run, Hello, Host))))
    rounds = [*in_rounds(messages, 0.25)] if live else [messages]
    checks, check = [], HostLog.check
    monkeypatch.setattr(HostLog, "check", lambda self, *args: checks.append(self) or check(self, *args))
    one_by_one, together = Reducer(stall_s=4), Reducer(stall_s=4)
    for received in chain.from_iterable(rounds):
        one_by_one.feed(received)
    n_checks = len(checks)
    for some in rounds:
        alone = [*filter(is_own, some)] if live else []
        run, at = together_of(some[: len(some) - len(alone)], in_columns), 0
        while at < len(run):
            at = together.feed_run(run, at, lambda: pytest.fail("refused"))
        for received in alone:
            together.feed(received)
    log = one_by_one.state.log.all()
    assert together.state.log.all() == log  # the times as well
    assert together.state.hosts.bad_links == one_by_one.state.hosts.bad_links
    kinds = Counter(event.kind for event in log)
    assert (kinds["host_thinned"], kinds["network"]) == (3, 2)
    assert {"host_unreachable", "host_lost", "host_back", "stall", "stall_end"} <= {*kinds}
    assert max(n_checks, len(checks) - n_checks) < 100, "of 168, two a second"


@pytest.mark.parametrize("begin_ns", [START_NS, 5])
@pytest.mark.parametrize("inside", [b"\x95\xcf\x00\x00", b"\x95\xcf\x95\xcf", b"\x01\x02\x95\xcf"], ids=repr)
def test_records_are_found_whatever_is_in_them(tmp_path, begin_ns, inside):
    """What nearly all records begin with is also inside of messages; small times are written otherwise."""
    own_ns = int.from_bytes(inside, "big") << 16
    messages = [*a_run(30, world=4)][:9]
    for rank in (*range(4), 3, 2, 1, 0):
        beat = progress(own_ns + rank, 1)
        messages.append(Received(0, rank, messages[1 + rank].session, 0, beat))
    messages = [one._replace(t_ns=begin_ns + at) for at, one in enumerate(messages)]
    path = tmp_path / "run.ddptop"
    write(path, messages)
    with Recording.open(path) as recording:
        (run,) = recording.runs()
        assert [run.received(place) for place in range(len(run))] == messages


@pytest.mark.parametrize("command", [["report"], ["replay", "--json"], ["check", "--against", "run.ddptop"]])
def test_no_interrupt_is_lost_in_a_comparison(command, tmp_path, monkeypatch, capsys):
    """numpy looks for attributes of an enum's member, in Python 3.11 by code of Python, and drops what that
    raises: a Ctrl-C that came there was ignored, in one of eight commands."""
    monkeypatch.chdir(tmp_path)
    write(Path("run.ddptop"), a_run(300, world=4))
    looked_up = []

    def note_call(frame, event, _argument):
        code = frame.f_code
        if event == "call" and code.co_name == "__getattr__" and Path(code.co_filename).name == "enum.py":
            looked_up.append((frame.f_back.f_code.co_filename, frame.f_back.f_lineno))

    sys.setprofile(note_call)
    try:
        main([command[0], "run.ddptop", *command[1:]])
    finally:
        sys.setprofile(None)
    capsys.readouterr()
    assert not [place for place in looked_up if "ddptop" in place[0]]
