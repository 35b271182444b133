"""What to try about an alert, and about a run that makes no steps; about a straggler: `frames/causes.py`."""

from __future__ import annotations

import math
import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from ddptop.frames.bill import ledger_place_phrase
from ddptop.frames.conditions import SAME_ORDER, STALLS, STATES, condition_of
from ddptop.frames.phrases import (
    NOT_OUT_OF_MEMORY,
    OUT_OF_MEMORY,
    ended_by_signal,
    first_ranks,
    step_phrase,
    steps_phrase,
)
from ddptop.frames.stall import STOPPED_THEN, STOPPED_WORKER
from ddptop.frames.verdict import (
    LONG_WAIT_S,
    NO_RANK_FLAGGED,
    PLACES_ALONE,
    data_pct_of_all,
    is_cut_off,
    most_waited_for,
    run_state,
    verdict,
)
from ddptop.protocol.vocabulary import FAILED_STATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.frames.frame import Alert, Frame
    from ddptop.frames.stall import Call, Death, RankPosition, Stall
    from ddptop.protocol.messages import Scalar

MORE_CPUS = (
    "Give each rank cores of its own: srun --cpus-per-task, taskset, the container's CPU limit; and see "
    "which library sets os.sched_setaffinity."
)
"""What to try where ranks may use fewer CPUs than they need."""

MORE_WORKERS = "More DataLoader workers (num_workers, prefetch_factor), or less work per sample."
"""What to try where every rank is blocked on its next batch."""

ALONE_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "first_batch": "persistent_workers=True in a DataLoader that is made once, before the first epoch: "
        "its workers then start, and open their files, once and not in each epoch.",
        "evaluation": "Let every rank evaluate an equal part of the data and all-reduce the sums, or "
        "evaluate less often, or in a process of its own on saved weights.",
        "compiling": "Compile once: TORCH_LOGS=recompiles shows which guard fails. Pad or bucket inputs to "
        "few shapes, or mark the dimension that changes (torch._dynamo.mark_dynamic).",
        "saving": "Save checkpoints asynchronously: torch.distributed.checkpoint.async_save, in parts on all "
        "ranks, or less often.",
        "phase": "Do not let the others wait while {who} works alone {where}: give each rank a part of it, "
        "or do it less often. If it saves a checkpoint, let it do so asynchronously "
        "(torch.distributed.checkpoint.async_save).",
    }
)
"""What to try where the others wait for a rank, by place: all of PLACES_ALONE. `{who}` is the
rank and `{where}` the place in words."""

_WAIT_FOR_STACKS = "Wait some seconds: the ranks are being asked for their stacks."


def remedy_of_alert(alert: Alert) -> str:
    """What to try about an alert of wrong numbers or of a network; empty: of any other."""
    condition, evidence = condition_of(alert.kind), alert.evidence
    why = str(evidence.get("why") or ("comm_hook" if evidence.get("comm_hook") else ""))
    action = condition.remedies.get(why, condition.remedy)
    if "{rank}" in action and alert.rank is None:
        return ""
    return action.format(rank=alert.rank, batches=_batches_phrase(alert))


def _batches_phrase(alert: Alert) -> str:
    """`batch of step 401 on rank 1`, `batches of steps 387 to 543 on all ranks`: where a trouble may have
    begun."""
    where = "all ranks" if alert.rank is None else f"rank {alert.rank}"
    step, last_step_before = alert.step, alert.evidence.get("last_finite_step")
    if step is None:
        return f"batches on {where}"
    if isinstance(last_step_before, int) and last_step_before < step - 1:
        steps = steps_phrase(last_step_before + 1, step, alert.incarnation, alert.incarnation)
        return f"batches of {steps} on {where}"
    batches = "batches" if alert.rank is None else "batch"
    return f"{batches} of {step_phrase(step, alert.incarnation)} on {where}"


