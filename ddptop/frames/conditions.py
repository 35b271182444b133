"""What may be the matter with a run, declared once: kinds of alerts and logged events.

Verdict, alerts, event log, screen, report, advice and replay bar read the words, signs and remedies of a kind
here. To add a kind, declare it here and raise it where it is detected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from ddptop.protocol.messages import LAUNCHER_SIGNAL
from ddptop.protocol.vocabulary import Severity

Tone: TypeAlias = Literal["dim", "good", "warn", "bad"]
"""The colours of conditions, which are roles of `ddptop/render/line.py`; `bad` is red."""

Family: TypeAlias = Literal["", "death", "silence", "wrong_numbers", "doubtful_numbers"]
"""Kinds that verdict and report treat alike. `death`: a process has ended; `silence`: a host does not report;
`wrong_numbers`: the verdict before any straggler, however fast the steps are; `doubtful_numbers`: the report
lists them with the wrong ones."""

InReport: TypeAlias = Literal["trouble", "own_section", "passing", "from_log"]
"""How the report has a kind of alert. `passing`: the alert may be over before the next sample, so that its
event counts too; `from_log`: only its event counts, which says what was."""

Page: TypeAlias = Literal["", "stall", "hosts"]
"""The page of the screen that shows more about an alert or event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How a kind of alert or logged event is shown."""

    title: str
    """In words, where its message is not shown; a filter finds it by these."""
    severity: Severity = "info"
    """Of its alerts and events, where the place that raises them does not say otherwise."""
    sign: str = "┴"
    """On the bar of a replay."""
    tone: Tone = "dim"
    """The colour of this sign."""
    is_red: bool = False
    """Whether its alerts and events are red: something stalled, was lost or failed."""
    family: Family = ""
    page: Page = ""
    letter: str = ""
    """Its mark in the report's strip of events; empty: it has none."""
    letter_title: str = ""
    """What the legend calls this mark."""
    marks_events: bool = False
    """Whether each of its logged events has a mark in the strip, beside its alerts."""
    in_report: InReport = "trouble"
    advice_order: int | None = None
    """Place of the report's suggestion about it, before all that is slow; None: it has none."""
    said_by_stall: bool = False
    """Whether its message may be the sentence of a stall, which is then not repeated."""
    over_when_averaged: bool = False
    """Whether there was none after all if the script averages its replicas every few steps."""
    of_one_rank: bool = False
    """Whether another rank is another incident. In other kinds the rank is only the first of several."""
    begin_is_event: bool = False
    """Whether an event of the same kind is logged when it begins."""
    remedy: str = ""
    """What to try; `{rank}` and `{step}` (` of step 57`) are its own."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    """The same where the alert's evidence says why it is so (`why`), by that."""


_DEVIATING_HOOK = "To keep the replicas equal, have the hook return the same gradients on all ranks."

CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "stall": Condition(
            title="no progress",
            severity="critical",
            sign="■",
            tone="bad",
            is_red=True,
            page="stall",
            letter="S",
            letter_title="stall",
            in_report="own_section",
            advice_order=1,
            said_by_stall=True,
        ),
        "death": Condition(title="death", letter="X", letter_title="death", advice_order=0),
        "failed_rank": Condition(
            title="rank failed",
            severity="critical",
            sign="✗",
            tone="bad",
            is_red=True,
            family="death",
            page="stall",
        ),
        "lost_rank": Condition(
            title="rank lost",
            severity="critical",
            sign="✖",
            tone="bad",
            is_red=True,
            family="death",
            page="stall",
        ),
        "unreachable_host": Condition(
            title="host unreachable",
            severity="warning",
            sign="◇",
            tone="warn",
            family="silence",
            page="hosts",
        ),
        "ended_from_outside": Condition(
            title="ended from outside",
            severity="critical",
            sign="✗",
            tone="bad",
            letter="E",
            letter_title="ended from outside",
            advice_order=1,
        ),
        "nan": Condition(
            title="loss is not a number",
            severity="critical",
            sign="▲",
            tone="warn",
            family="wrong_numbers",
            letter="N",
            letter_title="NaN",
            marks_events=True,
            in_report="passing",
            advice_order=0,
            begin_is_event=True,
            remedy="Look at the batch{step} on rank {rank}; torch.autograd.set_detect_anomaly(True) names "
            "the operation that first gives NaN.",
        ),
        "not_synchronised": Condition(
            title="gradients not synchronised",
            severity="critical",
            sign="▲",
            tone="warn",
            family="wrong_numbers",
            letter="U",
            letter_title="not synchronised",
            in_report="passing",
            advice_order=0,
            over_when_averaged=True,
            remedies={
                "bypass": "Call the DistributedDataParallel model itself in each training step, not its "
                ".module: ddp(x), not ddp.module(x).",
                "no_sync": "Run the last micro-step before optimizer.step() outside no_sync(), forward and "
                "backward: see the condition, such as (i + 1) % accumulation == 0.",
                "again": "Add the losses and call backward() once for each DDP forward: only the first "
                "backward after it is all-reduced.",
                "comm_hook": _DEVIATING_HOOK,
            },
        ),
        "replica_drift": Condition(
            title="replicas differ",
            severity="critical",
            sign="▲",
            tone="warn",
            family="wrong_numbers",
            letter="D",
            letter_title="replicas differ",
            in_report="passing",
            advice_order=0,
            over_when_averaged=True,
            of_one_rank=True,
            begin_is_event=True,
            remedy="Look for code that changes parameters or buffers on some ranks only, and start all ranks "
            "from one checkpoint.",
            remedies={"comm_hook": _DEVIATING_HOOK},
        ),
        "skipped_backward": Condition(
            title="backward skipped",
            severity="warning",
            sign="▲",
            tone="warn",
            family="doubtful_numbers",
            letter="K",
            letter_title="skipped backward",
            in_report="passing",
            advice_order=0,
            remedy="Skip a batch on all ranks or on none: all_reduce a flag (is it bad?) before backward, "
            "and act on the result.",
        ),
        "loss_spread": Condition(
            title="losses far apart",
            severity="warning",
            sign="▲",
            tone="warn",
            family="doubtful_numbers",
            begin_is_event=True,
            remedy="Compare the batches of the ranks: is a shard of the data damaged, or of another kind?",
        ),
        "mismatch": Condition(
            title="ranks wait in different collectives",
            severity="critical",
            sign="■",
            tone="bad",
            is_red=True,
            family="doubtful_numbers",
            page="stall",
            said_by_stall=True,
        ),
        "straggler": Condition(
            title="became slow",
            severity="warning",
            sign="▲",
            tone="warn",
            in_report="own_section",
            of_one_rank=True,
            begin_is_event=True,
        ),
        "straggler_end": Condition(title="no longer slow"),
        "network": Condition(
            title="network slow or lossy",
            severity="warning",
            sign="▲",
            tone="warn",
            page="hosts",
            in_report="passing",
            remedy="Check the network between these two hosts: cables, errors and drops of the interfaces "
            "(ethtool -S, ip -s link), other traffic, the interface in GLOO_SOCKET_IFNAME or "
            "NCCL_SOCKET_IFNAME. No rank is slow by itself.",
        ),
        "disk": Condition(title="disk full", severity="warning", sign="▲", tone="warn", in_report="passing"),
        "restart": Condition(title="restart", letter="R", letter_title="restart", marks_events=True),
        "collector_restart": Condition(
            title="collector restart", letter="C", letter_title="collector restart", marks_events=True
        ),
        "compiling": Condition(
            title="a rank compiles", letter="M", letter_title="compiling", in_report="from_log"
        ),
        "lost_records": Condition(
            title="records lost",
            severity="warning",
            sign="✗",
            tone="warn",
            letter="!",
            letter_title="records missing",
        ),
        "recording": Condition(
            title="recording incomplete", severity="warning", letter="!", letter_title="records missing"
        ),
        "refused_messages": Condition(title="messages refused", severity="warning"),
        "interruption": Condition(title="interruption", severity="warning", in_report="passing"),
        LAUNCHER_SIGNAL: Condition(
            title="launcher received a signal", severity="warning", sign="✗", tone="warn"
        ),
        "exit": Condition(title="process ended", sign="✗", tone="bad", is_red=True, page="stall"),
        "process": Condition(title="process stopped or running again", sign="◌", tone="warn"),
        "failed": Condition(title="failed", sign="✗", tone="bad", is_red=True),
        "slower": Condition(title="all ranks slower"),
        "faster": Condition(title="all ranks faster"),
        "host_unreachable": Condition(
            title="host unreachable", severity="warning", sign="◇", tone="warn", page="hosts"
        ),
        "host_lost": Condition(
            title="host lost", severity="critical", sign="✖", tone="bad", is_red=True, page="hosts"
        ),
        "host_back": Condition(title="host reports again", page="hosts"),
        "host_thinned": Condition(title="host leaves out bucket detail", severity="warning", page="hosts"),
    }
)
"""By kind, the gravest first: of several in one place the first is shown. Other kinds of events are shown in
their own words (`condition_of`)."""


def condition_of(kind: str) -> Condition:
    """How a kind is shown, also one that is not declared: an event of another version."""
    return CONDITIONS.get(kind) or Condition(title=kind.replace("_", " "))


def kinds_of(*families: Family) -> tuple[str, ...]:
    """The kinds of these families, the gravest first."""
    return tuple(kind for kind, condition in CONDITIONS.items() if condition.family in families)
