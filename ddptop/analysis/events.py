"""Events and sessions: what the collector and the ranks report beside their steps.

An event changes the state and adds a line to the log. Each process of a rank is a session: this module
decides which session is the present one and counts the steps that are missing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.batch_pace import BatchPace
from ddptop.analysis.figures import Figures
from ddptop.analysis.health.bad_loss import note_bad_weights
from ddptop.analysis.health.exits import (
    KILLED_LATE_NS,
    OutsideEnd,
    describe_exit,
    exit_known,
    failure_of,
    process_phrase,
    reason,
    update_left_early,
)
from ddptop.analysis.health.hosts import on_full_disk
from ddptop.analysis.health.outside_end import ended_by_outside, outside_end, unexplained_ends
from ddptop.analysis.ledger.recorded import (
    MARKS_THE_END,
    MEASURES_ASIDE,
    SAME_LENGTH,
    SCALES_DEAR,
    TAKES_WITNESSES,
)
from ddptop.analysis.ledger.sums import EARLIER_WAITS, SAME_LENGTH_WAITS
from ddptop.analysis.ranks import ABSENT, Meeting, NotInitialized, RankState, ReachedMilestone
from ddptop.analysis.stall.at_exit import keep_stall
from ddptop.analysis.stall.current import stall_now
from ddptop.analysis.stall.rank_position import device_report, kernel_report, note_kernel
from ddptop.analysis.stall.start_watch import LATE_STALLS
from ddptop.analysis.steps.pairing import Pairing
from ddptop.frames.calls import compiler_call, place
from ddptop.frames.conditions import say
from ddptop.protocol.hosts import HOST_END
from ddptop.protocol.limits import MAX_SHOWN_WORLD, NS
from ddptop.protocol.messages import (
    BAD_WEIGHTS,
    FINISHED,
    IN_INITIALIZATION,
    LAUNCHER_SIGNAL,
    MILESTONE,
    REACH,
    RECORDED,
    UNRECORDED,
    Bye,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.analysis.state import RunState
    from ddptop.protocol.evidence import Evidence
    from ddptop.protocol.messages import Event, Hello, Scalar
    from ddptop.protocol.vocabulary import Severity

    Integers = NDArray[np.int64]


def begin_session(state: RunState, hello: Hello, t_ns: int) -> None:
    """A process reports for a rank for the first time."""
    if hello.session in state.sessions.by_number or not 0 <= hello.rank < hello.world_size:
        return
    if state.clock is None:
        state.clock = (hello.unix_ns, t_ns)
    if hello.incarnation < state.incarnation and state.ranks and not _replaces(state, hello):
        return
    _regroup(state, hello, t_ns)
    if state.ranks[hello.rank] is ABSENT:
        state.ranks[hello.rank] = RankState(state.table, hello.rank)
    rank_state = state.ranks[hello.rank]
    restarted = rank_state.hello is not None or hello.incarnation > 0
    state.sessions.add(hello)
    joined = None if rank_state.hello is not None else hello.host
    rank_state.begin(hello, hello.session, t_ns)
    state.end.finished.discard(hello.rank)
    state.start.not_initialized.pop(hello.rank, None)
    state.presence.note_change(joined)
    signalled = state.end.launcher_signal
    # The ranks of another host go on without those of this launcher, whose own may just have been started.
    if hello.incarnation > 0 and signalled is not None and hello.host != signalled.host:
        state.end.launcher_signal = None
    again = f"elastic restart {hello.incarnation}" if hello.incarnation else "restarted"
    kind, text = ("restart", again) if restarted else ("joined", "joined")
    state.log.add_rank(state.unix_s(t_ns), kind, text, hello.rank, state.world)


def return_to_session(state: RunState, number: int, t_ns: int) -> None:
    """The newer process exited first; the rank belongs to the older one (session `number`) again."""
    session = state.sessions.by_number.get(number)
    if session is None or session.rank >= state.world:
        return
    rank_state = state.ranks[session.rank]
    if rank_state.session == number or session.hello.incarnation < state.incarnation:
        return
    _regroup(state, session.hello, t_ns)
    rank_state.begin(session.hello, number, t_ns)
    state.sessions.make_newest(session)
    state.presence.note_change()


def count_lost(state: RunState, ranks: Integers, first: Integers, stop: Integers, t_ns: Integers) -> int:
    """Count rows that never arrive as lost, (n,) spans of them: of these ranks, from step `first` to before
    `stop`, known since `t_ns`. Returns how many."""
    every = state.missing.kept_every  # the recording has only the steps that are divisible by it
    lost = np.maximum((stop - 1) // every - (first - 1) // every, 0)
    np.add.at(state.table.lost_records, ranks, lost)
    if lost.any():
        state.missing.note_lost(int(t_ns[lost > 0][0]))
    return int(lost.sum())


def count_unsent(state: RunState, rank_state: RankState, steps: int, t_ns: int) -> int:
    """Count the rows that a process which exited after `steps` steps did not send; returns how many."""
    session = state.session_of(rank_state)
    if session is None or steps <= session.next_step:
        return 0
    rank, first, stop, arrived_ns = np.array([[rank_state.row], [session.next_step], [steps], [t_ns]])
    session.next_step = steps
    return count_lost(state, rank, first, stop, arrived_ns)


def note_left_early(state: RunState, t_ns: int) -> None:
    """Log the ranks that are now known to have exited while the others needed them."""
    if not state.end.has_evidence or not 0 < 2 * len(state.end.finished) <= state.world:
        return
    for rank in update_left_early(state.ranks):
        text = describe_exit(state.ranks[rank])
        state.log.add_rank(state.unix_s(t_ns), "failed_rank", text, rank, state.world)


def note_compiling(state: RunState, rank: int, evidence: Evidence, t_ns: int) -> None:
    """Log that a rank compiles, as its stack shows: why a step took so long is known after it, too."""
    call = compiler_call(evidence.stacks)
    where = f" ({place(call)})" if call is not None else ""
    text = f"was compiling in step {evidence.step:,}{where}"
    state.log.add_rank(state.unix_s(t_ns), "compiling", text, rank, state.world, step=evidence.step)


def note_out_of_batches(state: RunState, rank: int, step: int, t_ns: int) -> None:
    """Log the first time that a rank has no batches left, under `join()`: each epoch may have one."""
    if rank not in state.ran_out:
        state.ran_out.add(rank)
        text = say("out_of_batches", rank=rank, step=step)
        state.log.add(state.unix_s(t_ns), "out_of_batches", text, rank=rank, step=step)


def _regroup(state: RunState, hello: Hello, t_ns: int) -> None:
    """Start anew with a new incarnation or process: incomplete steps stay incomplete, and step numbers begin
    at 0 again."""
    ranks = state.ranks
    newer = hello.incarnation > state.incarnation
    replaced = hello.rank < len(ranks) and ranks[hello.rank].hello is not None
    is_other_group = newer or hello.world_size > len(ranks) or (replaced and _replaces(state, hello))
    resized = hello.world_size != len(ranks) and is_other_group
    if not (newer or replaced or resized):
        return
    state.settle()
    if newer:
        _note_failure(state)  # while the ranks are still those that have ended
    empty = not ranks
    if resized:
        if not empty:
            text = f"the group has {hello.world_size:,} ranks from here on, {len(ranks):,} before"
            unix_s = hello.unix_ns / 1e9
            state.log.add(unix_s, "resized", text)
        state.resize(hello.world_size)
    if newer:
        state.incarnation = state.log.incarnation = hello.incarnation
        state.cards.clear()  # each process sends its own
    if newer or (resized and not empty):
        state.groups.restart()
        for rank_state in ranks:
            trained = state.complete_step is not None
            if rank_state is not ABSENT and (trained or not _began_with(rank_state, hello)):
                rank_state.forget_process()
    _begin_group(state, t_ns)
    state.presence.note_change()


def _note_failure(state: RunState) -> None:
    """Keep how the attempt that ends now has failed."""
    ended = unexplained_ends(state)
    if ended:
        state.end.failures = [*state.end.failures[1 - MAX_FAILURES :], failure_of(state.ranks[ended[0]])]


MAX_FAILURES = 1000
"""Failures of earlier attempts that are kept."""


def _begin_group(state: RunState, t_ns: int) -> None:
    world = state.world
    state.end.begin_group()
    state.pairing = Pairing(world)
    state.figures = Figures(world, state.figures.size)
    state.ledger.begin_group(t_ns)
    state.past_activities.begin_group()
    state.batch_pace = BatchPace()
    state.synchronisation.restart(world)
    state.replicas.restart(world)
    state.loss_spread.restart(world)
    state.group_arrivals.restart()
    state.complete_step = None


def _replaces(state: RunState, hello: Hello) -> bool:
    """Whether a process began after the rank's last one, by the wall clock.

    torchrun counts restarts on each host by itself: where hosts leave or come, or one of them restarts its
    ranks, the processes of one group have different numbers of restarts.
    """
    before = state.sessions.newest_of(hello.rank)
    if before is None:
        return hello.world_size == state.world  # a rank that the group before did not have
    return hello.unix_ns > before.hello.unix_ns


TOGETHER_NS = 15 * NS
"""Processes of one group begin within this time of each other, those of the group before it earlier."""


def _began_with(rank_state: RankState, hello: Hello) -> bool:
    """Whether a rank's process belongs to the new group, of which `hello` is the first.

    The process has trained no step with the others. If it does not belong to it, another one will replace it
    soon.
    """
    own_hello = rank_state.hello
    if own_hello is None or own_hello.world_size != hello.world_size or own_hello.host == hello.host:
        return False  # a host counts the restarts of its own ranks alike
    return own_hello.incarnation != hello.incarnation and own_hello.unix_ns > hello.unix_ns - TOGETHER_NS


NOT_LOGGED = frozenset({"rebuild", "restart", HOST_END})
"""The end of an agent, and kinds that are logged in more detail when LAYOUT or HELLO arrives."""

PLAIN_FAILURE = 1
"""Python's exit code after an exception, which has been logged already."""


