"""What may be the matter with a run, declared once: kinds of alerts, logged events and stalls, states.

Verdict, alerts, event log, screen, report, advice and replay bar read the words, signs and remedies of a kind
here. To add a kind, declare it here and raise it where it is detected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from ddptop.protocol.messages import LAUNCHER_SIGNAL
from ddptop.protocol.vocabulary import FrameSource, HostState, RankStatus, Severity, Sign

AlertKind: TypeAlias = Literal[
    "ended_from_outside",
    "failed_rank",
    "lost_rank",
    "unreachable_host",
    "stall",
    "mismatch",
    "nan",
    "not_synchronised",
    "replica_drift",
    "skipped_backward",
    "straggler",
    "loss_spread",
    "compiling",
    "network",
    "preflight",
    "disk",
    "lost_records",
    "recording",
    "refused_messages",
    "interruption",
]
"""Conditions that hold now; `interruption` in reports only. Kinds of events are an open set."""

VerdictKind: TypeAlias = Literal[
    "ended_from_outside",
    "failed",
    "lost",
    "stalled",
    "unreachable",
    "waiting",
    "finished",
    "stale",
    "starting",
    "alone",
    "nan",
    "not_synchronised",
    "replica_drift",
    "skipped_backward",
    "compiling",
    "stopped",
    "evaluating",
    "saving",
    "long_step",
    "loss_spread",
    "cpus",
    "straggler",
    "network",
    "preflight",
    "data_bound",
    "suspect",
    "recovered",
    "uneven",
    "even",
    "little_detail",
    "clocks",
]
"""What the verdict is about: the state of the run, wrong numbers, a rank that is slow, or that none is."""

FindingKind: TypeAlias = Literal[
    "ended_from_outside",
    "lost",
    "failed",
    "death",
    "stall",
    "nan",
    "not_synchronised",
    "replica_drift",
    "skipped_backward",
    "loss_spread",
    "mismatch",
    "network",
    "cpus",
    "straggler",
    "stragglers",
    "data_bound",
    "uneven",
    "even",
    "alone",
    "no_step",
    "no_detail",
    "clocks",
    "little_judged",
    "hosts",
]
"""What a finding of a report is about; `little_judged`: ranks compared in a part of the time only; `hosts`:
hosts from which nothing arrived for some time."""

StallKind: TypeAlias = Literal[
    "", "dead", "unreachable", "missing", "mismatch", "device", "transport", "asking"
]
"""Why a run is stalled: a rank's process is gone; nothing arrives from a host; a rank has not entered the
collective; ranks are in different collectives; a GPU makes no progress; all are in the same collective; no
answers have come yet. Empty: known from the stall's alert alone, in reports only."""

NAMES = frozenset(("AlertKind", "StallKind", "VerdictKind"))
"""The closed sets of this module that frames hold, as annotations of dataclasses have them."""

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
    sentence: str = ""
    """Sentence of its alerts, or of its events where it has no alert. The code that raises one fills in what
    stands in braces. Empty: that code has the whole sentence."""
    sentences: Mapping[str, str] = field(default_factory=dict)
    """Other sentences, by the case in which they are said."""
    severity: Severity = "info"
    """Severity of its alerts and events. The code that raises one names another where it depends on the
    case."""
    sign: str = "┴"
    """On the bar of a replay."""
    tone: Tone = "dim"
    """The colour of this sign; `bad`, of its alerts and events too: something stalled, was lost or failed."""
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
    has_sides: bool = False
    """Whether its evidence is about two sides: ranks, operations and calls in different collectives."""
    said_by_stall: bool = False
    """Whether its message may be the sentence of a stall, which is then not repeated."""
    over_when_averaged: bool = False
    """Whether there was none after all if the script averages its replicas every few steps."""
    of_one_rank: bool = False
    """Whether another rank is another incident. In other kinds the rank is only the first of several."""
    begin_is_event: bool = False
    """Whether an event of the same kind is logged when it begins."""
    remedy: str = ""
    """What to try; `{rank}` and `{batches}` (`batch of step 9 on rank 1`) are its own."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    """What to try where the alert's evidence says why it is so, by its `why`."""


