"""The state of each host: whether anything arrives from it, and the log of hosts that are silent or return.

A host's agent sends at least every quarter of a second, whatever its ranks do. A host that is silent is gone,
or its agent or the link to it is; this says nothing of a single rank. While all ranks finish steps the host
is there: only its agent or the link can be gone.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.health.links import LinkLog
from ddptop.analysis.ranks import SILENT_S
from ddptop.frames.conditions import SILENT_STATES, UNREACHABLE, say
from ddptop.frames.frame import Alert
from ddptop.frames.numbers import fixed
from ddptop.frames.phrases import ranks_phrase
from ddptop.protocol.limits import MAX_NS, NS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.frames.columns import Mask
    from ddptop.protocol.messages import Event, Scalar
    from ddptop.protocol.vocabulary import HostState

UNREACHABLE_S = 3.0
"""After this long without a message a host is unreachable, unless it takes part in steps: a dozen of its
agent's frames are missing."""

MAX_DISKS = 64
"""Folders of all hosts that are kept."""

DISK_KEPT_NS = 180 * NS
"""A full disk is reported every minute; after this long without a report nothing is known of it."""

REPORTS_S = 2.0
"""A step is reported within this time: the rank and the agent send four times a second each."""

CHECK_NS = NS
"""Interval between two checks for the log, by the arrival times of messages: a check loops over all ranks."""


def on_full_disk(state: RunState, event: Event, rank_state: RankState, t_ns: int) -> None:
    """A folder that ranks of a host write to is full, or no longer."""
    host = "" if rank_state.hello is None else rank_state.hello.host
    full_disks, folder, at_s = state.hosts.full_disks, str(event.fields.get("folder")), state.unix_s(t_ns)
    where = f"{folder} on host {host}" if host else folder
    if not event.fields.get("full"):
        if full_disks.pop((host, folder), None) is not None:
            state.log.add(at_s, "disk", say("disk", "passed", where=where), severity="info")
    elif (host, folder) in full_disks:
        full_disks[host, folder] = (*full_disks[host, folder][:2], t_ns)
    elif len(full_disks) < MAX_DISKS:
        full_disks[host, folder] = say("disk", where=where), at_s, t_ns
        state.log.add(at_s, "disk", full_disks[host, folder][0])


def disks_alert(state: RunState, now_ns: int) -> Alert | None:
    """The alert of the folders that are full, with the one known longest."""
    until_ns = now_ns if state.ended_ns is None else min(now_ns, state.ended_ns)
    silence_ns, full_disks = state.interruptions.silence_ns, state.hosts.full_disks
    full = {
        key: text_and_times
        for key, text_and_times in full_disks.items()
        if silence_ns(text_and_times[2], until_ns) <= DISK_KEPT_NS
    }
    if not full:
        return None
    (host, folder), (text, since_s, _) = next(iter(full.items()))
    and_more = f", and {len(full) - 1} more" if len(full) > 1 else ""
    evidence: dict[str, Scalar] = {"host": host, "folder": folder, "folders": len(full)}
    return Alert.declared("disk", None, None, since_s, text + and_more, evidence)


def find_own_host(state: RunState) -> str | None:
    """The collector's host: it said so, or it is the only one whose ranks report without an agent."""
    if state.hosts.own is not None or not state.hosts.known:
        return state.hosts.own
    without = set(state.presence.hosts_of_ranks()).difference(state.hosts.known, ("",))
    return without.pop() if len(without) == 1 else None


def reports_of_hosts(state: RunState) -> dict[str, int]:
    """When each host last reported: a message of its agent or of a rank, or a reading of a process."""
    reported = {name: known_host.heard_ns for name, known_host in state.hosts.known.items()}
    hellos = state.presence.hellos
    if not hellos.of_hosts:
        return reported
    newest = np.maximum(state.table.heard_ns, state.table.seen_ns)
    of_hosts = newest[hellos.members].max(axis=1).tolist()
    for name, newest_ns in zip(hellos.of_hosts, of_hosts, strict=True):
        if newest_ns >= reported.get(name, 0):
            reported[name] = newest_ns
    return reported


def host_states(state: RunState, now_ns: int) -> dict[str, HostState]:
    """The state of every host, as defined in `analysis/METRICS.md` (Health). Of a host without an agent only
    `lost` is known. Not to be changed: it is kept until a message comes or time passes."""
    key = (state.taken, now_ns)
    if state.hosts.states is None or state.hosts.states[0] != key:
        state.hosts.states = key, _host_states(state, now_ns)
    return state.hosts.states[1]