def on_event(state: RunState, event: Event, t_ns: int) -> None:
    """Take one event. An event of an unknown rank or an earlier process is ignored."""
    rank_state = state.ranks[event.rank] if 0 <= event.rank < state.world else None
    if event.kind in _RANK_EVENT_HANDLERS:
        if rank_state is not None and rank_state is not ABSENT:
            session = event.fields.get("session", rank_state.session)
            if session == rank_state.session:
                _RANK_EVENT_HANDLERS[event.kind](state, event, rank_state, t_ns)
    elif event.kind in _RUN_EVENT_HANDLERS:
        _RUN_EVENT_HANDLERS[event.kind](state, event, t_ns)
    elif event.kind not in NOT_LOGGED:
        text = event.kind.replace("_", " ") + (f": {_event_text(event)}" if _event_text(event) else "")
        if rank_state is not None:
            _log_event(state, event, text, t_ns, severity="info")
        else:
            step = event.step if event.step >= 0 else None
            state.log.add(state.unix_s(t_ns), event.kind, text, severity="info", step=step)


def _on_recording(state: RunState, event: Event, t_ns: int) -> None:
    """The recording has less from here on, or has no room."""
    state.missing.kept_every = _positive_or_none(event.fields.get("every")) or state.missing.kept_every
    beats_s = event.fields.get("beats_s")
    if isinstance(beats_s, (int, float)) and beats_s > 1:
        state.interruptions.unkept_ns = int(beats_s * 1e9)
    text = _event_text(event) or "the recording is incomplete"
    if state.missing.note_recording_trouble(text, t_ns):
        state.log.add(state.unix_s(t_ns), "recording", text)


