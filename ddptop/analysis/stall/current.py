"""The present stall: whether one is due, the state of each rank, the diagnosis, the `Stall` of a frame, and
its lines in the log.

A stall is due when the step of some rank takes longer than allowed. How long it takes is measured by the
rank's own clock up to its last message, and from there by the collector's. Arrival times alone would be wrong
where the collector was stopped.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.health.exits import follows
from ddptop.analysis.health.hosts import (
    UNREACHABLE_S,
    host_states,
    quiet_hosts,
    reports_of_hosts,
    silent_ranks,
)
from ddptop.analysis.hosts import BACK_NS
from ddptop.analysis.rank_table import STALE_S
from ddptop.analysis.stall import sentences
from ddptop.analysis.stall.collectives import DEFAULT_GROUP
from ddptop.analysis.stall.diagnosis import Diagnosis, KeptStall, RankProgress, diagnose
from ddptop.analysis.stall.rank_position import (
    answer_since,
    device_since,
    rank_position,
    sequence_in_group,
)
from ddptop.analysis.stall.start import start_wait
from ddptop.analysis.stall.start_sentences import meets_nobody_again, start_case
from ddptop.analysis.stall.start_watch import LATE_STALLS
from ddptop.frames.calls import function_entered, in_collective
from ddptop.frames.conditions import SILENT_STATES, STALLS, UNREACHABLE
from ddptop.frames.numbers import fixed
from ddptop.frames.phrases import ranks_phrase
from ddptop.frames.stall import MAX_POSITIONS, Stall
from ddptop.frames.statistics import median
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.frames.stall import RankPosition
    from ddptop.protocol.vocabulary import RankStatus, RunOutcome

STALL_STEPS = 10
"""A step may take this many median steps before it counts as a stall."""

FIRST_STEP = 4
"""Factor of `stall_s` until the first step has finished: compilation and first batches take longer."""

COMPILE_GRACE_NS = 10 * NS
"""Added to the limit of a rank that compiles: it is asked again before it is shown as stalled."""

IN_STEP = (Phase.FORWARD, Phase.BACKWARD)
"""After some ranks have finished, the others wait for them only in these phases."""


def stalled_since(state: RunState, now_ns: int, *, grace_ns: int = 0) -> int | None:
    """When the stalled step began, on the collector's clock; None while there is no stall.

    `grace_ns`: how much longer than usual a rank that compiles may take. Where it is given, a rank in forward
    is also given the time to answer.
    """
    if state.run is not None and state.run.state != "live":
        return None
    if not state.presence.running.any():
        return None
    since_ns = max(int(state.table.moved_ns[state.presence.running].min()), state.excuses.declared_ns)
    if now_ns - since_ns < state.stall_s * NS:  # the common case, at little cost
        return None
    wait = start_wait(state)
    if wait is not None:
        since_ns = max(wait.since_ns, state.excuses.declared_ns)
        factor = FIRST_STEP if wait.may_take_long else 1
        return since_ns if now_ns - since_ns >= factor * state.stall_s * NS else None
    ranks = state.ranks
    running = [*compress(ranks, state.presence.running)]
    if any(rank.hello is None or rank.before_recording for rank in ranks):
        return None
    limit_ns = stall_limit_ns(state)
    # Silence of a host does not show that its ranks make no progress: those of the others decide.
    quiet = quiet_hosts(state, now_ns) if state.hosts.known else set()
    stalled = [r for r in running if r.host not in quiet and _step_ns(state, r, now_ns) >= limit_ns]
    if not stalled or not _is_waited_for(ranks, running):
        return None
    compiles = state.excuses.compiling_ns > 0 and now_ns - state.excuses.compiling_ns < limit_ns + grace_ns
    since_ns = max(min(rank.moved_ns for rank in stalled), state.excuses.declared_ns)
    usual = bool(state.excuses.usual_pauses) and _takes_its_usual_time(state, since_ns, now_ns)
    asked = grace_ns > 0 and _may_compile(state, stalled, since_ns, now_ns)
    return None if compiles or usual or asked else since_ns


def _may_compile(state: RunState, stalled: Sequence[RankState], since_ns: int, now_ns: int) -> bool:
    """Whether a rank in forward has not had the time to answer: its stack may show that it compiles."""
    if now_ns >= since_ns + stall_limit_ns(state) + ANSWER_NS:
        return False
    return any(
        rank.progress is not None
        and rank.progress.phase == Phase.FORWARD
        and rank.evidence_ns < since_ns
        and not rank.stopped
        and state.interruptions.silence_ns(rank.heard_ns, now_ns) < STALE_S * NS
        for rank in stalled
    )


def _silent_hosts(state: RunState, now_ns: int) -> dict[str, tuple[int, ...]]:
    """The ranks of silent hosts; of hosts without an agent nothing is known."""
    return silent_ranks(state, host_states(state, now_ns)) if state.hosts.known else {}


def _step_ns(state: RunState, rank: RankState, now_ns: int) -> int:
    """How long the present step of a rank has taken, by its own clock and the time since its last message."""
    silent_ns = state.interruptions.silence_ns(rank.heard_ns, now_ns)
    return min(rank.stood_ns + silent_ns, now_ns - state.excuses.declared_ns)


def stall_limit_ns(state: RunState) -> int:
    """How long a step may take: max(stall_s, 10 median steps), or 4 stall_s before any step has finished and
    while no rank is seen to wait for others."""
    least_ns = state.stall_s * NS
    wait = start_wait(state)
    if wait is not None and not wait.may_take_long:
        return int(least_ns)
    if state.complete_step is None and min(rank.step for rank in state.ranks) == 0:
        return int(FIRST_STEP * least_ns)
    return int(max(least_ns, STALL_STEPS * median_step_ns(state)))


def median_step_ns(state: RunState) -> float:
    """The median step; 0 before the first one."""
    state.settle()
    steps = state.figures.steps
    walls = steps.group.of("step", steps.slots())
    return 1e6 * float(median(walls)) if len(walls) else 0.0


def rank_states(state: RunState, now_ns: int) -> list[RankStatus]:
    """The state of each rank, as defined in `analysis/METRICS.md` (Health)."""
    stalled = stalled_since(state, now_ns, grace_ns=COMPILE_GRACE_NS) is not None
    limit_ns = stall_limit_ns(state) if stalled else 0
    hosts = host_states(state, now_ns)
    outcome: RunOutcome = state.run.state if state.run is not None else "live"
    states: list[RankStatus] = ["live"] * state.world
    silence_ns = state.interruptions.silence_ns
    usual = state.presence.running & (state.table.heard_ns >= now_ns - int(STALE_S * NS))
    if any(host in SILENT_STATES for host in hosts.values()):
        for name, ranks_of_host in state.presence.hellos.of_hosts.items():
            if hosts.get(name) in SILENT_STATES:
                usual[ranks_of_host] = False
    if outcome != "live" or stalled:
        usual[:] = False
    for r in np.flatnonzero(~usual).tolist():
        rank = state.ranks[r]
        status = rank.state(silence_ns(rank.heard_ns, now_ns), outcome, host=hosts.get(rank.host))
        still = stalled and _step_ns(state, rank, now_ns) >= limit_ns
        states[r] = "stalled" if status == "live" and still else status
    return states


def _is_waited_for(ranks: Sequence[RankState], running: Sequence[RankState]) -> bool:
    if len(running) == len(ranks) or not any(rank.finished for rank in ranks):
        return True
    return any(rank.progress is not None and rank.progress.phase in IN_STEP for rank in running)


ANSWER_NS = 5 * NS
"""Time that the ranks have to answer; before it nothing is concluded from a missing answer."""

MAX_OPERATIONS = 32
"""Newest collectives of one rank that are compared; those in progress are among them."""

ALL_THREADS = 2
"""Ranks shown with the stacks of all threads: usually a missing one and one that waits."""

CHECK_NS = NS // 2
"""Interval between two checks for the log, by the arrival times of messages: a check loops over all ranks."""


def stall_diagnosis(state: RunState, statuses: Sequence[RankStatus], now_ns: int) -> Diagnosis | None:
    """The diagnosis of the present stall; None where there is none. `statuses`: of all ranks."""
    kept = state.stall_at_end()
    return diagnose_running(state, statuses, now_ns) if kept is None else kept.diagnosis


def diagnose_running(state: RunState, statuses: Sequence[RankStatus], now_ns: int) -> Diagnosis | None:
    """What a run was stuck in when a rank ended, whatever its stall; None: nothing."""
    since_ns = stalled_since(state, now_ns, grace_ns=COMPILE_GRACE_NS)
    if since_ns is None:
        return _diagnose_start(state, now_ns)
    ranks = state.ranks
    awaits_answers = now_ns < since_ns + stall_limit_ns(state) + ANSWER_NS
    silent = tuple(sorted(rank for on_host in _silent_hosts(state, now_ns).values() for rank in on_host))
    dead = state.ended_badly()
    caused = any(not follows(ranks[rank]) for rank in dead)
    dead += [r for r, status in enumerate(statuses) if status == "lost" and r not in (*dead, *silent)]
    running = [r for r, member in enumerate(ranks) if member.running and r not in dead and r not in silent]
    finished = tuple(r for r, rank_state in enumerate(ranks) if rank_state.finished and r not in dead)
    if silent and not caused and (dead or not running):
        result = Diagnosis(UNREACHABLE, silent, tuple(running))  # what has exited had lost its peers
    elif dead or not running:
        result = Diagnosis("dead", tuple(dead), tuple(running))
    elif (wait := start_wait(state)) is not None:
        restart = state.incarnation if meets_nobody_again(state, wait) else 0
        start = "" if restart else wait.where
        result = Diagnosis("missing", wait.behind, wait.waiting, start=start, restart=restart)
    elif finished:
        result = Diagnosis("missing", finished, tuple(running))
    else:
        result = _diagnose_progress(state, running, silent, since_ns, now_ns, awaits_answers=awaits_answers)
    if result.kind == "missing" and result.ranks and not result.start:
        result = replace(result, entered=_entered(state, result.ranks[0], result.waiting, since_ns))
    step = min((ranks[rank].step for rank in result.waiting or result.ranks), default=0)
    awaits_answers = awaits_answers or result.awaits_answers
    return replace(result, since_ns=since_ns, step=step, awaits_answers=awaits_answers)


def _diagnose_progress(
    state: RunState,
    running: Sequence[int],
    silent: tuple[int, ...],
    since_ns: int,
    now_ns: int,
    *,
    awaits_answers: bool,
) -> Diagnosis:
    """The diagnosis by the progress of these ranks. `silent`: ranks of hosts that are silent."""
    ranks, cut_off = state.ranks, _just_cut_off(state, running, now_ns)
    # An answer to this stall holds, unless some rank has moved on since.
    moved_ns = max(since_ns, *(ranks[rank].moved_ns for rank in running))
    unheard = {rank for rank in cut_off if answer_since(ranks[rank], moved_ns) is None}
    awaits_answers = awaits_answers or bool(unheard)
    progress = [rank_progress(state, rank, since_ns, now_ns, cut_off=rank in cut_off) for rank in running]
    result = diagnose(progress, awaits_answers=awaits_answers)
    if not unheard.isdisjoint(result.ranks):
        result = Diagnosis("asking", (), tuple(rank for rank in running if rank not in unheard))
    elif result.kind == "missing" and _may_have_followed(state, result, progress):
        result = Diagnosis("asking", (), tuple(running), awaits_answers=True)
    waits = result.kind == "missing" and all(p.inside for p in progress if p.rank in result.ranks)
    if silent and (waits or not _explains_stall(result, len(running))):
        result = Diagnosis(UNREACHABLE, silent, tuple(running))
    return replace(result, awaits_answers=awaits_answers or result.awaits_answers)


def _may_have_followed(state: RunState, result: Diagnosis, progress: Sequence[RankProgress]) -> bool:
    """Whether those that wait moved on after a missing rank's newest word: when a cut link is mended, the
    first rank whose heartbeat comes then is ahead of the others, for half a second."""
    moved_ns = max((_progressed_ns(state.ranks[rank]) for rank in result.waiting), default=0)
    missing = [state.ranks[p.rank] for p in progress if p.rank in result.ranks and not p.silent]
    return any(max(rank.own_ns + rank.delay_ns, rank.evidence_ns) < moved_ns for rank in missing)


def _progressed_ns(rank: RankState) -> int:
    """When its step last changed, or it was first known to have launched its newest collective."""
    return max(rank.moved_ns, rank.launched_ns)


MOST_CUT_OFF_NS = 30 * NS
"""How long nothing is concluded of ranks whose host is silent for a moment again and again."""


def _just_cut_off(state: RunState, ranks: Sequence[int], now_ns: int) -> set[int]:
    """The ranks among these that are out of reach, now or moments before.

    Their agent or the collector was killed, or the link was cut: their silence says nothing of them.
    """
    newest_ns = max(state.ranks[rank].heard_ns for rank in ranks)
    restarted = now_ns - state.excuses.restarted_ns < BACK_NS or newest_ns <= state.excuses.restarted_ns
    hosts = {*state.presence.hosts_of_ranks()} if restarted else set()
    reported = reports_of_hosts(state)
    for name in state.hosts.remote():
        known_host = state.hosts.known[name]
        is_back = now_ns - known_host.out_ns < BACK_NS and now_ns - known_host.out_since_ns < MOST_CUT_OFF_NS
        if is_back or _is_silent(state, reported[name], now_ns):
            hosts.add(name)
    # Also one that has answered since: the agent may have kept that answer, and heartbeats come after it.
    return {rank for rank in ranks if state.ranks[rank].host in hosts}


def _is_silent(state: RunState, heard_ns: int, now_ns: int) -> bool:
    return state.interruptions.silence_ns(heard_ns, now_ns) > STALE_S * NS


def _note_out_of_reach(state: RunState, now_ns: int) -> None:
    """Note the hosts from which nothing comes, for the time after they are back."""
    reported = reports_of_hosts(state)
    for name in state.hosts.remote():
        if _is_silent(state, reported[name], now_ns):
            silent_ns = state.interruptions.silence_ns(reported[name], now_ns)
            state.hosts.known[name].note_out_of_reach(now_ns, briefly=silent_ns < UNREACHABLE_S * NS)


def stall_now(state: RunState, now_ns: int) -> tuple[str, int]:
    """The short sentence of the present stall, empty where there is none; and its `Diagnosis.restart`."""
    diagnosis = stall_diagnosis(state, rank_states(state, now_ns), now_ns)
    if diagnosis is None:
        return "", 0
    if diagnosis.kind == "asking":
        return f"no progress in step {diagnosis.step:,}", 0
    return sentences.short_sentence(state, diagnosis), diagnosis.restart


def _entered(state: RunState, rank: int, waiting: Sequence[int], since_ns: int) -> str:
    """The function that a rank has entered since `since_ns` where the others wait; empty: not known."""
    answer = answer_since(state.ranks[rank], since_ns)
    of_others = (answer_since(state.ranks[waiter], since_ns) for waiter in waiting if waiter != rank)
    waits = next((sent for sent in of_others if sent is not None and in_collective(sent.stacks)), None)
    return "" if answer is None or waits is None else function_entered(answer.stacks, waits.stacks)


USUAL_FACTOR = 2
"""A function that has held up the others before may take so many times its longest time."""

MAX_USUAL = 64
"""Functions whose times are kept."""


def _takes_its_usual_time(state: RunState, since_ns: int, now_ns: int) -> bool:
    """Whether a rank is in a function that has held up the others before, after which the run continued."""
    everyone = range(state.world)
    return any(
        now_ns - since_ns
        < USUAL_FACTOR * state.excuses.usual_pauses.get(_entered(state, rank, everyone, since_ns), 0)
        for rank in everyone
    )


REPORTED_NS = 12 * NS
"""A rank that is not reported to be late for so long has reached init_process_group: two reports were due."""


def _diagnose_start(state: RunState, now_ns: int) -> Diagnosis | None:
    """The diagnosis where ranks wait in `init_process_group` for others; None where none do."""
    # Beside ranks that report, a late one is known before it is late enough for a stall.
    least_late_ns = LATE_STALLS * state.stall_s * NS
    late = [
        late
        for late in state.start.not_initialized.values()
        if now_ns - late.t_ns < REPORTED_NS and late.t_ns - late.since_ns >= least_late_ns
    ]
    ended = state.run is not None and state.run.state != "live"
    meeting = state.start.meeting
    if meeting is not None and not ended and not late and meeting.restart == state.incarnation:
        inside = tuple(sorted(rank for rank in meeting.ranks if state.ranks[rank].hello is None))
        waits = now_ns - meeting.since_ns >= state.stall_s * NS and now_ns - meeting.t_ns < REPORTED_NS
        if inside and waits:
            return Diagnosis("missing", (), inside, since_ns=meeting.since_ns, restart=meeting.restart)
    if not late or ended or any(rank.running for rank in state.ranks):
        return None
    ranks = tuple(rank for rank, report in sorted(state.start.not_initialized.items()) if report in late)
    waiting = tuple(sorted({rank for report in late for rank in report.waiting}))
    return Diagnosis("missing", ranks, waiting, since_ns=min(report.since_ns for report in late))


def _explains_stall(result: Diagnosis, running: int) -> bool:
    """Whether a diagnosis of the ranks that report explains the stall without those that do not: some of
    them are behind the others, in another collective, or their GPU makes no progress."""
    blames_some = 0 < len(result.ranks) < running
    stall = STALLS[result.kind]
    return stall.has_sides or result.unequal or (stall.is_conclusive and stall.others_wait and blames_some)


def rank_progress(
    state: RunState, rank: int, since_ns: int, now_ns: int, *, cut_off: bool = False
) -> RankProgress:
    """How far a rank has got, from its heartbeats and its answer. `cut_off`: its silence is its host's."""
    rank_state = state.ranks[rank]
    known_host = state.hosts.known.get(rank_state.host)
    # Of a host that was out of reach in this stall, heartbeats come late for a while.
    was_out = known_host is not None and known_host.out_ns > since_ns
    silent_ns = (UNREACHABLE_S if was_out else STALE_S) * NS
    answer = answer_since(rank_state, since_ns)
    names = {DEFAULT_GROUP} | ({group.name for group in answer.groups} if answer is not None else set())
    sequences = {name: sequence_in_group(rank_state, name, answer) for name in sorted(names)}
    device = device_since(rank_state, since_ns)
    inside = None
    if answer is not None:
        inside = any(not op.done for op in answer.operations) or in_collective(answer.stacks)
    return RankProgress(
        rank=rank,
        step=rank_state.step,
        bucket=rank_state.bucket,
        answered=answer is not None,
        has_moved=answer is not None and answer.step < rank_state.step,
        silent=rank_state.stopped
        or (not cut_off and state.interruptions.silence_ns(rank_state.heard_ns, now_ns) > silent_ns),
        sequences={name: number for name, number in sequences.items() if number is not None},
        operations=answer.operations[-MAX_OPERATIONS:] if answer is not None else (),
        inside=inside,
        in_step=rank_state.progress is None or rank_state.progress.phase in IN_STEP,
        device="" if device is None else device.state,
        device_at=None if device is None or device.state != "collective" else (device.step, device.bucket),
    )


