"""When this rank launched its collectives: small windows of torch's flight recorder, read now and then.

For what no hook of ours times: training without DistributedDataParallel, and process groups beside DDP's. A
read of a full buffer (2,000 collectives) takes some 25 ms, in which the GIL is held, so it is repeated every
8 s; a small buffer is read every second. Counted in the budget is how long it lasts, not its CPU time: on two
cores at a load of 6 the thread that reads had a third of a core, and a step with a read was 75 ms longer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple

import torch

from ddptop.protocol.arrivals import Arrivals, CollectiveKind
from ddptop.protocol.limits import MAX_ARRIVALS, MAX_COLLECTIVE_KINDS, NS
from ddptop.training.device.events import ignore_captures
from ddptop.training.step_record import LeftOutSteps, StepRecord
from ddptop.training.torch_compat.process_groups import (
    SharedGroup,
    flight_dumps,
    sequence_of,
    shared_groups,
)

SHARE = 0.4
"""Share of the budget that reads may take at most; less where the rest of ddptop leaves less of it."""

LEAST_S, MOST_S = 1, 256
"""Time between two reads; a power of two. Ranks read at multiples of it in Unix time, so that one that reads
more rarely reads when the others do."""

AT_END_S = 2
"""The last read comes so long after the one before: a script may destroy its groups a hundred times."""

KEPT_STEPS = 4096
"""Newest steps in which a collective may have been launched that is still in the buffer."""

OUT_OF_ORDER = 4
"""Numbers by which a collective may be recorded too late, where threads launch at once."""

MOST_RUNS = 8
"""Messages of one group from one read: each has consecutive collectives."""

Entry = Mapping[str, Any]


class _Sent(NamedTuple):
    """The last collective of a group that was sent."""

    number: int = 0
    created_ns: int = 0
    """On the wall clock."""


class ArrivalReader:
    """Reads the flight recorder when that is due. On the publisher's thread."""

    def __init__(
        self,
        timed_groups: Callable[[], Iterable[str]],
        read_dumps: Callable[[], Sequence[Mapping[str, Any]]] | None = None,
        groups: Callable[[], list[SharedGroup]] = shared_groups,
    ) -> None:
        """`timed_groups`: names of the groups whose collectives are timed elsewhere, those of DDP's models.
        The others are for tests."""
        self.every_s = LEAST_S
        self.share = 0.0
        """Share of the time that reads take at present: a read holds the GIL, so the training waits."""
        self._timed_groups = timed_groups
        self._read_dumps = read_dumps or _read_recorders
        self._groups = groups
        self._steps: deque[tuple[int, int]] = deque(maxlen=KEPT_STEPS)
        """Number and end in ns of each. No named tuples: there may be thousands a second."""
        self._begin_ns: int | None = None
        """When the first step ended: what came before it is the start, in which ranks differ for long."""
        self._due_s = 0
        self._sent: dict[str, _Sent] = {}
        """By group."""
        self._with_gpu: set[str] = set()
        """Groups that have launched collectives of another backend than gloo."""
        self._seen: dict[str, int] = {}
        """By group, how many collectives there were at the last read."""
        self._wall_offset_ns: int | None = None
        self._spent_ns = 0
        self._failed = False

    def note_steps(self, records: Sequence[StepRecord | LeftOutSteps]) -> None:
        """Steps have finished."""
        if self._begin_ns is None:
            self._begin_ns = next((record.end for record in records), None)
        for record in records:
            ends = record.ends if isinstance(record, LeftOutSteps) else (record.end,)
            self._steps.extend(zip(count(record.step), ends, strict=False))

    def take_spent_ns(self) -> int:
        """CPU time of the reads since the last call."""
        spent, self._spent_ns = self._spent_ns, 0
        return spent

    def read_if_due(self, budget_pct: float, cost_pct: float, *, at_end: bool = False) -> list[Arrivals]:
        """What was launched since the last read, where the next one is due and there is anything new.

        `cost_pct`: what all of ddptop takes, reads included. Where that leaves nothing of the budget, nothing
        is read. `at_end`: the last read, when training is over, is due if the one before was long enough ago.
        Raises what torch raises; then there is no further read."""
        unix_s = time.time()
        left_pct = budget_pct if at_end else budget_pct - (cost_pct - 100 * self.share)
        allowed_pct = min(SHARE * budget_pct, left_pct)
        due_s = self._due_s - self.every_s + AT_END_S if at_end else self._due_s
        if self._failed or allowed_pct <= 0 or unix_s < due_s or not self._steps:
            return []
        began_ns, began_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        try:
            return self._read_groups()
        except Exception:
            self._failed = True
            raise
        finally:
            if at_end:  # a group that is made anew may launch as many
                self._seen = {}
            self._spent_ns += time.thread_time_ns() - began_cpu_ns
            self._choose_interval(time.monotonic_ns() - began_ns, allowed_pct)
            self._due_s = (int(time.time()) // self.every_s + 1) * self.every_s

    def _choose_interval(self, lasted_ns: int, allowed_pct: float) -> None:
        """Choose the interval at which a read like this one keeps to its share: a power of two, halved at
        most."""
        least_s = lasted_ns / NS / (allowed_pct / 100)
        needed = 2 ** math.ceil(math.log2(max(LEAST_S, least_s)))
        self.every_s = min(MOST_S, max(needed, self.every_s // 2))
        self.share = lasted_ns / NS / self.every_s

    def _read_groups(self) -> list[Arrivals]:
        timed = frozenset(self._timed_groups())
        groups = {group.name: group for group in self._groups() if group.name not in timed}
        launched = {name: sequence_of(group.group) for name, group in groups.items()}
        before, self._seen = self._seen, launched
        # Less than before: the group was destroyed and made anew, and counts from 1.
        if not any(number > 0 and number != before.get(name, 0) for name, number in launched.items()):
            return []
        offset_ns = time.time_ns() - time.monotonic_ns()
        # By how much the wall clock was set since the last read: launches are stamped by it.
        was, self._wall_offset_ns = self._wall_offset_ns, offset_ns
        set_by_ns = 0 if was is None else offset_ns - was
        bound_ns = abs(set_by_ns)
        if bound_ns >= NS:
            self._sent = {
                name: _Sent(sent.number, sent.created_ns + set_by_ns) for name, sent in self._sent.items()
            }
        messages: list[Arrivals] = []
        for name, entries in self._new_entries(groups).items():
            for run in list(_consecutive_runs(entries))[-MOST_RUNS:]:
                messages.append(self._message(groups[name], run, offset_ns, bound_ns))
        return messages

    def _new_entries(self, groups: Mapping[str, SharedGroup]) -> dict[str, list[Entry]]:
        """By group, the collectives of finished steps that were not sent yet, each number once."""
        offset_ns, begin_ns, end_ns = self._wall_offset_ns or 0, self._begin_ns or 0, self._steps[-1][1]
        entries: dict[str, list[Entry]] = {}
        newest = dict(self._sent)
        all_entries = [entry for dump in self._read_dumps() for entry in dump.get("entries", ())]
        not_of_gloo = {entry["process_group"][0] for entry in all_entries if not _is_of_gloo(entry)}
        self._with_gpu = (self._with_gpu | not_of_gloo) & groups.keys()
        for entry in all_entries:
            name = entry["process_group"][0]
            number, created_ns = entry["collective_seq_id"], entry["time_created_ns"]
            last = newest.get(name, _Sent())
            # One that is later and far below is of the group as it was made anew. Several that were launched
            # as one have the same number, and threads may exchange some.
            is_before = (created_ns, number) <= (last.created_ns, last.number)
            is_old = is_before or last.number - OUT_OF_ORDER <= number <= last.number
            # A group may have two backends, which count apart: that of the GPUs has the gradients.
            is_beside = name in self._with_gpu and _is_of_gloo(entry)
            if name not in groups or entry["is_p2p"] or is_old or is_beside:
                continue
            if not begin_ns < created_ns - offset_ns < end_ns:
                continue  # before the first step, or in the one that runs: next time
            newest[name] = _Sent(number, created_ns)
            entries.setdefault(name, []).append(entry)
        self._sent = {name: last for name, last in newest.items() if name in groups}
        return entries

    def _message(self, group: SharedGroup, run: list[Entry], offset_ns: int, bound_ns: int) -> Arrivals:
        launched_ns = [entry["time_created_ns"] - offset_ns for entry in run]
        base_ns = max(0, min(launched_ns))
        steps = self._steps_of(launched_ns)
        kinds: dict[tuple[str, str], int] = {}
        of_kind = [
            kinds.setdefault((entry["profiling_name"], str(entry["input_sizes"])), len(kinds))
            for entry in run
        ]
        # The first of each kind: a later one wins in a dictionary, so that they come in reverse.
        samples = dict(zip(reversed(of_kind), reversed(run), strict=True))
        return Arrivals(
            t_ns=time.monotonic_ns(),
            group=group.name,
            description=group.description,
            backend=str(run[0]["profiling_name"]).partition(":")[0],
            ranks=group.ranks,
            bound_ns=bound_ns,
            first=run[0]["collective_seq_id"],
            base_ns=base_ns,
            launched_us=tuple(max(0, ns - base_ns) // 1000 for ns in launched_ns),
            first_step=min(steps),
            steps=tuple(step - min(steps) for step in steps),
            kinds=tuple(
                _collective_kind(samples[kind]) for kind in range(min(len(kinds), MAX_COLLECTIVE_KINDS))
            ),
            of_kind=tuple(of_kind),
        )

    def _steps_of(self, launched_ns: Sequence[int]) -> list[int]:
        """The step in which each was launched; they are in order but for threads that launch at once."""
        steps, place = [], 0
        of_steps = list(self._steps)
        for ns in launched_ns:
            while place + 1 < len(of_steps) and of_steps[place][1] < ns:
                place += 1
            steps.append(of_steps[place][0])
        return steps


def _is_of_gloo(entry: Entry) -> bool:
    return str(entry["profiling_name"]).startswith("gloo:")


def _read_recorders() -> Sequence[Mapping[str, Any]]:
    if torch.cuda.is_initialized():
        ignore_captures()  # a dump of NCCL's queries its events, in this thread
    return flight_dumps()


def _consecutive_runs(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """The entries divided where a number is left out, and where there are too many for a message."""
    run = list(entries[:1])
    for before, entry in pairwise(entries):
        if entry["collective_seq_id"] != before["collective_seq_id"] + 1 or len(run) == MAX_ARRIVALS:
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


ELEMENT_BYTES = (
    dict.fromkeys(("Double", "Long", "ComplexFloat"), 8)
    | dict.fromkeys(("Float", "Int"), 4)
    | dict.fromkeys(("Half", "BFloat16", "Short"), 2)
    | dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1)
)
"""By torch's names of data types in a flight recorder."""


def _collective_kind(entry: Entry) -> CollectiveKind:
    sizes, dtypes = entry["input_sizes"], entry["input_dtypes"]
    n_bytes = sum(
        math.prod(size) * ELEMENT_BYTES.get(dtype, 0) for size, dtype in zip(sizes, dtypes, strict=False)
    )
    return CollectiveKind(str(entry["profiling_name"]).rpartition(":")[2], n_bytes)