def _host_states(state: RunState, now_ns: int) -> dict[str, HostState]:
    hellos, known_hosts = state.presence.hellos, state.hosts.known
    states: dict[str, HostState] = {
        **dict.fromkeys(known_hosts, "live"),
        **dict.fromkeys(hellos.of_hosts, "live"),
    }
    until_ns = now_ns if state.ended_ns is None else min(now_ns, state.ended_ns)
    since_ns = until_ns - int(UNREACHABLE_S * NS)
    newest_ns = np.maximum(state.table.heard_ns, state.table.seen_ns)
    # In the common case, without a loop over hosts, every rank has reported and every host has ranks.
    if newest_ns.min(initial=MAX_NS) < since_ns or not known_hosts.keys() <= hellos.of_hosts.keys():
        reported = reports_of_hosts(state)
        silent = {name for name, heard_ns in reported.items() if heard_ns < since_ns}
        quiet = [place for place, name in enumerate(hellos.of_hosts) if name in silent]
        stepped_ns = _stepped_ns(state, ~np.isin(hellos.host_at, quiet)) if silent else 0
        for name in silent:
            silent_ns = state.interruptions.silence_ns(reported[name], until_ns)
            if silent_ns >= SILENT_S * NS:
                states[name] = "lost"
            elif silent_ns > UNREACHABLE_S * NS and state.hosts.is_remote(name):
                trains = name in hellos.of_hosts and takes_part(state, stepped_ns, reported[name], until_ns)
                states[name] = "live" if trains else UNREACHABLE
    if not state.presence.running.all():
        n_running = np.bincount(hellos.host_at[state.presence.running], minlength=len(hellos.of_hosts))
        states |= dict.fromkeys(compress(hellos.of_hosts, (n_running == 0).tolist()), "finished")
    return states


def _stepped_ns(state: RunState, others: Mask) -> int:
    """When all running ones of these ranks had finished a step last; 0: one has finished none."""
    moved_ns = np.where(state.table.step > 0, state.table.moved_ns, 0)
    running = others & state.presence.running
    return int(moved_ns[running].min()) if running.any() else 0


def takes_part(state: RunState, stepped_ns: int, heard_ns: int, now_ns: int) -> bool:
    """Whether ranks that were heard last at `heard_ns` take part in steps: the others finished one at
    `stepped_ns`, REPORTS_S later or more, and within UNREACHABLE_S.

    Every step waits for all ranks, so only the reports of their host are missing: its agent may have no
    processor time. Step numbers cannot show it: those of a silent host are as old as its last report.
    """
    is_new = state.interruptions.silence_ns(stepped_ns, now_ns) <= UNREACHABLE_S * NS
    return is_new and stepped_ns >= heard_ns + REPORTS_S * NS


def quiet_hosts(state: RunState, now_ns: int) -> set[str]:
    """The hosts with an agent from which nothing has arrived for UNREACHABLE_S, also those whose ranks are
    known to take part in steps."""
    return {
        name
        for name, heard_ns in reports_of_hosts(state).items()
        if state.hosts.is_remote(name)
        and state.interruptions.silence_ns(heard_ns, now_ns) > UNREACHABLE_S * NS
    }


def silent_ranks(state: RunState, hosts: Mapping[str, HostState]) -> dict[str, tuple[int, ...]]:
    """The ranks whose exit is not known on each host that has an agent and is unreachable or lost; by
    host."""
    silent = {name for name, host_state in hosts.items() if host_state in SILENT_STATES}
    names = {name for name in silent if state.hosts.is_remote(name)}
    return (
        ranks_by_host(state, [rank for rank, rank_state in _running(state) if rank_state.host in names])
        if names
        else {}
    )