def _on_rank_returned(state: RunState, event: Event, t_ns: int) -> None:
    return_to_session(state, _positive_or_none(event.fields.get("session")) or 0, t_ns)
    _log_event(state, event, "reports again: the process that replaced it has exited", t_ns)


def _on_settings(state: RunState, event: Event, t_ns: int) -> None:
    stall_s = event.fields.get("stall_s")
    if isinstance(stall_s, (int, float)) and stall_s > 0:
        state.stall_s = float(stall_s)
    state.end.without_launcher = event.fields.get("launcher") is False
    ledger_version = _positive_or_none(event.fields.get("ledger")) or 0
    state.ledger.scales_dear = ledger_version >= SCALES_DEAR
    state.ledger.measures_aside = ledger_version >= MEASURES_ASIDE
    state.ledger.marks_the_end = ledger_version >= MARKS_THE_END
    state.ledger.takes_witnesses = ledger_version >= TAKES_WITNESSES
    state.ledger.rare_waits = SAME_LENGTH_WAITS if ledger_version >= SAME_LENGTH else EARLIER_WAITS


def _on_analyser_result(state: RunState, event: Event, t_ns: int) -> None:
    texts = [str(text) for name, text in sorted(event.fields.items()) if name.startswith("text")]
    asked_ns = _positive_or_none(event.fields.get("asked_ns")) or 0
    state.analyser_results[event.kind] = (asked_ns, tuple(texts))