def next_action(frame: Frame) -> str:
    """What to do next about a run that is in trouble; empty of any other run.

    In trouble is a run that is stalled, failed, lost, stale or cut off, or waits for ranks. So is one with
    wrong numbers or a slow network, one with a rank that a signal has stopped, one that mostly waits for what
    a rank does alone, and one in which every rank loads data for long. The first clause is what to do; what
    follows may be cut off.
    """
    state = run_state(frame)
    outside = next((alert for alert in frame.alerts if alert.kind == "ended_from_outside"), None)
    if outside is not None and state not in ("finished", "stale"):
        if frame.stall is not None and not STALLS[frame.stall.kind].has_own_alert:
            return _in_stall(frame, frame.stall)
        return after_outside_end(outside.evidence)
    ended_in_stall = frame.stall is not None and frame.stall.ended_s is not None
    if state in FAILED_STATES and (ended_in_stall or _has_aborted(frame)):
        sides = next((alert.evidence for alert in frame.alerts if condition_of(alert.kind).has_sides), {})
        if sides.get("side0_call"):  # the missing rank has come, to another collective
            return SAME_ORDER.format(see=f": see {sides['side0_call']}")
    if state in FAILED_STATES and ended_in_stall and frame.stall is not None:
        return _in_stall(frame, frame.stall)
    if state in FAILED_STATES and frame.deaths:
        return of_death(frame.deaths[0])
    if state == "stalled" and frame.stall is not None and not STALLS[frame.stall.kind].has_own_alert:
        return _in_stall(frame, frame.stall)
    if state == "stalled" and frame.deaths:
        return of_death(frame.deaths[0])
    if state == "stalled" or STATES[state].is_silent:
        host = next((host.name for host in frame.hosts if STATES[host.state].is_silent), "")
        if host:
            return f"Run ssh {host} uptime to see if it is up; check its network, and read its job log."
    if state == "waiting" and frame.run.elapsed_s < LONG_WAIT_S:
        return ""
    if state == "waiting":
        missing = [rank for rank, rank_state in enumerate(frame.ranks.state) if rank_state == "waiting"]
        who = "the ranks" if len(missing) in (0, len(frame.ranks.state)) else _name_ranks(missing)
        return f"Read the output of {who}: did init_process_group return?"
    if state == "stale":
        return "Check with top if the collector or the ranks are stopped (T), or have no CPU time."
    if state in FAILED_STATES:
        gone = [rank for rank, rank_state in enumerate(frame.ranks.state) if rank_state == state]
        who = _name_ranks(gone) if 0 < len(gone) < len(frame.ranks.state) else "the launcher"
        action = f"Read the output of {who} for the reason, and dmesg -T on its host for out of memory."
        if is_cut_off(frame):
            return f"If the file was copied, compare its size with the original. {action}"
        return action
    if state == "stalled":
        return _without_evidence(frame)
    kind = verdict(frame).kind
    if kind == "stopped":
        return _of_stopped(frame, frame.activities[0].ranks)
    if kind == "cpus":
        return MORE_CPUS
    if kind == "uneven" and (most := most_waited_for(frame)) is not None and most.place in PLACES_ALONE:
        where = ledger_place_phrase(most.place)
        return ALONE_REMEDIES[most.place].format(who=f"rank {most.rank}", where=where)
    if kind in NO_RANK_FLAGGED and data_pct_of_all(frame) is not None:
        return MORE_WORKERS
    alert = next((alert for alert in frame.alerts if alert.kind == kind), None)
    return "" if alert is None else remedy_of_alert(alert)


def _has_aborted(frame: Frame) -> bool:
    """Whether the rank that died first has aborted, as torch has a rank do that is in another collective."""
    return bool(frame.deaths) and frame.deaths[0].signal == "SIGABRT"


_AFTER_SIGNAL = {
    "SIGINT": "Start again from the last checkpoint: somebody has interrupted it (Ctrl-C), nothing is to "
    "mend.",
    "SIGHUP": "Start it in tmux, or with setsid: its terminal closed, and torchrun undoes nohup.",
    "SIGTERM": "Read the job's log: time limit, scancel or eviction? Start again from the last checkpoint.",
}


_OWN_STORE = (
    "with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. With torchrun's c10d rendezvous (--standalone), each elastic "
    "restart then has a store of its own; on the launcher's, gloo finds processes that are gone."
)
"""torch 2.13, `_create_c10d_store`: the ranks of all restarts use the same keys on the launcher's store. Only
`DynamicRendezvousHandler` reads the variable."""

_UNEVEN_BATCHES = " If it has fewer batches: DistributedSampler, or the model's join()."

_NOT_CONNECTED = re.compile(r"connectFullMesh failed|timed out connecting")