def current_stall(state: RunState, diagnosis: Diagnosis | None, now_ns: int) -> Stall | None:
    """The diagnosed stall with sentences and evidence, for frames; None where there is none."""
    if diagnosis is None:
        return None
    since_ns, positions = diagnosis.since_ns, positions_of(state, diagnosis, now_ns)
    return Stall(
        kind=diagnosis.kind,
        since_s=state.unix_s(since_ns),
        step=diagnosis.step,
        ranks=diagnosis.ranks,
        waiting=diagnosis.waiting,
        sentence=sentences.sentence(state, diagnosis),
        detail=(
            *sentences.detail(state, diagnosis, positions),
            *sentences.analyser_lines(state, since_ns),
        ),
        positions=positions,
        restart=diagnosis.restart,
        start=start_case(state, diagnosis.ranks, diagnosis.waiting, diagnosis.start)
        if diagnosis.start
        else "",
    )


def positions_of(state: RunState, diagnosis: Diagnosis, now_ns: int) -> tuple[RankPosition, ...]:
    """The positions of the ranks that are shown of a stall."""
    since_ns, group = diagnosis.since_ns, diagnosis.group
    return tuple(
        rank_position(state, rank, now_ns, since_ns=since_ns, group=group, all_threads=i < ALL_THREADS)
        for i, rank in enumerate(_shown_ranks(diagnosis, state.world))
    )


