"""Checks once a second whether the run is stalled, and has evidence gathered of why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.collector.intake import Intake, InternalErrors

if TYPE_CHECKING:
    from ddptop.analysis.reducer import Reducer
    from ddptop.collector.flight_analyser import FlightAnalyser
    from ddptop.collector.remote_hosts import RemoteHosts
    from ddptop.collector.stall_watch import StallWatch
    from ddptop.host.nccl_ras import RasClient
    from ddptop.host.rank_processes import ProcessWatch


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

    def work(self, now_ns: int) -> None:
        """Do what is due."""
        try:
            since_ns = self._reducer.stalled_since(now_ns)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self._errors.note()
            return
        if self._hosts is not None and self._hosts.newly_lost(now_ns):
            self._intake.note_death(now_ns)
        sessions = self._intake.askable_sessions(now_ns)
        self._stalls.work(now_ns, since_ns, sessions)
        answered = self._stalls.take_complete(now_ns, sessions)
        self._flights.work(now_ns, answered)
        self._ras.work(now_ns, answered, self._pids_under_nccl())

    def close(self) -> None:
        """End the analyser, if it runs."""
        self._flights.close()

    def _pids_under_nccl(self) -> set[int]:
        """Processes of this host's ranks whose process group is NCCL's."""
        members = self._reducer.state.ranks
        living = [process for process in self._processes.living() if process.rank < len(members)]
        hellos = [(process, members[process.rank].hello) for process in living]
        return {process.pid for process, hello in hellos if hello is not None and "nccl" in hello.backend}
