"""What is known of one rank at a stall or at its exit: how far it has got, its GPU, its stacks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ddptop.analysis.health.exits import (
    complete_message,
    early_phrase,
    ended_ns,
    follows,
    own_call,
    process_phrase,
    reason,
)
from ddptop.analysis.health.outside_end import unexplained_ends
from ddptop.analysis.rank_table import STALE_S
from ddptop.analysis.ranks import DeviceReport, KernelReport
from ddptop.analysis.stall.collectives import DEFAULT_GROUP, operation_phrase
from ddptop.frames import calls
from ddptop.frames.numbers import fixed
from ddptop.frames.stall import MAX_POSITIONS, STOPPED_WORKER, Call, Death, RankPosition, Trace
from ddptop.protocol.limits import NS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.protocol.evidence import Evidence
    from ddptop.protocol.messages import Event
    from ddptop.protocol.vocabulary import DeviceState, RankPhase


def answer_since(rank_state: RankState, since_ns: int) -> Evidence | None:
    """The rank's answer if it came after the stall began; an older answer is about another stall."""
    return (
        rank_state.evidence if rank_state.evidence is not None and rank_state.evidence_ns > since_ns else None
    )


def evidence_since(rank_state: RankState, since_ns: int) -> Evidence | None:
    """What it reported at its exit if it ended badly, else its answer since the stall began."""
    exit_evidence = rank_state.exit_evidence if rank_state.ended_badly else None
    return exit_evidence or answer_since(rank_state, since_ns)


def sequence_in_group(rank_state: RankState, group: str, answer: Evidence | None) -> int | None:
    """Collectives that the rank is known to have launched in a group."""
    seen = [state.sequence for state in (answer.groups if answer else ()) if state.name == group]
    if group == DEFAULT_GROUP and rank_state.sequence is not None:
        seen.append(rank_state.sequence)
    return max((number for number in seen if number >= 0), default=None)


def device_report(event: Event, t_ns: int) -> DeviceReport:
    """The state of a GPU from an Event("device"); malformed fields are left empty."""
    state, phase, error = (str(event.fields.get(name) or "") for name in ("state", "phase", "error"))
    bucket = event.fields.get("bucket")
    place_in_step = cast("DeviceState", state), event.step, cast("RankPhase", phase)
    return DeviceReport(t_ns, *place_in_step, bucket if isinstance(bucket, int) else -1, error)


MAX_WORKER_CALLS = 256
"""Workers of a rank whose calls are kept: made-up events must not fill the memory."""


def kernel_report(event: Event, t_ns: int) -> KernelReport:
    """What the kernel shows of a process, from an Event("kernel"); malformed fields are left empty."""
    fields = event.fields

    def report(prefix: str, workers: tuple[KernelReport, ...] = ()) -> KernelReport:
        pid, cpu_s, age_s = (fields.get(prefix + name) for name in ("pid", "cpu_s", "age_s"))
        state, waits_in = (str(fields.get(prefix + name) or "") for name in ("state", "waits_in"))
        cpu, age = (float(n) if isinstance(n, (int, float)) else 0.0 for n in (cpu_s, age_s))
        return KernelReport(t_ns, pid if isinstance(pid, int) else 0, state, waits_in, cpu, age, workers)

    prefixes = [f"worker{i}_" for i in range(MAX_POSITIONS) if f"worker{i}_pid" in fields]
    return report("", tuple(report(prefix) for prefix in prefixes))


def note_kernel(rank_state: RankState, event: Event, t_ns: int) -> None:
    """Take an Event("kernel"), or an Event("worker_call"): where in its code a DataLoader worker is, or
    the rank itself where it does not answer."""
    if event.kind == "kernel":
        rank_state.kernel = kernel_report(event, t_ns)
        return
    pid, call, native, unread = (event.fields.get(name) for name in ("pid", "call", "native", "unread"))
    if isinstance(unread, str):
        rank_state.unread_workers = t_ns, unread
    if isinstance(native, str):
        rank_state.native_calls = t_ns, native
    if isinstance(pid, int) and isinstance(call, str):
        calls = rank_state.worker_calls
        calls.pop(pid, None)
        calls[pid] = t_ns, call
        if len(calls) > MAX_WORKER_CALLS:
            del calls[next(iter(calls))]  # the oldest


