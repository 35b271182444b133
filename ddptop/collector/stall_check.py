"""Checks once a second whether the run is stalled, and has evidence gathered of why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.agent.internal_errors import InternalErrors
from ddptop.analysis.health.exits import LEFT_NS
from ddptop.collector.intake import Intake
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Progress

if TYPE_CHECKING:
    from ddptop.analysis.reducer import Reducer
    from ddptop.collector.flight_analyser import FlightAnalyser
    from ddptop.collector.remote_hosts import RemoteHosts
    from ddptop.collector.stall_watch import StallWatch
    from ddptop.host.nccl_ras import RasClient
    from ddptop.host.rank_processes import ProcessWatch

EARLY_NS = 2 * NS
"""If a function has held up the others before, ranks are asked this long before a step counts as a stall.
Their answers show whether they are in that function again."""

ASK_LATER = 4
"""Ranks that go on after others have exited are asked after 2 s. Each further time is this many times as
late: a rank that evaluates or saves may take an hour."""


class StallCheck:
    """Asks the ranks, then torch's analyser of their flight recorders and NCCL's RAS service."""

    def __init__(
        self,
        reducer: Reducer,
        intake: Intake,
        stalls: StallWatch,
        processes: ProcessWatch,
        hosts: RemoteHosts | None,
        flights: FlightAnalyser,
        ras: RasClient,
    ) -> None:
        """`hosts`: the other hosts of the run, where there are any."""
        self._reducer = reducer
        self._intake = intake
        self._stalls = stalls
        self._processes = processes
        self._hosts = hosts
        self._flights = flights
        self._ras = ras
        self._errors = InternalErrors()
        self._exited_ns = 0
        """When the newest rank exited in good order."""
        self._ask_finished_ns = 0
        """When those that go on after it are to be asked."""

    def check_stall(self, now_ns: int) -> None:
        """Do what is due."""
        try:
            early_ns = EARLY_NS if self._reducer.state.excuses.usual_pauses else 0
            since_ns = self._reducer.stalled_since(now_ns + early_ns)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self._errors.note_exception()
            return
        if self._hosts is not None and self._hosts.newly_lost(now_ns):
            # A lost host counts like a death: the others are asked while they still wait.
            self._intake.note_death(now_ns)
        asks = since_ns is not None or self._stalls.is_asking
        sessions = self._intake.askable_sessions(now_ns) if asks else ()
        self._stalls.ask_ranks_due(now_ns, since_ns, sessions, self._heartbeat_positions() if asks else b"")
        self._ask_about_finished(now_ns)
        answered = self._stalls.take_complete(now_ns, sessions)
        self._flights.work_on_dumps(now_ns, answered)
        self._ras.query_at_stall(now_ns, answered, self._pids_under_nccl())

    def close(self) -> None:
        """End the analyser, if it runs."""
        self._flights.close()

    def _heartbeat_positions(self) -> bytes:
        """Where the ranks' heartbeats have them: differs once one of them moves on."""
        newest = self._reducer.state.table.newest_values
        return b"".join(newest(Progress, name).tobytes() for name in ("step", "phase", "bucket", "sequence"))

    def _ask_about_finished(self, now_ns: int) -> None:
        """Ask the ranks that go on after others have exited in good order: they may wait for them."""
        state = self._reducer.state
        exited_ns = max((state.ranks[rank].ended_ns or 0 for rank in state.end.finished), default=0)
        if exited_ns != self._exited_ns:
            self._exited_ns, self._ask_finished_ns = exited_ns, exited_ns + LEFT_NS
        if exited_ns and now_ns >= self._ask_finished_ns:
            self._ask_finished_ns = now_ns + ASK_LATER * (now_ns - exited_ns)
            # Only where one of them stands still: ranks that go on are not waiting for anybody.
            if any(rank.running and rank.moved_ns < now_ns - LEFT_NS for rank in state.ranks):
                self._intake.note_death(now_ns)

    def _pids_under_nccl(self) -> set[int]:
        """Processes of this host's ranks whose process group is NCCL's."""
        members = self._reducer.state.ranks
        living = [process for process in self._processes.living_processes() if process.rank < len(members)]
        hellos = [(process, members[process.rank].hello) for process in living]
        return {process.pid for process, hello in hellos if hello is not None and "nccl" in hello.backend}