SAME_ORDER = "Let all ranks call the same collectives in the same order{see}."

HOW_OFTEN: Mapping[str, str] = MappingProxyType({"intermittent": " now and then", "rotating": " at present"})
"""By the pattern of a straggler, in the sentence of its alert."""

IN_TURN = ", in turn: batches differ"
"""There, where no rank is to blame."""

_PACE = "all ranks are {kind} since step {step:,}: {now} ms a step, {before} ms before"
_PACES = {"drift": "all ranks become {kind}, since about step {step:,}: {now} ms a step, {before} ms before"}

_DEVIATING_HOOK = "To keep the replicas equal, have the hook return the same gradients on all ranks."

CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "stall": Condition(
            title="no progress",
            severity="critical",
            sign="■",
            tone="bad",
            page="stall",
            letter="S",
            letter_title="stall",
            in_report="own_section",
            advice_order=1,
            said_by_stall=True,
        ),
        "death": Condition(title="death", tone="bad", letter="X", letter_title="death", advice_order=0),
        "failed_rank": Condition(
            title="rank failed",
            sentence="{who} {ended}",
            sentences={"gave_up": "{waited}: {reason}{where}"},
            severity="critical",
            sign="✗",
            tone="bad",
            family="death",
            page="stall",
        ),
        "lost_rank": Condition(
            title="rank lost",
            sentences={
                "gone": "{who} lost: {whose} gone",
                "silent": "{who} lost: silent for more than {silent_s:g} s",
                "ended": "{who} lost: {they} did not report before the run ended",
            },
            severity="critical",
            sign="✖",
            tone="bad",
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
            tone="warn",
            letter="E",
            letter_title="ended from outside",
            advice_order=1,
        ),
        "nan": Condition(
            title="loss is not a number",
            sentence="the loss of {who} is NaN or infinite since {since}",
            sentences={
                "passed": "the loss of {who} was NaN or infinite {when}",
                "event": ": loss is {what} since {since}",
                "weights": "weights of {who} are NaN since {since}",
                "weights_event": ": weights are NaN since {since}",
            },
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
            remedy="Look at the {batches}; torch.autograd.set_detect_anomaly(True) names "
            "the operation that first gives NaN.",
        ),
        "not_synchronised": Condition(
            title="gradients not synchronised",
            sentence="gradients of {model} are not synchronised: {why} since step {since:,} ({who})",
            sentences={
                "bypass": "its forward bypasses DDP",
                "no_sync": "backward runs under no_sync() before optimizer.step()",
                "again": "a second backward after one DDP forward is not all-reduced",
            },
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
            sentence="{whose} of {who} {differ} since step {since:,} (equal at step {equal:,}){why}",
            sentences={
                "never_equal": "{whose} of {who} {differ} since the first check, at step {since:,}{why}",
                "not_reduced": "gradients were not all-reduced",
                "comm_hook": "gradients go through the communication hook {hook}",
                "changed_early": ": changed after DDP's constructor, or init_sync=False?",
                "no_majority": "; which is right is unknown",
            },
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
            remedy="Find code that only some ranks run: it changes parameters or buffers. Start all ranks "
            "from one checkpoint.",
            remedies={"comm_hook": _DEVIATING_HOOK},
        ),
        "skipped_backward": Condition(
            title="backward skipped",
            sentence="{who} ran forward without backward in step {step:,} and {be} a batch ahead since then: "
            "at the end the other ranks may wait for a last backward",
            sentences={
                "left_out": "{who} ran forward without backward under no_sync() in step {step:,}: that batch "
                "is left out",
                "evaluation": "{who} ran forwards without backward in step {step:,}: an evaluation without "
                "torch.no_grad()?",
            },
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
            sentence="loss of {who} stands apart: {own} where the others have {others}",
            sentences={"two_ranks": "losses of ranks 0 and 1 stand apart: {first} and {second}"},
            severity="warning",
            sign="▲",
            tone="warn",
            family="doubtful_numbers",
            begin_is_event=True,
            remedy="Compare the batches of the ranks: is a shard of the data damaged, or of another kind?",
        ),
        "mismatch": Condition(
            title="ranks wait in different collectives",
            sentence="mismatch: {sides}",
            sentences={"side": "rank {rank} in {operation}{where}"},
            severity="critical",
            sign="■",
            tone="bad",
            family="doubtful_numbers",
            page="stall",
            has_sides=True,
            said_by_stall=True,
        ),
        "straggler": Condition(
            title="became slow",
            sentences={
                "every_step": "{who} {take} {late} ms longer{part}{often}, costs {cost} of the step time",
                "arrivals": "{who} {arrive} {late} ms late{often}, costs {cost} of the step time",
                "in_group": "{who} {arrive} {late} ms late at the collectives of {group}, costs at least "
                "{cost} of the step time",
                "event": "{who} became slow{cause} (step {step:,})",
                "event_in_turn": "ranks are slow in turn{cause} (step {step:,})",
            },
            severity="warning",
            sign="▲",
            tone="warn",
            in_report="own_section",
            of_one_rank=True,
            begin_is_event=True,
        ),
        "straggler_end": Condition(title="no longer slow", sentence="{who} {be} no longer slow"),
        "network": Condition(
            title="network slow or lossy",
            sentence="network from host {host} to host {peer}: {trouble}",
            sentences={
                "more": "{first}, and {more}",
                "cut": "cut for up to {longest} s in {cuts} of the last {readings} readings",
                "lossy": "{lost} of {sent:,} segments lost and sent again",
                "lossy_for_long": "{lost} of {sent:,} segments lost and sent again in the last readings",
                "far": "round trip {least} ms at least",
                "slow": "round trip {least} ms at least, {usual} ms on other links",
            },
            severity="warning",
            sign="▲",
            tone="warn",
            page="hosts",
            in_report="passing",
            remedy="Check the network between these two hosts: cables, errors and drops of the interfaces "
            "(ethtool -S, ip -s link), other traffic, the interface in GLOO_SOCKET_IFNAME or "
            "NCCL_SOCKET_IFNAME. No rank is slow by itself.",
        ),
        "preflight": Condition(
            title="ranks differ in what should be equal",
            sentences={
                "same_gpu": "{who}{where} share one GPU ({gpu})",
                "never_set": "{who}{where} share one GPU ({gpu}) of {visible}: no device was set",
                "versions": "{who}{where} {have} {name} {value}, {others} {name} {usual}",
                "interface": "the network of {who}{where} has {name} {value}, of {others} {name} {usual}",
            },
            severity="warning",
            sign="▲",
            tone="warn",
            remedies={
                "same_gpu": "Give each rank a GPU of its own: see CUDA_VISIBLE_DEVICES and the launcher's "
                "number of ranks.",
                "never_set": "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything is "
                "moved to the GPU.",
                "torch": "Install the same torch on all hosts, or use one container image.",
                "nccl": "Install the same NCCL on all hosts: see LD_LIBRARY_PATH and torch's own.",
                "ddptop": "Install the same ddptop on all hosts.",
                "interface": "Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME alike on all hosts.",
                "mtu": "Give the interfaces of all hosts one MTU (ip link): larger packets may be lost.",
            },
        ),
        "disk": Condition(
            title="disk full",
            sentence="disk full: {where}",
            sentences={"passed": "disk no longer full: {where}"},
            severity="warning",
            sign="▲",
            tone="warn",
            in_report="passing",
        ),
        "restart": Condition(title="restart", letter="R", letter_title="restart", marks_events=True),
        "collector_restart": Condition(
            title="collector restart",
            severity="warning",
            letter="C",
            letter_title="collector restart",
            marks_events=True,
        ),
        "compiling": Condition(
            title="a rank compiles",
            sentence="{who} {be} compiling in step {step:,}",
            sentences={"others_wait": "{who} {be} compiling in step {step:,}, the others wait"},
            remedy="Wait: a first compilation takes minutes. TORCH_LOGS=dynamo shows how far it is; "
            "TORCHINDUCTOR_CACHE_DIR on a disk that is kept makes the next start shorter.",
            letter="M",
            letter_title="compiling",
            in_report="from_log",
        ),
        "lost_records": Condition(
            title="records missing",
            sentence="{missing}, {most:,} of them of rank {rank}",
            severity="warning",
            sign="✗",
            tone="warn",
            letter="!",
            letter_title="records missing",
        ),
        "recording": Condition(
            title="recording incomplete", severity="warning", letter="!", letter_title="records missing"
        ),
        "refused_messages": Condition(
            title="messages refused",
            sentence="messages to the collector: {counts}{why}",
            sentences={"event": "messages were refused{why}"},
            severity="warning",
        ),
        "interruption": Condition(title="interruption", severity="warning", in_report="passing"),
        LAUNCHER_SIGNAL: Condition(
            title="launcher received a signal",
            sentence="the launcher on {host} has received {signal}",
            severity="warning",
            sign="✗",
            tone="warn",
        ),
        "exit": Condition(title="process ended", severity="critical", sign="✗", tone="bad", page="stall"),
        "process": Condition(title="process stopped or running again", sign="◌", tone="warn"),
        "failed": Condition(title="failed", severity="critical", sign="✗", tone="bad"),
        "slower": Condition(title="all ranks slower", sentence=_PACE, sentences=_PACES, severity="warning"),
        "faster": Condition(title="all ranks faster", sentence=_PACE, sentences=_PACES),
        "replica_drift_end": Condition(
            title="replica drift end", sentence="the replicas agree again at step {step:,}"
        ),
        "loss_spread_end": Condition(title="loss spread end", sentence="the ranks' losses agree again"),
        "skipped_backward_end": Condition(
            title="skipped backward end",
            sentence="all ranks have skipped as many backwards since step {step:,}: none is ahead any more",
        ),
        "averaged": Condition(
            title="averaged",
            sentence="replicas are averaged now and then (local SGD), gradients are not",
            sentences={
                "by_script": "the replicas are equal again in step {step:,}: the script averages them itself"
            },
        ),
        "optimizers": Condition(
            title="optimizers",
            sentence="{optimizers} optimizers step in turn, and each step is one optimizer's: the loss is "
            "that of the first",
        ),
        "out_of_batches": Condition(
            title="out of batches",
            sentence="rank {rank} has no batches left since step {step:,}: under join() it only answers the "
            "others' collectives",
        ),
        "no_sync": Condition(
            title="no sync",
            sentence="no_sync() encloses backward only, which all-reduces all the same: forward must be "
            "inside too",
            severity="warning",
        ),
        "disagreement": Condition(
            title="disagreement",
            sentence="by the ranks' own times {who} is slow, but the arrivals of their buckets say otherwise",
        ),
        "clocks": Condition(title="clocks", sentence="{why}: arrivals are not compared", severity="warning"),
        "host_unreachable": Condition(
            title="host unreachable",
            sentence="host {host} is unreachable{where}",
            severity="warning",
            sign="◇",
            tone="warn",
            page="hosts",
        ),
        "host_lost": Condition(
            title="host lost",
            sentence="host {host} is lost, silent for more than {silent_s:g} s{where}",
            severity="critical",
            sign="✖",
            tone="bad",
            page="hosts",
        ),
        "host_back": Condition(
            title="host reports again", sentence="host {host} reports again after {silent} s", page="hosts"
        ),
        "host_thinned": Condition(
            title="host leaves out bucket detail",
            sentence="host {host} leaves out bucket detail, because the collector asked for it",
            severity="warning",
            page="hosts",
        ),
    }
)
"""By kind, the gravest first: of several in one place the first is shown. Other kinds of events are shown in
their own words (`condition_of`)."""


