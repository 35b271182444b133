"""When the ranks of a host send, and so when an agent or collector has the least to wake up for; and how long
it waits for the last of what they send."""

from __future__ import annotations

from ddptop.protocol.limits import NS, REPORT_S

READ_AT_S = 0.025
"""All ranks send at the same moment, every REPORT_S. They are read together, this much later. Four ranks on
two cores had sent after 2 ms (median) and 11 ms (90th percentile), and never between 25 and 40 ms but for
their start and end. Wake-ups are most of what an agent costs, so it has no others."""

LAST_MESSAGES_NS = 2 * NS
"""How long the end of the run waits for ranks that have not sent BYE and whose process runs."""

QUIET_NS = NS // 10
"""Without a message for this long, and with no rank to wait for, everything has arrived."""


def s_until_sent(now_ns: int) -> float:
    """Seconds until the next moment at which all ranks of this host have sent."""
    # Ranks send at whole multiples of REPORT_S of CLOCK_MONOTONIC, which all processes of a host share.
    return REPORT_S - (now_ns / NS - READ_AT_S) % REPORT_S


def next_second_ns(now_ns: int) -> int:
    """When what is done once a second is due again: in the round that reads the ranks, which needs no wake-up
    of its own."""
    return now_ns + NS - (now_ns - round(READ_AT_S * NS)) % NS