def after_outside_end(evidence: Mapping[str, Scalar]) -> str:
    """What to do after a signal to the launcher has ended the run. `evidence`: of its alert."""
    signal = str(evidence.get("signal"))
    if evidence.get("restart"):
        return f"Start it again {_OWN_STORE}"
    if evidence.get("stall") and signal == "SIGINT":
        return "Fix what stalled it, then start again from the last checkpoint."
    return _AFTER_SIGNAL.get(signal, "Start again from the last checkpoint: a signal has ended it.")


def _without_evidence(frame: Frame) -> str:
    """About a stall of which no rank has sent its stack: not yet, or an older recording has none."""
    ranks = frame.ranks
    stalled = [rank for rank, rank_state in enumerate(ranks.state) if rank_state == "stalled"]
    pid = float(ranks.pid[stalled[0]]) if stalled else math.nan
    if not 0 < len(stalled) < len(ranks.state) or not math.isfinite(pid):
        return _WAIT_FOR_STACKS
    return f"{_py_spy(int(pid), ranks.host[stalled[0]] or 'its host')}: what is rank {stalled[0]} doing?"


def _py_spy(pid: int, host: str) -> str:
    return f"py-spy dump --pid {pid} on {host}"


def _name_ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {first_ranks(ranks)}"


_FIND_KILLER = (
    "Find out who sent SIGKILL to {who} on {host}: a person, a script, the scheduler, earlyoom or "
    "systemd-oomd?"
)

_ACTIONS_BY_ERROR: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"\(shm\)|(insufficient|out of|creating) shared memory|/dev/shm"
            r"|</torch_[^>]*>: No space|SIGBUS|[Bb]us error"
        ),
        "Give it more shared memory (docker run --shm-size=8g), or use fewer workers. df -h /dev/shm on "
        "{host} shows how much there is.",
    ),
    (
        re.compile(r"No space left on device"),
        "Free space on {host} (df -h, df -i). If /dev/shm is full: docker run --shm-size=8g.",
    ),
    (
        re.compile(rf"DataLoader worker.* killed by SIGKILL \({OUT_OF_MEMORY}"),
        "Use fewer DataLoader workers (num_workers) or smaller batches, or raise the memory limit of the job "
        "or container. dmesg -T on {host} shows how much each process had.",
    ),
    (
        re.compile(rf"DataLoader worker.* killed by SIGKILL \({NOT_OUT_OF_MEMORY}"),
        _FIND_KILLER.format(who="the DataLoader worker of rank {rank}", host="{host}"),
    ),
    (
        re.compile(r"DataLoader worker.* killed by (SIGKILL|signal: Killed)"),
        "dmesg -T on {host}: was a DataLoader worker out of memory? Fewer workers (num_workers), smaller "
        "batches.",
    ),
    (
        re.compile(r"DataLoader worker.* (killed by|exited)"),
        "Start it with num_workers=0, which shows the error's own traceback. Read the output of rank {rank}.",
    ),
    (
        re.compile(r"OutOfMemoryError|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory"),
        "Use smaller batches with more accumulation steps, or activation checkpointing, on rank {rank}. "
        "nvidia-smi on {host} shows whether another process holds its GPU's memory.",
    ),
    (
        re.compile(r"ibv_\w+ failed.*Cannot allocate memory"),
        "Raise the limit of locked memory, which InfiniBand needs: ulimit -l on {host} shows it "
        "(docker run --ulimit memlock=-1).",
    ),
    (
        re.compile(r"DefaultCPUAllocator: can't allocate memory|MemoryError|Cannot allocate memory"),
        "Use smaller batches or fewer workers. free -h on {host}, ulimit -v, and the limit of the job or "
        "container show how much memory there is.",
    ),
    (
        re.compile(r"Duplicate GPU detected"),
        "Give each rank a GPU of its own: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before "
        "anything is moved to the GPU.",
    ),
    (
        re.compile(
            r"appears not to match (sizes|strides) of the same param|expects same model across all ranks"
        ),
        "Build the same model on all ranks: the number, order and shapes of its parameters must be equal. "
        "Compare list(model.parameters()) of rank {rank} with that of rank 0.",
    ),
    (
        re.compile(r"finished reduction in the prior iteration|find_unused_parameters=True"),
        "Pass find_unused_parameters=True to DistributedDataParallel, or have every parameter take part in "
        "the loss{unused}.",
    ),
    (
        re.compile(r"mark a variable ready only once"),
        "Use checkpoint(..., use_reentrant=False) or DistributedDataParallel(..., static_graph=True): a "
        "parameter takes part twice in a backward.",
    ),
    (
        re.compile(r"connectFullMesh failed.*remote=\[127\."),
        "If ranks are on several hosts, set GLOO_SOCKET_IFNAME to the interface between them: the name of a "
        "host is 127.0.0.1 there (/etc/hosts). Otherwise read the output of the other ranks.",
    ),
    (
        re.compile(r"(reset|closed) by peer \[|ncclRemoteError|remote process exited"),
        "Find out which rank has ended first: rank {rank} has lost its connection to it. Read the output of "
        "the others, and compare how many collectives each calls{up_to}.",
    ),
)
"""What to do about an error, by its message."""