def _shown_ranks(diagnosis: Diagnosis, world: int) -> list[int]:
    """The ranks that cause the stall, one that waits, then others."""
    causes, waiting = diagnosis.ranks, diagnosis.waiting
    causes = tuple(side.ranks[0] for side in diagnosis.sides) + causes
    first = [*dict.fromkeys(causes)][: MAX_POSITIONS - 1]
    order = [*first, *waiting[:1], *causes, *waiting[1:], *range(min(world, MAX_POSITIONS))]
    return [*dict.fromkeys(order)][:MAX_POSITIONS]


class StallLog:
    """Logs stalls as messages arrive, so that the log does not depend on when frames are built."""

    def __init__(self) -> None:
        self.next_ns = 0
        """When the next check is due."""
        self._last_since_ns: int | None = None
        """When the stall seen at the last check began. A stall is logged at its second check: before the
        first one the collector itself may have been stopped, so that messages are still unread."""
        self._logged: Diagnosis | None = None
        """The newest diagnosis of the stall that was logged, with its first begin."""
        self._last_progress_ns = 0
        """The newest progress of any rank when that stall was logged."""
        self._standing: list[RankState] = []
        """Ranks that had made no progress since, up to the last check: the stall lasts until all have."""

    @property
    def stalled(self) -> bool:
        """Whether the run was stalled at the last check."""
        return self._last_since_ns is not None or self._logged is not None

    @property
    def is_logged(self) -> bool:
        """Whether the present stall was logged."""
        return self._logged is not None

    def check(self, state: RunState, now_ns: int) -> None:
        """Log the begin or the end of a stall. `now_ns`: when the newest message arrived."""
        if now_ns < self.next_ns or not state.world:
            return
        self.next_ns = now_ns + CHECK_NS
        kept = state.stall_at_end()
        if kept is not None:
            self._log_kept(state, kept)
            return
        diagnosis = None
        stalled = stalled_since(state, now_ns) is not None
        if stalled:
            _note_out_of_reach(state, now_ns)
        if state.start.not_initialized or state.start.meeting is not None or stalled:
            diagnosis = stall_diagnosis(state, rank_states(state, now_ns), now_ns)
        logged, before_standing = self._logged, self._standing
        if logged is not None:
            self._standing = [rank for rank in before_standing if rank.moved_ns <= self._last_progress_ns]
            if not self._standing:
                _log_end(state, logged, min(rank.moved_ns for rank in before_standing), now_ns)
            if not self._standing or diagnosis is None:
                self._logged = None
            elif len(self._standing) < len(before_standing):
                return  # the progress of the others may not have been reported yet
        last_ns, self._last_since_ns = self._last_since_ns, diagnosis.since_ns if diagnosis else None
        if diagnosis is None or diagnosis.since_ns != last_ns:
            return
        if STALLS[diagnosis.kind].has_own_alert:
            return  # logged as such
        if diagnosis.kind == "asking" and diagnosis.awaits_answers:
            return
        before, self._logged = self._logged, diagnosis
        if before is None or before.key() != diagnosis.key():
            _log_stall(state, diagnosis, now_ns)
        if before is None:
            self._standing = [rank for rank in state.ranks if rank.running] or [*state.ranks]
            self._last_progress_ns = max(diagnosis.since_ns, *(rank.moved_ns for rank in self._standing))
        else:  # its end does not reach all ranks at once
            since_ns, entered = min(before.since_ns, diagnosis.since_ns), diagnosis.entered or before.entered
            self._logged = replace(diagnosis, since_ns=since_ns, entered=entered)

    def _log_kept(self, state: RunState, kept: KeptStall) -> None:
        """Log a stall that is known only since its ranks have ended."""
        if self._logged is None or self._logged.key() != kept.diagnosis.key():
            _log_stall(state, kept.diagnosis, kept.ended_ns, kept.short_sentence)
        self._logged, self._standing = kept.diagnosis, [*state.ranks]