def kernel_since(rank_state: RankState, since_ns: int) -> KernelReport | None:
    """What the kernel showed of the rank's process after the stall began."""
    kernel = rank_state.kernel
    return kernel if kernel is not None and kernel.t_ns > since_ns else None


def call_read(rank_state: RankState, pid: int | None, since_ns: int) -> Call | None:
    """Where in its code a rank that has not answered is, read from outside; None: it was not read."""
    t_ns, text = rank_state.worker_calls.get(pid or 0, (0, ""))
    where, _, function = text.partition(" ")
    file, _, line = where.rpartition(":")
    is_of_stall = t_ns > since_ns and line.isdecimal()
    return Call(file, int(line), function, "") if is_of_stall else None


def in_kernel(rank_state: RankState, since_ns: int) -> str | None:
    """`hrtimer_nanosleep of the kernel`, where a rank that has not answered sleeps; None: not known."""
    kernel = kernel_since(rank_state, since_ns)
    return f"{kernel.waits_in} of the kernel" if kernel is not None and kernel.waits_in else None


def kernel_traces(kernel: KernelReport | None, *, alone: bool) -> tuple[Trace, ...]:
    """What the kernel shows, as stacks: of the rank's own process where it is `alone`, since the rank has not
    answered, and of the processes that it has started."""
    shown = () if kernel is None else kernel.workers
    traces = [
        Trace(f"worker process {worker.pid}", False, (_kernel_call(worker),)) for worker in shown
    ]  # fmt: skip
    return (*([Trace("kernel", True, (_kernel_call(kernel),))] if kernel and alone else []), *traces)


def _kernel_call(one: KernelReport) -> Call:
    return Call("kernel", 0, one.waits_in or one.words(), f"{one.words()}, {fixed(one.cpu_s)} s of CPU")


_WORKERS = (("data/dataloader.py", "DataLoader worker"), ("multiprocessing/pool.py", "pool worker"))
"""Files in which a process waits for its workers, and their name."""

MAX_WORKER_PLACES = 2
"""Places of workers that are named."""

_UNREAD = {
    "missing": "pip install 'ddptop[stacks]' (py-spy) shows where in its code",
    "denied": "py-spy may not read where in its code: it needs ptrace (docker --cap-add=SYS_PTRACE)",
}


def worker_waited_for(rank_state: RankState, since_ns: int) -> str:
    """`DataLoader worker pid 123 in data.py:41 decode, which sleeps in hrtimer_nanosleep`: the workers that a
    rank waits for whose main thread is in its loader; empty: it waits for none.

    Those that a signal has stopped (`DataLoader worker pid 123, stopped (SIGSTOP)`). If none is, those in the
    user's code, where that is known; else those that do not sleep as an idle one does, in a poll of their
    queue.
    """
    answer, kernel = answer_since(rank_state, since_ns), kernel_since(rank_state, since_ns)
    stack = calls.main_stack(answer.stacks) if answer is not None else None
    if kernel is None or not kernel.workers or stack is None:
        return ""
    files = {frame.file.replace("\\", "/") for frame in stack.frames}
    kind = next((name for end, name in _WORKERS if any(file.endswith(end) for file in files)), "")
    if not kind:
        return ""
    stopped = [worker for worker in kernel.workers if worker.state in ("T", "t")]
    if stopped:
        return f"{_name_workers(kind, stopped)}, {STOPPED_WORKER}"
    places = {
        worker.pid: call
        for worker in kernel.workers
        for t_ns, call in [rank_state.worker_calls.get(worker.pid, (0, ""))]
        if t_ns > since_ns
    }
    busy = [worker for worker in kernel.workers if worker.pid in places]
    busy = busy or [worker for worker in kernel.workers if "poll" not in worker.waits_in]
    busy = busy or [*kernel.workers]
    alike = [worker for worker in busy if worker.words() == busy[0].words()]
    single = len(alike) == 1
    name = _name_workers(kind, alike)
    if places:
        distinct = sorted({places[worker.pid] for worker in alike})[:MAX_WORKER_PLACES]
        name += f" in {' and '.join(distinct)}"
    words = busy[0].words() if single else busy[0].words().replace("sleeps", "sleep", 1)
    unread_ns, unread = rank_state.unread_workers
    if not places and unread in _UNREAD and unread_ns > since_ns:
        words += f"; {_UNREAD[unread]}"
    return f"{name}, which {words}"