_UNUSED = re.compile(r"did not receive grad for rank \d+: ([\d ]+\d)")
_MAX_UNUSED = 6
"""Parameters without a gradient that are named."""

_WITH_CORE = frozenset({"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGQUIT", "SIGSEGV", "SIGSYS", "SIGTRAP"})
"""Signals at which the kernel writes a core dump."""


def of_death(death: Death) -> str:
    """What to do about the death of a rank, the first of them."""
    call, host = death.position.user_call, death.position.host or "its host"
    text = " ".join([death.reason, *death.message, *([death.signal] if death.signal else [])])
    if death.context:
        up_to = "" if call is None else f", up to {_name_place(call)}"
        uneven = _UNEVEN_BATCHES if "all_reduce before" in death.context else ""
        return f"Let rank {death.rank} call as many collectives as the others{up_to}.{uneven}"
    if death.incarnation and _NOT_CONNECTED.search(text):
        return f"Start it again {_OWN_STORE}"
    for pattern, action in _ACTIONS_BY_ERROR:
        if pattern.search(text):
            up_to = "" if call is None else f", up to {_name_place(call)}"
            unused = _unused_parameters(text)
            return action.format(host=host, rank=death.rank, unused=unused, up_to=up_to)
    if ended_by_signal(death.signal, death.reason):
        if death.reason == OUT_OF_MEMORY:
            return (
                "Use fewer workers or smaller batches, or raise the memory limit of the job or container. "
                f"dmesg -T on {host} shows how much each process had."
            )
        if death.reason == NOT_OUT_OF_MEMORY:
            return _FIND_KILLER.format(who=f"rank {death.rank}", host=host)
        if death.signal == "SIGKILL":
            return f"dmesg -T on {host}: was it out of memory? Fewer workers, smaller batches."
        if death.signal not in _WITH_CORE:
            return f"Find out who sent {death.signal} to rank {death.rank} on {host}: a script, a scheduler?"
        return f"Read the output of rank {death.rank} on {host} and its core dump (coredumpctl, ulimit -c)."
    if death.reason.startswith("KeyboardInterrupt"):
        return after_outside_end({"signal": "SIGINT"})
    what = re.split(r"[:( ]", death.reason, maxsplit=1)[0]
    again = "start again" if death.step is None else "resume from a checkpoint"
    if call is not None and what:
        where = f"{_name_place(call)} (rank {death.rank})"
        return f"Fix the {what} in {where}, then {again}."
    return f"Read the output of rank {death.rank} on {host}, then {again}."


def _unused_parameters(text: str) -> str:
    """`: number 2 and 3 of rank 0 got no gradient`, as DDP's error has it; empty where it has not."""
    match = _UNUSED.search(text)
    if match is None:
        return ""
    numbers = match[1].split()
    and_more = "" if len(numbers) <= _MAX_UNUSED else f" and {len(numbers) - _MAX_UNUSED:,} more"
    return f": no gradient for parameters {', '.join(numbers[:_MAX_UNUSED])}{and_more}"


START_ACTIONS = {
    "addresses": "Set the same MASTER_ADDR and MASTER_PORT on all ranks, or --rdzv-endpoint.",
    "world_size": "Give init_process_group the launcher's world size, or start as many ranks as it says.",
    "not_reported": "Look on the hosts of the missing ranks: are they started, do they still import?",
    "store": "Check that rank 0 runs and that its host and port can be reached: a firewall, an interface?",
    "store_refused": "Look if rank 0 has come to init_process_group, and at MASTER_ADDR and MASTER_PORT: "
    "no process listens there.",
    "store_silent": "Look for a firewall, or for an interface of another network, between these hosts.",
    "store_no_route": "Give MASTER_ADDR an address of rank 0's host that all hosts can reach.",
    "store_no_name": "Give MASTER_ADDR a name that all hosts know, or the address of rank 0's host.",
    "nccl": "NCCL_DEBUG=INFO shows how far NCCL's set-up is: see NCCL_SOCKET_IFNAME and firewalls.",
    "network": "Look at the network between the hosts: all ranks are there, and nothing arrives.",
    "import": "Time it with python -X importtime: a network drive or a full disk cache makes imports slow, "
    "and all ranks import at once.",
    "first_batch": "Time the dataset alone, without DDP: what opens files, lists folders or starts workers "
    "before its first batch?",
    "nobody": "Set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME: the interface has to reach the other ranks.",
}
"""What to do about ranks that do not meet, by `Stall.start`."""