def condition_of(kind: str) -> Condition:
    """How a kind is shown, also one that is not declared: an event of another version."""
    return CONDITIONS.get(kind) or Condition(title=kind.replace("_", " "))


def say(kind: str, case: str = "", /, **values: object) -> str:
    """The sentence of a kind of alert or event, in one of its cases, with these values."""
    return _fill_in_sentence(CONDITIONS[kind], case, values)


def say_stall(kind: StallKind, case: str = "", /, **values: object) -> str:
    """The sentence of a kind of stall, in one of its cases, with these values."""
    return _fill_in_sentence(STALLS[kind], case, values)


def _fill_in_sentence(words: Condition | StallWords, case: str, values: Mapping[str, object]) -> str:
    return (words.sentences[case] if case else words.sentence).format_map(values)


_TONES: Mapping[Sign | Severity, Tone] = {
    "good": "good",
    "info": "dim",
    "busy": "dim",
    "doubt": "warn",
    "warning": "warn",
    "critical": "warn",
}


def tone_of(kind: str, sign: Sign | Severity) -> Tone:
    """The colour of a verdict, a finding, an alert or an event, on every surface.

    Red is for what has stalled, was lost or failed: not for what is critical while the training continues.
    """
    is_red = kind in RED_STATES or (condition_of(kind).tone == "bad" and sign != "info")
    return "bad" if is_red else _TONES.get(sign, "dim")


