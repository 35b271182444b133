"""The network between hosts: the worst link of each; links that lose segments or are slow, alert and log.

Ranks are not blamed for their host's network: a rank's verdict rests on its own times. Where only the
arrivals of buckets are known, a late rank at an end of such a link is not flagged.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from ddptop.frames.conditions import say
from ddptop.frames.frame import Alert
from ddptop.frames.numbers import fixed, percent
from ddptop.frames.phrases import blamed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.analysis.hosts import Hosts, KnownHost
    from ddptop.frames.frame import Straggler
    from ddptop.protocol.hosts import HostLink
    from ddptop.protocol.messages import Scalar

LOST_PCT = 1.0
"""Share of lost segments that is reported: at 0.1 % TCP still fills a link of a data centre."""

LEAST_LOST = 10
"""In one reading: a few may be lost to a full queue at any time."""

LONG, LASTING_PCT = 4, 0.5
"""Readings, 20 s, and the share of lost segments over all of them that is reported, LEAST_LOST at least: on a
link that is gone for a second now and then, TCP sends a few again and waits in between."""

CUT_MS, CUTS = 800, 2
"""A link is cut now and then that was silent for so long in so many of the LONG newest readings: a segment
and the same one sent twice again have to be lost for it. A cut of 1 s is 1.2 s of silence; at a loss of 0.1 %
and a load of 20 it was 0.5 s once. A single cut is no alert."""

READINGS = 2
"""In a row of which this is true before it is reported: 10 s."""

SLOW_TIMES, SLOW_US = 5.0, 2000
"""A link is slow whose least round trip is so many times that of others, and so much longer."""

LEAST_LINKS = 3
"""Directions of links to compare with: gloo's ring over three hosts has three. Two hosts have two."""

FAR_US = 5000
"""With fewer links, a link is slow whose least round trip is longer: in a data centre it is well below 1 ms,
this is 500 km of fibre."""


def worst_link(hosts: Hosts, host: str, names: Mapping[str, str]) -> tuple[str, HostLink] | None:
    """The other end and the figures of a host's worst link in its newest reading; None: there is none.

    `names`: `names_of_addresses(hosts)`, which looks at every link and is made once for all hosts."""
    known_host = hosts.known.get(host)
    if known_host is None or not known_host.links:
        return None
    link = known_host.links[0]
    return names.get(link.peer, link.peer), link


def names_of_addresses(hosts: Hosts) -> dict[str, str]:
    """The hosts by their addresses: those that they report, and those from which their links go out.

    An address that several hosts report is left out: it is that of a bridge to containers.
    """
    said_by = [
        (address, name) for name, known_host in hosts.known.items() for address in known_host.said_addresses
    ]
    times = Counter(address for address, _ in said_by)
    names = {address: name for address, name in said_by if times[address] == 1}
    return names | {
        address: name for name, known_host in hosts.known.items() for address in known_host.addresses
    }


def lost_pct(link: HostLink) -> float:
    """Share of the segments that were lost."""
    return 100 * link.resent / link.sent if link.sent else 0.0


def alert(hosts: Hosts) -> Alert | None:
    """The alert of the links that lose segments or are slow, with the two ends of the one known longest."""
    if not hosts.bad_links:
        return None
    (host, peer), (text, since_s, lost) = next(iter(hosts.bad_links.items()))
    n_links = len(hosts.bad_links)
    if n_links > 1:
        more_links = f"{n_links - 1} more link{'s' * (n_links > 2)}"
        text = say("network", "more", first=text, more=more_links)
    end = names_of_addresses(hosts).get(peer, peer)
    evidence: dict[str, Scalar] = {"host": host, "peer": end, "links": n_links, "lost": lost}
    return Alert.declared("network", None, None, since_s, text, evidence)


def explained_by_link(hosts: Hosts, straggler: Straggler | None, host_of: Sequence[str]) -> bool:
    """Whether a late rank is late for its network: only arrivals are known, and every rank that is late is at
    an end of a link that loses segments or is slow. `host_of`: the host of every rank."""
    if straggler is None or straggler.basis == "every_step":
        return False
    names = names_of_addresses(hosts)
    ends = {end for host, peer in hosts.bad_links for end in (host, names.get(peer, peer))}
    return all(rank < len(host_of) and host_of[rank] in ends for rank in blamed(straggler))