def of_start(stall: Stall) -> str:
    """What to do about ranks that do not meet; empty: the stall is another one."""
    if stall.restart:
        return f"End it and start it again {_OWN_STORE}"
    return START_ACTIONS.get(stall.start, "")


def _in_stall(frame: Frame, stall: Stall) -> str:
    responsible = [position for position in stall.positions if position.rank in stall.ranks]
    if action := of_start(stall):
        return action
    if action := STALLS[stall.kind].action:
        calls = [
            position.user_call
            for position in (*responsible, *stall.positions)
            if position.user_call is not None
        ]
        see = f": see {_name_place(calls[0])}" if calls else ""
        return action.format(see=see, host=responsible[0].host if responsible else "the host")
    if not responsible:
        return _WAIT_FOR_STACKS
    return _of_missing(frame, responsible[0])


def _of_missing(frame: Frame, missing: RankPosition) -> str:
    rank, host = missing.rank, missing.host or "its host"
    if missing.process == "stopped":
        stopped = [
            position.pid
            for position in (frame.stall.positions if frame.stall is not None else ())
            if position.process == "stopped" and position.host == missing.host
        ]
        if len(stopped) > 1:
            return f"kill -CONT {' '.join(map(str, stopped))} on {host}: {len(stopped)} ranks are stopped."
        return f"kill -CONT {missing.pid} on {host}: its process is stopped."
    if missing.process.startswith(STOPPED_THEN):
        return f"Find out who stopped rank {rank} on {host} (SIGSTOP): Ctrl-Z, a debugger, a scheduler?"
    if rank < len(frame.ranks.state) and frame.ranks.state[rank] == "finished":
        return "Give all ranks equally many batches (drop_last=True), or use model.join()."
    if missing.waits_for:
        return of_worker(missing)
    if missing.user_call is not None:
        return (
            f"Find out what holds rank {rank} in {_name_place(missing.user_call)}: a lock, a worker, a file."
        )
    if missing.pid is None:
        return f"Read the output of rank {rank} on {host}: does its process still run?"
    return f"{_py_spy(missing.pid, host)}: what is rank {rank} doing?"


def _of_stopped(frame: Frame, ranks: Sequence[int]) -> str:
    """How to continue these ranks, those on the host of the first one; empty: its pid is not known."""
    hosts, pids = frame.ranks.host, frame.ranks.pid
    host = hosts[ranks[0]]
    there = [str(int(pids[rank])) for rank in ranks if hosts[rank] == host and math.isfinite(pids[rank])]
    who = "its process is stopped" if len(there) == 1 else f"{len(there)} ranks are stopped"
    return f"kill -CONT {' '.join(there)} on {host or 'its host'}: {who}." if there else ""


def of_worker(position: RankPosition) -> str:
    """What to do about a worker that a rank waits for."""
    name, _, what_it_does = position.waits_for.partition(", which ")
    if " in " in name:
        return f"Find out what holds {name}: a file, a network mount, a lock. Give such calls a timeout."
    if name.endswith(STOPPED_WORKER):
        pids = name.rpartition("pid ")[2].partition(",")[0]
        host = position.host or "its host"
        return f"kill -CONT {pids} on {host}: a worker of rank {position.rank} is stopped."
    pid = name.rpartition("pid ")[2].partition(" ")[0]
    install = " (pip install 'ddptop[stacks]')" if "ddptop[stacks]" in what_it_does else ""
    command = f"py-spy dump --pid {pid} on {position.host or 'its host'}"
    return f"{command}{install}: what is the worker of rank {position.rank} doing?"


def _name_place(call: Call) -> str:
    name = call.file.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{call.line}" if call.function == "<module>" else f"{name}:{call.line} {call.function}"