def ranks_by_host(state: RunState, ranks: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The ranks of each host."""
    ranks_of: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        ranks_of.setdefault(state.ranks[rank].host, []).append(rank)
    return {name: tuple(ranks_of_host) for name, ranks_of_host in ranks_of.items()}


def least_position_phrase(state: RunState, ranks: tuple[int, ...]) -> str:
    """`ranks 4-7, last at step 120, bucket 3`: the position of the rank that is least far."""
    least = min((state.ranks[rank] for rank in ranks), key=lambda rank: (rank.step, rank.bucket or 0))
    bucket = "" if least.bucket is None else f", bucket {least.bucket}"
    return f"{range_phrase(ranks, state.world)}, last at step {least.step:,}{bucket}"


def range_phrase(ranks: tuple[int, ...], world: int) -> str:
    """`ranks 4-7`; as `ranks_phrase` where they are few, all, or not in a row."""
    if 2 < len(ranks) < world and ranks[-1] - ranks[0] + 1 == len(ranks):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return ranks_phrase(ranks, world)


def whole_host(state: RunState, ranks: Sequence[int]) -> str | None:
    """The host of which these are all the running ranks, several of them, in a run of several hosts."""
    names = {state.ranks[rank].host for rank in ranks}
    if len(names) != 1 or len(ranks) < 2:
        return None
    name = names.pop()
    ranks_of_host = [rank for rank, rank_state in _running(state) if rank_state.host == name]
    is_one_of_several = any(rank_state.host != name for _, rank_state in _running(state))
    return name if is_one_of_several and sorted(ranks_of_host) == sorted(ranks) else None


def hosts_phrase(names: tuple[str, ...]) -> str:
    """`host node2`, `hosts node2 node3`, `5 hosts: node2 node3 ...`."""
    if len(names) == 1:
        return f"host {names[0]}"
    if len(names) > 3:
        return f"{len(names)} hosts: {' '.join(names[:3])} ..."
    return f"hosts {' '.join(names)}"


def silence_phrase(state: RunState, silent: Mapping[str, tuple[int, ...]], now_ns: int, *, lost: bool) -> str:
    """`host node2 is unreachable: ranks 4-7, last at step 120, bucket 3`, and what else is known of it."""
    ranks = tuple(sorted(rank for ranks_of_host in silent.values() for rank in ranks_of_host))
    be = "is" if len(silent) == 1 else "are"
    text = f"{hosts_phrase(tuple(silent))} {be} {'lost' if lost else UNREACHABLE}"
    text += f": {least_position_phrase(state, ranks)}"
    is_other, heard_ns = np.full(state.world, True), max(state.ranks[rank].heard_ns for rank in ranks)
    is_other[[*ranks]] = False
    if takes_part(state, _stepped_ns(state, is_other), heard_ns, now_ns):
        return f"{text}; the other ranks train on, so only its reports are missing"
    return f"{text}; silent for more than {SILENT_S:g} s" if lost else text


def _running(state: RunState) -> Iterator[tuple[int, RankState]]:
    return ((rank, rank_state) for rank, rank_state in enumerate(state.ranks) if rank_state.running)


class HostLog:
    """Logs when hosts become unreachable, are lost and report again, as messages arrive."""

    def __init__(self) -> None:
        self.next_ns = 0
        """When the next check is due."""
        self._before: dict[str, HostState] = {}
        """By host, its state at the last check."""
        self._thinned: set[str] = set()
        """Hosts that had left out bucket detail at the last check."""
        self._links = LinkLog()

    def check(self, state: RunState, now_ns: int) -> None:
        """Log what has changed. `now_ns`: when the newest message arrived."""
        if now_ns < self.next_ns:
            return
        self.next_ns = now_ns + CHECK_NS
        remote = state.hosts.remote()
        if not remote or state.ended_ns is not None:
            return
        states = {**host_states(state, now_ns)}
        silent = silent_ranks(state, states)
        for name in remote:
            before = self._before.get(name, "live")
            if states[name] == "live" and now_ns - state.hosts.known[name].heard_ns > UNREACHABLE_S * NS:
                states[name] = before  # it has not reported again
            if states[name] != before:
                self._log(state, name, before, states[name], silent.get(name, ()), now_ns)
            if self.is_news(name, state.hosts.known[name].thinned):
                self._log_thinned(state, name, now_ns)
        self._before |= {name: states[name] for name in remote}
        for text in self._links.check(state.hosts, state.unix_s(now_ns)):
            state.log.add(state.unix_s(now_ns), "network", text)

    def is_news(self, host: str | None, thinned: int) -> bool:
        """Whether the first rows without bucket detail are to be logged, or none is left out any more: a new
        agent counts from 0. `host`: None or the collector's own host has no such log."""
        return host is not None and (thinned > 0) != (host in self._thinned)

    def quiet_until_ns(self, state: RunState) -> int:
        """Before this moment a check finds nothing, if no reading of links and no change of `thinned` that
        `is_news` arrives."""
        hosts = state.hosts
        remote = {name: hosts.known[name] for name in hosts.remote()}
        if not remote:
            return MAX_NS
        as_checked = all(map(self._links.has_read, hosts.known.values())) and all(
            self._before.get(name, "live") == "live" and not self.is_news(name, known_host.thinned)
            for name, known_host in remote.items()
        )
        if not as_checked:
            return self.next_ns
        return min(known_host.heard_ns for known_host in remote.values()) + int(UNREACHABLE_S * NS)

    @staticmethod
    def _log(
        state: RunState,
        name: str,
        before: HostState,
        now: HostState,
        ranks: tuple[int, ...],
        now_ns: int,
    ) -> None:
        at_s = state.unix_s(now_ns)
        where = f": {least_position_phrase(state, ranks)}" if ranks else ""
        if now == UNREACHABLE:
            text = say("host_unreachable", host=name, where=where)
            state.log.add(at_s, "host_unreachable", text, host=name)
        elif now == "lost":
            text = say("host_lost", host=name, silent_s=SILENT_S, where=where)
            state.log.add(at_s, "host_lost", text, severity=None if ranks else "info", host=name)
        elif before in SILENT_STATES and now == "live":
            silent = fixed(state.hosts.known[name].silent_ns / NS, 0)
            text = say("host_back", host=name, silent=silent)
            state.log.add(at_s, "host_back", text, host=name)

    def _log_thinned(self, state: RunState, name: str, now_ns: int) -> None:
        self._thinned ^= {name}
        if name in self._thinned:
            text = say("host_thinned", host=name)
            state.log.add(state.unix_s(now_ns), "host_thinned", text, host=name)