class LinkLog:
    """Notes each link while it is bad, and logs it once when it becomes so, with its two ends."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}
        """By host: time of its last reading, by its own clock."""
        self._bad: dict[tuple[str, str], int] = {}
        """By host and address of the other end: readings in a row in which it was bad."""
        self._newest: dict[str, dict[tuple[str, str], deque[HostLink | None]]] = {}
        """By host, likewise its LONG newest readings; None: this link was not in it."""

    def has_read(self, known: KnownHost) -> bool:
        """Whether the newest links of a host were read."""
        return known.links_ns == self._read.get(known.agent.name, 0)

    def check(self, hosts: Hosts, unix_s: float) -> list[str]:
        """Take the readings that are new, at this time; returns what is to be logged."""
        texts = []
        usual_us: float | None = None
        for name, known_host in hosts.known.items():
            if self.has_read(known_host):
                continue
            self._read[name] = known_host.links_ns
            usual_us = usual_round_trip_us(hosts) if usual_us is None else usual_us
            before, read = self._newest.get(name, {}), {(name, link.peer): link for link in known_host.links}
            newest = {key: deque([*before.get(key, ()), read.get(key)], LONG) for key in {**before, **read}}
            self._newest[name] = newest = {key: kept for key, kept in newest.items() if any(kept)}
            bad = {key: trouble for key, link in read.items() if (trouble := _trouble(link, usual_us))}
            texts_of = {key: _trouble_phrase(kept) for key, kept in newest.items() if key not in bad}
            lasting = {key: (text, True) for key, text in texts_of.items() if text}
            bad |= lasting
            for key in [key for key in self._bad if key[0] == name and key not in bad]:
                del self._bad[key]
                hosts.bad_links.pop(key, None)
            for key, (text, lost) in bad.items():
                self._bad[key] = self._bad.get(key, 0) + 1
                if self._bad[key] >= READINGS or key in lasting:
                    peer = names_of_addresses(hosts).get(key[1], key[1])
                    words = say("network", host=name, peer=peer, trouble=text)
                    texts += [words] if key not in hosts.bad_links else []
                    since_s = hosts.bad_links.get(key, ("", unix_s))[1]
                    hosts.bad_links[key] = words, since_s, lost
        return texts


def usual_round_trip_us(hosts: Hosts) -> float:
    """Lower quartile of the links' least round trips, one that was measured: below those of one slow
    host, also of three, where four directions of six are slow. 0: not known."""
    all_us = sorted(link.least_us for known_host in hosts.known.values() for link in known_host.links)
    return float(all_us[(len(all_us) - 1) // 4]) if len(all_us) >= LEAST_LINKS else 0.0


def _trouble_phrase(readings: deque[HostLink | None]) -> str:
    """What is wrong with a link; empty: nothing.

    `cut for up to 1.2 s in 3 of the last 4 readings`, or `0.9% of 2,100 segments lost and sent again in the
    last readings`.
    """
    links = [link for link in readings if link is not None]
    cuts = [link.silent_ms for link in links if link.silent_ms >= CUT_MS]
    if len(cuts) >= CUTS:
        longest = fixed(max(cuts) / 1e3)
        return say("network", "cut", longest=longest, cuts=len(cuts), readings=len(readings))
    sent, resent = sum(link.sent for link in links), sum(link.resent for link in links)
    if not sent or len(links) < LONG or resent < LEAST_LOST or 100 * resent < LASTING_PCT * sent:
        return ""
    return say("network", "lossy_for_long", lost=percent(100 * resent / sent), sent=sent)


def _trouble(link: HostLink, usual_us: float) -> tuple[str, bool] | None:
    """What is wrong with a link, and whether it is lost segments; None: nothing that the figures carry."""
    least = fixed(link.least_us / 1e3)
    if link.resent >= LEAST_LOST and lost_pct(link) >= LOST_PCT:
        return say("network", "lossy", lost=percent(lost_pct(link)), sent=link.sent), True
    if not usual_us and link.least_us > FAR_US:
        return say("network", "far", least=least), False
    if usual_us and link.least_us > max(SLOW_TIMES * usual_us, usual_us + SLOW_US):
        return say("network", "slow", least=least, usual=fixed(usual_us / 1e3)), False
    return None