def kinds_of(*families: Family) -> tuple[str, ...]:
    """The kinds of these families, the gravest first."""
    return tuple(kind for kind, condition in CONDITIONS.items() if condition.family in families)


@dataclass(frozen=True, slots=True, kw_only=True)
class StallWords:
    """How a kind of stall is told apart, its sentences, and what to try."""

    sentence: str = ""
    """As a condition's; the place that finds the stall knows what stands in braces."""
    sentences: Mapping[str, str] = field(default_factory=dict)
    """As a condition's; `short`: for the verdict, in 80 columns."""

    was: str = "gone"
    """What its ranks had been, once the run continues: `rank 1 had been missing`."""
    is_conclusive: bool = False
    """Whether it says why the run makes no progress: what ranks show that have ended since, or hosts that are
    silent, may follow from it."""
    others_wait: bool = False
    """Whether the other ranks wait for its ranks."""
    has_own_alert: bool = False
    """Whether a process or a host has an alert and an event of its own, so that the stall has none."""
    has_sides: bool = False
    """Whether its ranks and the others are in different collectives."""
    shows_waiting: bool = False
    """Whether lines of detail are also about ranks that are not to blame."""
    action: str = ""
    """What to do while it lasts; `{see}` names a call (`: see train.py:88`), `{host}` the host of its rank.
    Empty: that depends on where its ranks are."""
    advice: str = "Find out what the ranks did while the run was stalled: their stacks, if any, are above."
    """What the report suggests; `{waited}`: ` while the others waited`."""


