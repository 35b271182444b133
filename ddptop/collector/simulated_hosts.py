"""What simulated hosts report, in a simulated run: there one process is all ranks and all agents.

It sends the messages of an agent on the link of a rank of that host, where a real rank may not send them.
"""

from __future__ import annotations

from ddptop.protocol.hosts import Host, HostUsage
from ddptop.protocol.messages import Clock, Received

MESSAGES = (Host, HostUsage, Clock)
"""Messages that a simulated rank may send besides those of a rank."""


class SimulatedHosts:
    """Gives each message of a simulated agent the session that its HOST says."""

    def __init__(self) -> None:
        self._sessions: dict[int, int] = {}
        """By session of the rank on whose link it is sent."""

    def of_agent(self, received: Received) -> Received | None:
        # A rank may send these for its host in a simulated run only.
        """The message as one of the agent; None: it is one of the rank."""
        message = received.message
        if not isinstance(message, MESSAGES):
            return None
        if isinstance(message, Host):
            self._sessions[received.session] = message.session
        session = self._sessions.get(received.session, 0)
        # Its number belongs to the session of the rank.
        return received._replace(rank=-1, session=session, seq=0)