def _name_workers(kind: str, workers: Sequence[KernelReport]) -> str:
    return f"{kind}{'' if len(workers) == 1 else 's'} pid {' '.join(str(worker.pid) for worker in workers)}"


def device_since(rank_state: RankState, since_ns: int) -> DeviceReport | None:
    """The state of the rank's GPU if it was reported after the stall began.

    In a step without bucket detail the events alone do not separate compute from an all-reduce (`either`). If
    the flight recorder shows that all collectives have completed, it is `compute`.
    """
    device = rank_state.device
    if device is None or device.t_ns <= since_ns:
        return None
    answer = rank_state.evidence if rank_state.evidence_ns > since_ns else None
    operations = answer.operations if answer is not None else ()
    if device.state == "either" and operations and all(operation.done for operation in operations):
        return replace(device, state="compute")
    return device


def rank_position(
    state: RunState,
    rank: int,
    now_ns: int,
    *,
    since_ns: int = 0,
    group: str = DEFAULT_GROUP,
    all_threads: bool = True,
) -> RankPosition:
    """The position of a rank at a stall that began at `since_ns`, or at its exit.

    `group`: the process group of the stall; `all_threads`: with the stacks of all threads.
    """
    rank_state = state.ranks[rank]
    answer = answer_since(rank_state, since_ns)
    ended = rank_state.ended_badly or rank_state.bye is not None
    if ended and rank_state.exit_evidence is not None:
        answer = rank_state.exit_evidence
    t_ns = rank_state.evidence_ns if answer is rank_state.evidence else None
    if ended:
        process = process_phrase(rank_state)
        t_ns = ended_ns(rank_state)
    elif rank_state.stopped:
        process = "stopped"
    else:
        silent_ns = state.interruptions.silence_ns(rank_state.heard_ns, now_ns)
        process = "silent" if silent_ns > STALE_S * NS and rank_state.hello else "alive"
    kernel = kernel_since(rank_state, since_ns)
    pid = rank_state.hello.pid if rank_state.hello else kernel.pid if kernel else None
    call = calls.user_call(answer.stacks) if answer else call_read(rank_state, pid, since_ns)
    if ended and (rank_state.exit_evidence is not None or not since_ns):
        call = own_call(rank_state)
    traces = calls.traces(answer.stacks, all_threads=all_threads) if answer else ()
    return RankPosition(
        rank=rank,
        host=rank_state.host,
        pid=pid,
        process=process,
        step=rank_state.step,
        bucket=rank_state.bucket,
        sequence=sequence_in_group(rank_state, group, answer),
        group=group,
        operation=operation_phrase(calls.pending_operation(answer, group) or calls.pending_operation(answer)),
        user_call=call,
        traces=(*traces, *kernel_traces(kernel, alone=not traces and not ended)),
        at_s=state.unix_s(t_ns) if answer is not None and t_ns is not None else None,
        waits_for="" if ended else worker_waited_for(rank_state, since_ns),
    )


def deaths(state: RunState, now_ns: int) -> tuple[Death, ...]:
    """The ranks that died, in order of time, the cause of the others first; at most MAX_POSITIONS.

    Without those whose exits an end from outside explains.
    """
    result = []
    for i, rank in enumerate(unexplained_ends(state)[:MAX_POSITIONS]):
        rank_state = state.ranks[rank]
        result.append(
            Death(
                rank=rank,
                since_s=state.unix_s(ended_ns(rank_state)),
                step=None if rank_state.failed_early else ended_step(state, rank),
                exit_code=0 if rank_state.left_early else rank_state.exit_code,
                signal=rank_state.signal,
                reason=reason(rank_state),
                position=rank_position(state, rank, now_ns, all_threads=i == 0),
                message=complete_message(rank_state),
                context=early_phrase(state.ranks, rank) if rank_state.left_early else rank_state.left_alone,
                follows=follows(rank_state),
                incarnation=state.incarnation,
            )
        )
    return tuple(result)


def ended_step(state: RunState, rank: int) -> int:
    """The step in which a rank ended.

    Its last message may be half a second old. Where all ranks share one process group, no other rank can be
    more than a step ahead of it, which gives a lower bound.
    """
    step = state.ranks[rank].step
    if state.groups.only(state.world) is None:
        return step
    return max(step, max(rank_state.step for rank_state in state.ranks) - 1)
