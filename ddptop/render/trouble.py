"""The words for a stall, on the screen and in plain text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ddptop.frames.conditions import STATES
from ddptop.frames.numbers import age
from ddptop.frames.verdict import LONG_WAIT_S, run_state
from ddptop.render.text import fit_tail

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame
    from ddptop.frames.stall import Stall
    from ddptop.frames.verdict import Verdict


def as_of(frame: Frame) -> str:
    """`before the stall`: of which time the figures of a run are that makes no steps now; empty: of now, or
    there are none yet."""
    return "" if frame.group.step is None else STATES[run_state(frame)].as_of


def waits_long(frame: Frame) -> bool:
    """Whether the run has waited for ranks for so long that something is likely to be wrong."""
    return run_state(frame) == "waiting" and frame.run.elapsed_s >= LONG_WAIT_S


def in_trouble(frame: Frame) -> bool:
    """Whether the stall page has something to show."""
    return frame.stall is not None or bool(frame.deaths)


def step_now(frame: Frame) -> int | None:
    """The step that the group is at: the newest complete one; during a stall the one that is under way."""
    stuck = frame.stall.step if frame.stall is not None else None
    return frame.group.step if stuck is None else stuck


def stalled_for(stall: Stall, now_s: float) -> str:
    """`STALLED 17 s`."""
    return f"STALLED {age((now_s if stall.ended_s is None else stall.ended_s) - stall.since_s)}"


def shorten_detail(detail: str, width: int) -> str:
    """The second line in as many words as `width` cells hold: `step 46.8 ms, 26.6 ±0.4 without the slow
    rank, 24.9 if communication were hidden too` if that fits into one line and more does not. Commas part
    the figures of a step alone, which end the line: of what precedes them, clauses stay apart."""
    before, median_step, figures = detail.rpartition("median step")
    short = f"{before}step{figures.replace(' · ', ', ')}"
    return short if median_step and " · " in figures and len(short) <= width < len(detail) else detail


def without_state(shown: Verdict) -> str:
    """The sentence without `STALLED 17 s · ` at its begin, which is in the header."""
    stated = shown.sentence.startswith(("STALLED", "FAILED", "LOST", "UNREACHABLE"))
    return shown.sentence.partition(" · ")[2] if stated else shown.sentence


def trouble_brief(shown: Verdict, width: int) -> str:
    """`rank 1 missing · train.py:88 tokenize`: who a stall or an end is due to, and in which call, as much of
    it as `width` cells hold. The state itself, and for how long, is in the header."""
    sentence = shown.sentence.partition(" · ")[2] or shown.sentence
    what = re.sub(r"(?<!crashed)(?<!aborted) \([^)]*\)", "", sentence)
    host = re.match(r"host (\S+)( is \w+)", what)
    if host is not None and len(host[0]) > width > len(f"host {host[2]}"):
        name = host[1] if re.fullmatch(r"[\d.]+", host[1]) else host[1].partition(".")[0]
        what = f"host {fit_tail(name, width - 5 - len(host[2])).strip()}{host[2]}"
    who, brief = _cut_to_clauses(what, width), _cut_to_clauses(_exit_brief(what), width)
    if not who or (" failed" in who and brief.count(": ") > who.count(": ")):
        who = brief  # that it has failed is in the header
    # Of a stall on the way to the first step, the sentence has the place, not the detail.
    in_call = re.compile(r"(rank \d+ (?:is|was) in (\S+))( [^\s;,]+)?")
    call = in_call.search(shown.detail) or (None if who else in_call.match(what))
    if call is not None:
        call_text, place, function = call[1], call[2], call[3] or ""
        short = who.replace(" is missing", " missing")
        candidates = [f"{short} · {place}{function}", f"{short} · {place}"] if who else []
        texts = [*candidates, call_text + function, call_text]
        who = next((text for text in texts if len(text) <= width), who)
    return who or what


def _cut_to_clauses(text: str, width: int) -> str:
    """As many clauses as fit; empty: not even the first one does."""
    ends = [end.start() for end in re.finditer(": |; | at step | before |$", text) if end.start() <= width]
    return text[: ends[-1]] if ends else ""


def _exit_brief(text: str) -> str:
    """`rank 2: OutOfMemoryError: CUDA ...`, `rank 12 killed by SIGKILL`, `rank 2: exit code 3`."""
    brief = re.sub(r"^(rank [\d,]+) failed: (?:[a-z_]\w*\.)*", r"\1: ", text).removeprefix("the ")
    return brief.replace(" was ", " ", 1).replace(" exited with code ", ": exit code ", 1)