def _on_interruption(state: RunState, event: Event, t_ns: int) -> None:
    state.interruptions.add(_positive_or_none(event.fields.get("from_ns")) or t_ns, t_ns)
    state.log.add(state.unix_s(t_ns), event.kind, _event_text(event))


def _on_detail_thinned(state: RunState, event: Event, t_ns: int) -> None:
    thins = _positive_or_none(event.fields.get("thin")) is not None
    state.log.add(state.unix_s(t_ns), event.kind, _event_text(event), severity="warning" if thins else "info")


def _on_collector_restart(state: RunState, event: Event, t_ns: int) -> None:
    state.interruptions.add(state.newest_ns, t_ns)
    state.excuses.restarted_ns = t_ns
    text = _event_text(event) or "collector restarted, the run went on"
    state.log.add(state.unix_s(t_ns), event.kind, text)


def _on_launcher_signal(state: RunState, event: Event, t_ns: int) -> None:
    name, host = str(event.fields.get("signal")), str(event.fields.get("host") or "")
    state.log.add(state.unix_s(t_ns), event.kind, say(LAUNCHER_SIGNAL, host=host, signal=name))
    if state.end.launcher_signal is not None and outside_end(state) is not None:
        return  # of several launchers, or several signals, the first
    sent_ns = state.clocks.to_collector(host, event.t_ns) if state.hosts.is_remote(host) else event.t_ns
    sent_ns = t_ns if sent_ns is None else min(t_ns, sent_ns)
    state.end.launcher_signal = OutsideEnd(name, sent_ns, host, *stall_now(state, t_ns))


def _on_refused(state: RunState, event: Event, t_ns: int) -> None:
    if state.missing.note_refused(event, t_ns):
        reason = event.fields.get("reason")
        text = say("refused_messages", "event", why=f": {reason}" if reason else "")
        state.log.add(state.unix_s(t_ns), event.kind, text)