def _log_stall(state: RunState, diagnosis: Diagnosis, now_ns: int, sentence: str = "") -> None:
    rank = diagnosis.ranks[0] if len(diagnosis.ranks) == 1 else None
    text = f"stall: {sentence or sentences.short_sentence(state, diagnosis)}"
    at_s = state.unix_s(now_ns)
    state.log.add(at_s, "stall", text, rank=rank, step=diagnosis.step)


def _log_end(state: RunState, logged: Diagnosis, moved_ns: int, now_ns: int) -> None:
    """Log that the run continues since `moved_ns`, unless the run has ended or a rank exits, which are logged
    as such."""
    ended = state.run is not None and state.run.state != "live"
    if ended or not all(rank.running for rank in state.ranks):
        return
    if logged.entered and len(state.excuses.usual_pauses) < MAX_USUAL:
        before_ns = state.excuses.usual_pauses.get(logged.entered, 0)
        state.excuses.usual_pauses[logged.entered] = max(before_ns, moved_ns - logged.since_ns)
    ranks, cause = logged.ranks, ""
    if ranks:
        cause = f", {ranks_phrase(ranks, state.world)} had been {STALLS[logged.kind].was}"
    text = f"the run continues after {fixed((moved_ns - logged.since_ns) / NS, 0)} s without progress{cause}"
    rank = ranks[0] if len(ranks) == 1 else None
    state.log.add(state.unix_s(now_ns), "stall_end", text, rank=rank, step=logged.step)