STALLS: Mapping[str, StallWords] = MappingProxyType(
    {
        "dead": StallWords(
            sentence="rank {rank} {how}{more}",
            sentences={
                "all": "all ranks have exited",
                "with_host": "rank {rank} does not report, nor does its host {host}{more}",
            },
            others_wait=True,
            has_own_alert=True,
            advice="Find out why the process of {ranks} has exited: its exit and last traceback are above.",
        ),
        "unreachable": StallWords(
            others_wait=True, has_own_alert=True, advice="Check the host of {ranks} and its network."
        ),
        "missing": StallWords(
            sentence="{who} {be} missing: {has} not entered {collective}{number}",
            sentences={
                "short": "{who} {be} missing: not in {collective}",
                "behind": "{who} {be} missing: still in step {own_step:,}, the others in {step:,}",
                "silent": "{who} {be} missing: {silence}",
                "outside": "{who} {make} no progress in step {step:,}, outside any collective",
                "finished": "{who} {has} finished: the others wait for {them} in step {step:,}",
                "entered": "{who} {be} in {entered}, {others} in {called}",
                "holds_lock": "rank {rank} does not answer: {lock}",
                "before_first_group": "{who} {has} not reached init_process_group{where}",
                "restart": "restart {restart}: {who} {be} in init_process_group since {since}",
            },
            was="missing",
            is_conclusive=True,
            others_wait=True,
            advice="Find out what {ranks} did{where}{waited}: a lock, a read without timeout, a batch that "
            "never came. Give such calls a timeout.",
        ),
        "mismatch": StallWords(
            sentence="{sides} ({number})",
            sentences={
                "side": "{who} {call} {operation}",
                "different_steps": "{who} {wait} in a collective of step {own_step:,}, the others in one of "
                "step {step:,}",
                "deadlock": "deadlock: {sides}",
                "deadlock_side": "{who} {wait} in {operation}",
                "deadlock_unknown": "deadlock: the ranks wait for each other in different process groups",
            },
            was="in another collective",
            is_conclusive=True,
            has_sides=True,
            shows_waiting=True,
            action=SAME_ORDER,
            advice="Have all ranks call the same collectives in the same order: {ranks} called another "
            "one{where}.",
        ),
        "device": StallWords(
            sentence="{gpus} {make} no progress in {where}{launched}",
            sentences={
                "launched": ": all hosts have launched {collective}",
                "error": "{gpus} {report}{launched}",
            },
            was="held up by its GPU",
            is_conclusive=True,
            others_wait=True,
            action="nvidia-smi and dmesg -T (Xid) on {host}: is its GPU in error?",
            advice="Check the GPU of {ranks}: its kernels made no progress (dmesg, nvidia-smi, "
            "NCCL_DEBUG=INFO).",
        ),
        "transport": StallWords(
            sentence="{who} have all launched {collective}{number} and none completes: {why}",
            sentences={
                "short": "all ranks are in {collective}, none completes it: {why}",
                "on_device": "every GPU is in it: {why}",
            },
            is_conclusive=True,
            shows_waiting=True,
            action="Check the network between the hosts: start again with NCCL_DEBUG=INFO, test the links.",
            advice="Check the network between the ranks: all were in the collective, and it made no progress "
            "(NCCL_DEBUG=INFO).",
        ),
        "asking": StallWords(
            sentence="no rank is behind in step {step:,}, and no rank has answered",
            sentences={"awaits_answers": "no progress in step {step:,}: waiting for the ranks' answers"},
            shows_waiting=True,
        ),
        "": StallWords(),
    }
)
"""By kind of stall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWords:
    """How a state of a rank, of a host or of the run is shown."""

    sign: str
    tone: Tone
    is_silent: bool = False
    """Whether nothing arrives from the host: its own state is more exact than those of its ranks."""
    is_aged: bool = False
    """Whether it is shown with the time since the last update, or without progress."""
    attention: int | None = None
    """Place of such ranks among those that need attention; None: they need none."""
    as_of: str = ""
    """From which time the figures of such a run are; empty: from now."""
    page: Page = ""


STATES: Mapping[str, StateWords] = MappingProxyType(
    {
        "failed": StateWords(sign="✗", tone="bad", attention=1, as_of="before the end"),
        "lost": StateWords(
            sign="✖",
            tone="bad",
            is_silent=True,
            attention=1,
            as_of="before the end",
        ),
        "stalled": StateWords(
            sign="■",
            tone="bad",
            is_aged=True,
            attention=1,
            as_of="before the stall",
        ),
        "unreachable": StateWords(
            sign="◇",
            tone="warn",
            is_silent=True,
            is_aged=True,
            attention=2,
            as_of="last known",
            page="hosts",
        ),
        "stale": StateWords(sign="◌", tone="warn", is_aged=True, attention=4, as_of="last known"),
        "waiting": StateWords(sign="○", tone="dim"),
        "live": StateWords(sign="●", tone="good"),
        "finished": StateWords(sign="✓", tone="good"),
    }
)
"""By state, the worst first."""


def word_of_state(state: str, source: FrameSource) -> str:
    """The word for a state: what was live at the moment that a recording shows was running then."""
    return "running" if state == "live" and source == "replay" else state


RED_STATES = tuple(state for state, words in STATES.items() if words.tone == "bad")
"""States of a rank that are red."""

PROBLEM_STATES = tuple(state for state, words in STATES.items() if words.attention is not None)
"""States that need attention, the worst first."""

UNREACHABLE: Literal["unreachable"] = "unreachable"
"""State of a host from which nothing arrives, and which may come back; a kind of stall, too."""

SILENT_STATES: tuple[HostState, ...] = (UNREACHABLE, "lost")
"""States of a host from which nothing arrives."""

GRAVE_STATES: tuple[RankStatus, ...] = ("failed", "lost", "stalled", "unreachable")
"""States of a rank that are the state of the run, the gravest first."""