def _on_lost(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    if rank_state.bye is not None:
        return
    keep_stall(state, t_ns)
    rank_state.gone_ns = t_ns
    state.presence.note_change()
    _note_exit(state, event, rank_state, t_ns)
    text = describe_exit(rank_state) if exit_known(rank_state) else "lost: no process any more"
    _log_event(state, event, text, t_ns)
    note_left_early(state, t_ns)


def _on_exited(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    """The exit code of a process that sent BYE or was reported lost before."""
    if not event.fields.get("left") and (event.fields.get("exit_code") or event.fields.get("signal")):
        keep_stall(state, t_ns)
    _note_exit(state, event, rank_state, t_ns)
    if event.fields.get("left"):
        if rank_state.signal is not None or rank_state.exit_code:
            text = f"{process_phrase(rank_state)}, after it had left its group"
            _log_event(state, event, text, t_ns, severity="info")
    elif rank_state.signal is not None:
        _log_event(state, event, f"was ended by {rank_state.signal}", t_ns)
    elif rank_state.exit_code and (rank_state.exit_code != PLAIN_FAILURE or not reason(rank_state)):
        _log_event(state, event, f"exited with code {rank_state.exit_code}", t_ns)


def _note_exit(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    code, signal = event.fields.get("exit_code"), event.fields.get("signal")
    if rank_state.exit_ns is None and (code is not None or signal is not None):
        rank_state.exit_ns = t_ns
    if isinstance(code, int):
        rank_state.exit_code = code
        _note_kill_by_kernel(event, rank_state)  # one of its workers may have been killed
        if code:  # a script's sys.exit(3) says no reason: its launcher alone knows the code
            rank_state.left_early = False
    if isinstance(signal, str) and signal:
        rank_state.signal = signal
        _note_kill_by_kernel(event, rank_state)
        late_ns = t_ns - (state.end.first_ns or t_ns)
        killed = signal == "SIGKILL" and not rank_state.out_of_memory
        rank_state.killed_late = killed and late_ns >= KILLED_LATE_NS
        # What it raised before the launcher killed it came of the interruption, too.
        if state.end.launcher_signal is not None and (signal == "SIGKILL" or not reason(rank_state)):
            rank_state.by_launcher = ended_by_outside(state, rank_state)


def _on_process(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    stopped = event.fields.get("state") == "stopped"
    if stopped != rank_state.stopped:
        rank_state.stopped = stopped
        text = "was stopped (SIGSTOP)" if stopped else "was continued (SIGCONT)"
        _log_event(state, event, text, t_ns, severity="warning" if stopped else "info")


def _on_warned(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    _log_event(state, event, f"was warned: {_event_text(event)}", t_ns, severity="warning")


def _on_phase(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    begins = event.kind == "phase_begins"
    if begins:
        rank_state.phase_name = str(event.fields.get("name") or "")
    rank_state.declare(begins, t_ns)
    state.ledger.note_phase(rank_state.row, event.t_ns, t_ns, begins=begins)
    state.excuses.declared_ns = t_ns


def _on_saved(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    saved_ns = event.fields.get("ns")
    if isinstance(saved_ns, int) and saved_ns > 0:
        state.ledger.note_saved(rank_state.row, event.t_ns, saved_ns, t_ns)


def _on_bad_weights(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    if event.step >= 0:  # a rank sends none before its first step
        note_bad_weights(state, event.rank, event.step, t_ns)


def _on_evaluated(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    evaluated_ns, data_ns = (_positive_or_none(event.fields.get(name)) or 0 for name in ("ns", "data_ns"))
    if 0 <= data_ns <= evaluated_ns:
        state.past_activities.end_evaluation(event.rank, event.t_ns)
        state.ledger.note_evaluated(rank_state.row, event.t_ns, evaluated_ns, data_ns, t_ns)


def _on_compiled(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    compiled_ns, phase, times = (
        _positive_or_none(event.fields.get(name)) or 0 for name in ("ns", "phase", "times")
    )
    if compiled_ns > 0:
        state.ledger.note_compiled(rank_state.row, event.t_ns, compiled_ns, phase, t_ns)
    what = str(event.fields.get("what") or "")
    # What the first step compiles is the start, and a backward is compiled with its forward.
    if event.step <= 0 or what == "backward":
        return
    again = " again" if times else ""
    text = f"compiled{again} in step {event.step:,}{f': {what}' if what else ''}"
    state.log.add_rank(state.unix_s(t_ns), "compiling", text, event.rank, state.world, step=event.step)


def _on_timer(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    ready_us, end_us = event.fields.get("ready_us"), event.fields.get("end_us")
    if isinstance(ready_us, (int, float)) and isinstance(end_us, (int, float)):
        state.timers.take(event.rank, ready_us, end_us)


def _on_device(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    rank_state.device = device_report(event, t_ns)


LATE_BESIDE_OTHERS = 0.5
"""Multiples of `stall_s` beside ranks that report: what is known of a late one is there once
they are stalled."""


def _on_not_initialized(state: RunState, event: Event, t_ns: int) -> None:
    """A rank that has not reported yet, and others wait for it: from now on the group is shown."""
    world, late_s = _positive_or_none(event.fields.get("world")) or 0, event.fields.get("late_s")
    if not isinstance(late_s, (int, float)) or not 0 <= event.rank < world <= MAX_SHOWN_WORLD:
        return
    stalls = LATE_BESIDE_OTHERS if any(rank.running for rank in state.ranks) else LATE_STALLS
    if late_s < stalls * state.stall_s or (state.world and event.rank >= state.world):
        return
    if not state.world:
        state.resize(world)
        _begin_group(state, t_ns)
        state.presence.note_change()
    if state.ranks[event.rank] is ABSENT:
        state.ranks[event.rank] = RankState(state.table, event.rank)
    rank_state = state.ranks[event.rank]
    if rank_state.hello is None:
        rank_state.kernel = kernel_report(event, t_ns)
        words = str(event.fields.get("waiting") or "").split()
        waiting = tuple(int(word) for word in words if word.isdecimal() and int(word) < world)
        late = NotInitialized(t_ns, t_ns - int(late_s * NS), waiting, bool(event.fields.get("torch")))
        state.start.not_initialized[event.rank] = late


def _on_in_initialization(state: RunState, event: Event, t_ns: int) -> None:
    """After a restart, ranks have been in init_process_group for some time: the processes before are gone."""
    world = _positive_or_none(event.fields.get("world")) or 0
    restart = _positive_or_none(event.fields.get("restart")) or 0
    for_s, words = event.fields.get("for_s"), str(event.fields.get("ranks") or "").split()
    if not isinstance(for_s, (int, float)) or not restart or not 0 < world <= MAX_SHOWN_WORLD:
        return
    if restart > state.incarnation and state.world:
        _note_failure(state)
        state.settle()
        state.incarnation = state.log.incarnation = restart
        state.groups.restart()
        for rank_state in state.ranks:
            if rank_state is not ABSENT:
                rank_state.forget_process()
        _begin_group(state, t_ns)
        state.presence.note_change()
    if restart == state.incarnation:
        ranks = frozenset(int(word) for word in words if word.isdecimal() and int(word) < world)
        before = state.start.meeting
        if before is not None and before.restart == restart and t_ns - before.t_ns < MEETING_NS:
            ranks |= before.ranks  # of other hosts
        inside = frozenset(r for r in ranks if r >= state.world or state.ranks[r].hello is None)
        state.start.meeting = Meeting(restart, t_ns, t_ns - int(for_s * NS), inside)


MEETING_NS = 12 * NS
"""Ranks that are not reported to be in init_process_group for so long have met: two reports were due."""


MAX_MILESTONES = 32
"""Milestones of a rank that are kept: made-up events must not fill the memory."""


def _on_milestone(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    """A rank has come to a place on the way to its first step."""
    if rank_state.hello is None:
        return
    host = rank_state.host
    at_ns = state.clocks.to_collector(host, event.t_ns) if state.hosts.is_remote(host) else event.t_ns
    at_ns = t_ns if at_ns is None else min(t_ns, at_ns)
    if event.fields.get("name") == REACH:  # no progress, and the newest one counts
        rank_state.milestones[REACH] = ReachedMilestone(at_ns, event.fields)
        return
    if len(rank_state.milestones) < MAX_MILESTONES:
        rank_state.milestones.setdefault(str(event.fields.get("name")), ReachedMilestone(at_ns, event.fields))
    state.start.has_milestones = True
    rank_state.moved_ns = max(rank_state.moved_ns, t_ns)
    rank_state.stood_ns = 0
    if event.fields.get("name") == RECORDED and not rank_state.hello.timing_path:
        device, backend, path = (str(event.fields.get(n) or "") for n in ("device", "backend", "timing_path"))
        hello = replace(rank_state.hello, device=device, backend=backend, timing_path=path)
        rank_state.hello = hello
        session = state.session_of(rank_state)
        if session is not None:
            session.hello = hello
        state.presence.note_change()


def _on_kernel(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    note_kernel(rank_state, event, t_ns)


def _on_unsent(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    steps, exact = event.fields.get("steps"), event.fields.get("exact")
    lost = count_unsent(state, rank_state, steps, t_ns) if type(steps) is int else 0
    if exact and type(steps) is int:
        rank_state.step = max(rank_state.step, steps)
    if exact and event.fields.get("finished") is True and rank_state.bye is None:
        # Its BYE was not taken either. It may have finished without any step.
        rank_state.bye, rank_state.ended_ns = Bye(event.t_ns, FINISHED), t_ns
        state.presence.note_change()
        state.end.finished.add(event.rank)
    if exact and lost:
        text = f"ended before {lost:,} finished step{'' if lost == 1 else 's'} could be sent"
        _log_event(state, event, text, t_ns, severity="warning")
    elif event.fields.get("has_counter") is False and rank_state.before_recording:
        return  # it was on its way to its first step
    elif not exact:
        least = f"{lost:,} of them at least" if lost else "how many is not known"
        host = event.fields.get("host")
        what = f"nothing more came from host {host}" if host else "exited without BYE"
        text = f"{what}: its last steps may be missing, {least}"
        _log_event(state, event, text, t_ns, severity="warning")


def _on_counts(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    """The rank's counts up to here, for a reader that reads only the end of a recording."""
    session = state.session_of(rank_state)
    records, lost = event.fields.get("records"), event.fields.get("lost")
    if not state.tail or session is None or not isinstance(records, int) or not isinstance(lost, int):
        return
    rank_state.records, rank_state.lost_records = max(0, records), max(0, lost)
    if lost > 0:
        state.missing.note_lost(t_ns)
    if not session.begun and event.step >= 0:
        session.next_step = max(session.next_step, event.step)


def _on_unrecorded(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    """Rows that the disk of the recording did not take: lost there, whether or not they are seen here.

    A replay has a gap in their place, or its end. The live run had them.
    """
    rows, steps = _positive_or_none(event.fields.get("rows")), _positive_or_none(event.fields.get("steps"))
    session = state.session_of(rank_state)
    if rows is None or steps is None or session is None:
        return
    gap = count_unsent(state, rank_state, steps, t_ns) if session.begun or not state.tail else 0
    rank_state.lost_records += max(0, rows - gap)
    rank_state.step = max(rank_state.step, steps)
    trouble = state.missing.recording_trouble
    state.missing.note_lost(t_ns if trouble is None else trouble[0])


def _on_gradients(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    """An optimizer step with gradients that were not all-reduced, or a forward without its backward."""
    model = event.fields.get("model")
    group = state.groups.of(event.rank, model) if isinstance(model, int) else None
    ranks = group.ranks if group else ()
    reports = state.synchronisation if event.kind == "unreduced" else state.synchronisation.skipped
    reports.take(event.rank, event, ranks, state.presence.trained_in(event.step), state.unix_s(t_ns))


_RANK_EVENT_HANDLERS = {
    MILESTONE: _on_milestone,
    "unreduced": _on_gradients,
    "skipped_backward": _on_gradients,
    "counts": _on_counts,
    "unsent": _on_unsent,
    UNRECORDED: _on_unrecorded,
    "device": _on_device,
    **dict.fromkeys(("kernel", "worker_call"), _on_kernel),
    "lost_rank": _on_lost,
    "exit": _on_exited,
    "process": _on_process,
    "disk": on_full_disk,
    "warning": _on_warned,
    "phase_begins": _on_phase,
    "phase_ends": _on_phase,
    "saved": _on_saved,
    "evaluated": _on_evaluated,
    BAD_WEIGHTS: _on_bad_weights,
    "compiled": _on_compiled,
    "timer": _on_timer,
}


_RUN_EVENT_HANDLERS = {
    "not_initialized": _on_not_initialized,
    **dict.fromkeys(("recording", "thinned"), _on_recording),
    "rank_returned": _on_rank_returned,
    "refused_messages": _on_refused,
    "settings": _on_settings,
    IN_INITIALIZATION: _on_in_initialization,
    LAUNCHER_SIGNAL: _on_launcher_signal,
    **dict.fromkeys(("analyser", "ras"), _on_analyser_result),
    "interruption": _on_interruption,
    "detail_thinned": _on_detail_thinned,
    "collector_restart": _on_collector_restart,
}


def _log_event(
    state: RunState, event: Event, text: str, t_ns: int, *, severity: Severity | None = None
) -> None:
    world = state.world
    state.log.add_rank(state.unix_s(t_ns), event.kind, text, event.rank, world, severity=severity)


def _event_text(event: Event) -> str:
    return str(event.fields.get("message") or event.fields.get("note") or "")


def _note_kill_by_kernel(event: Event, rank_state: RankState) -> None:
    """Note whether the kernel killed a process for want of memory, where the event says so; those of older
    recordings say it only if it did.

    A kill that is known stays: a collector that has been started again sees the exit too late for it."""
    killed = event.fields.get("out_of_memory")
    if isinstance(killed, bool) and not rank_state.out_of_memory:
        rank_state.out_of_memory = killed


def _positive_or_none(value: Scalar) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
