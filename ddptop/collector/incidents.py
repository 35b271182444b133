"""Which alerts are new, and which are over: an alert that comes and goes within seconds is one incident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ddptop.frames.conditions import condition_of
from ddptop.frames.frame import Alert
from ddptop.protocol.limits import NS

LASTS_NS = 2 * NS
"""An alert becomes an incident after this time. By then ranks have answered at a stall."""

OVER_NS = 5 * NS
"""An incident is over this long after its alert has gone."""

RECALLED = -1
"""Stands for the time at which an earlier collector saw an alert: the time counts from now on."""

Key: TypeAlias = tuple[str, int | None]


@dataclass(frozen=True)
class IncidentChange:
    """An incident has begun or is over."""

    number: int
    """Number of the incident, counted from 1 in a run."""
    begins: bool
    alert: Alert
    """As it was last seen."""


@dataclass
class _Seen:
    alert: Alert
    first_ns: int
    last_ns: int
    number: int = 0
    """0: it is no incident yet."""


class AlertIncidents:
    """The alerts of a run as incidents."""

    def __init__(self) -> None:
        self._seen: dict[Key, _Seen] = {}
        self._count = 0

    def recall_change(self, change: IncidentChange) -> None:
        """Note that an earlier collector has reported this change."""
        # Numbers go on where the earlier collector had come: an incident keeps its number in the run.
        self._count = max(self._count, change.number)
        key = _incident_key(change.alert)
        if change.begins:
            self._seen[key] = _Seen(change.alert, RECALLED, RECALLED, change.number)
        else:
            self._seen.pop(key, None)

    def note_alerts(
        self, alerts: Sequence[Alert], now_ns: int, *, lasts_ns: int | None = None
    ) -> list[IncidentChange]:
        """Return the changes, given the alerts that are active now, at their begin after `lasts_ns` or
        LASTS_NS."""
        changes = []
        lasts_ns = LASTS_NS if lasts_ns is None else lasts_ns
        for alert in alerts:
            seen = self._seen.setdefault(_incident_key(alert), _Seen(alert, now_ns, now_ns))
            seen.alert, seen.last_ns = alert, now_ns
            if not seen.number and now_ns - seen.first_ns >= lasts_ns:
                self._count += 1
                seen.number = self._count
                changes.append(IncidentChange(seen.number, True, alert))
        for key, seen in list(self._seen.items()):
            # A collector that was just started cannot know whether the alert is over.
            if seen.last_ns == RECALLED:
                seen.last_ns = now_ns
            # What never lasted long enough is forgotten at once: a later one begins to count anew.
            if now_ns - seen.last_ns >= OVER_NS or (not seen.number and seen.last_ns < now_ns):
                del self._seen[key]
                if seen.number:
                    changes.append(IncidentChange(seen.number, False, seen.alert))
        return changes

    def note_last_alerts(self, alerts: Sequence[Alert], now_ns: int, *, well: bool) -> list[IncidentChange]:
        """Return the changes at the end of the run: what is new begins at once. All is over if it ended
        `well`."""
        changes = self.note_alerts(alerts, now_ns, lasts_ns=0)
        if well:
            changes += [
                IncidentChange(seen.number, False, seen.alert) for seen in self._seen.values() if seen.number
            ]
            self._seen = {}
        return changes


def _incident_key(alert: Alert) -> Key:
    # An alert of one rank is another incident for each rank; of the group there is one, whoever is named in
    # it.
    return alert.kind, alert.rank if condition_of(alert.kind).of_one_rank else None
