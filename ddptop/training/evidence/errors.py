"""What an exception says: its type, message and traceback, also of one that was raised in another process.

A DataLoader raises its worker's exception again, with the worker's traceback as text in the message. Pools
of `multiprocessing` and `concurrent.futures` put that text into the exception's cause, `mp.spawn` into the
message of an exception of its own. The worker's exception is reported, with the calls of that text and then
those of this process.

Does not import torch.
"""

from __future__ import annotations

import linecache
import re
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import Evidence, Stack, StackFrame
from ddptop.training.torch_compat.loader import exited_workers

MAIN_FRAMES = 48
"""Innermost calls of the training thread that are sent: in a framework the user's own is some 30 deep."""

CODE_CHARACTERS = 120
"""Characters of a line of source."""

MAX_BYTES = 60_000
"""Bytes of the encoded message: under the link's 64 KiB with room for its head."""

REASON_CHARACTERS = 500
"""Characters of the reason that is sent."""

HEAD_CHARACTERS, CAUSE_CHARACTERS = 160, 80
"""Characters of an exception, and of the one that it was raised from, in the reason, which is shown in a
line."""

MAX_LINES, LINE_CHARACTERS, MESSAGE_CHARACTERS = 60, 500, 6_000
"""Lines, characters of a line and of the complete message: both ends of a longer one are kept, since either
may say what to do."""

MAX_TEXT = 200_000
"""Characters of a message that are read, half of them at its end, where a traceback has its exception."""

MAX_LINKS = 8
"""Exceptions of a chain."""


class ErrorReport(NamedTuple):
    """What is reported of an exception."""

    reason: str
    """In a line: `ValueError: no such file`, `KeyError in a DataLoader worker: 'image'`."""
    message: tuple[str, ...]
    """The complete message in lines; empty where the reason has all of it."""
    trace: Stack


def describe_error(error: BaseException) -> ErrorReport:
    """The report of an exception, and of the one that it was raised from."""
    chain = _exception_chain(error)
    first = chain[0]
    head = first.summary_line()
    # Cut here already: a long message would push the cause out of the line.
    reason = shorten_text(head, HEAD_CHARACTERS)
    causes = [link for link in chain[1:] if link.text]
    if causes:
        words = "from" if causes[-1].explicit else "while handling"
        reason += f" ({words} {shorten_text(causes[-1].summary_line(remote=False), CAUSE_CHARACTERS)})"
    lines = [*first.message_lines()]
    for link in causes:
        how = "raised from" if link.explicit else "raised while handling"
        lines.append(f"{how} {link.summary_line(remote=False)}")
    complete = len(head) <= HEAD_CHARACTERS and len(lines) <= 1 + len(causes)
    trace = Stack(f"traceback{first.where}", True, tuple(_joined_frames(chain)[:MAIN_FRAMES]))
    return ErrorReport(reason[:REASON_CHARACTERS], () if complete else _bound_lines(lines), trace)


def traceback_stack(trace: TracebackType | None) -> Stack:
    """The stack of an exception."""
    return Stack("traceback", True, tuple(_frames_of(trace)[:MAIN_FRAMES]))


def stack_frame(frame: FrameType, line: int | None) -> StackFrame:
    """A call on a stack, without its line of source."""
    code = frame.f_code
    return StackFrame(code.co_filename, line or 0, code.co_name, "")


def with_source(stacks: Iterable[Stack]) -> tuple[Stack, ...]:
    """The stacks with the source line of every call. Reads files: on a dead network drive it may block."""
    return tuple(
        stack._replace(
            frames=tuple(call._replace(code=_source_code(call) or call.code) for call in stack.frames)
        )
        for stack in stacks
    )


def _source_code(call: StackFrame) -> str:
    return linecache.getline(call.file, call.line).strip()[:CODE_CHARACTERS]


def fit_evidence(evidence: Evidence) -> Evidence:
    """The evidence cut to what the link takes: older operations are dropped first, then the complete message,
    then other threads."""
    while len(encode(evidence)) > MAX_BYTES:
        if len(evidence.operations) > 16:
            evidence = replace(evidence, operations=evidence.operations[len(evidence.operations) // 2 :])
        elif evidence.message:
            evidence = replace(evidence, message=())
        elif len(evidence.stacks) > 1:
            evidence = replace(evidence, stacks=evidence.stacks[: (len(evidence.stacks) + 1) // 2])
        else:
            return replace(evidence, stacks=(), operations=(), groups=())
    return evidence


def shorten_text(text: str, most: int) -> str:
    """`text` in at most so many characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


@dataclass(slots=True)
class _ChainLink:
    """One exception of a chain."""

    kind: str
    text: str
    """Its message, of any number of lines."""
    frames: list[StackFrame]
    """The innermost call first."""
    where: str = ""
    """` in a DataLoader worker`: where it was raised, if not in this process."""
    group: str = ""
    """` (the first of 3 in an ExceptionGroup)`."""
    explicit: bool = False
    """It was named by `raise ... from`; False: another one was raised while it was handled."""

    def summary_line(self, *, remote: bool = True) -> str:
        """`KeyError in a DataLoader worker: 'image'`, in a line; without the place if not `remote`."""
        kind = f"{self.kind}{self.where if remote else ''}{self.group}"
        text = " ".join(self.text.split())
        return f"{kind}: {text}" if text else kind

    def message_lines(self) -> list[str]:
        """As `summary_line`, with the lines of the message kept apart."""
        kind = f"{self.kind}{self.where}{self.group}"
        head, *more_lines = [line.rstrip() for line in self.text.strip().splitlines() if line.strip()] or [""]
        return [f"{kind}: {head}" if head else kind, *more_lines]


def _exception_chain(error: BaseException) -> list[_ChainLink]:
    """The exception, and those that it was raised from, the first cause last."""
    links: list[_ChainLink] = []
    seen: set[int] = set()
    current: BaseException | None = error
    explicit = False
    # A chain may lead back to where it began.
    while current is not None and id(current) not in seen and len(links) < MAX_LINKS:
        seen.add(id(current))
        new, current, next_explicit = _links_of(current)
        new[0].explicit = explicit
        links += new
        explicit = next_explicit
    if links:
        _name_signal(links, exited_workers(error.__traceback__))
    return links[:MAX_LINKS]


def _links_of(error: BaseException) -> tuple[list[_ChainLink], BaseException | None, bool]:
    """What is known of an exception of this process, the next of its chain, and whether `from` named that."""
    text, frames = _message_text(error), _frames_of(error.__traceback__)
    cause, explicit = error.__cause__, True
    if cause is None:
        cause, explicit = (None if error.__suppress_context__ else error.__context__), False
    remote = parse_traceback(text)
    if remote:
        where = _remote_place(text)
        for link in remote:
            link.where = where
        remote[0].frames += frames
        # The text has the whole chain: what this process adds is only how the exception came here.
        return remote, None, False
    kind = type(error).__name__
    remote_text = getattr(cause, "tb", None)
    # `multiprocessing.pool` and `concurrent.futures` each have a class of this name.
    if type(cause).__name__.endswith("RemoteTraceback") and isinstance(remote_text, str):
        remote = parse_traceback(_cut_middle(remote_text))
        calls = (remote[0].frames if remote else []) + frames
        first = _ChainLink(kind, text, calls, " in a worker process")
        return [first, *remote[1:]], None, False
    leaves = _first_leaf(error)
    if leaves:
        leaf, number = leaves
        links, following, following_explicit = _links_of(leaf)
        links[0].group = f" ({'the first of ' if number > 1 else ''}{number} in an {kind})"
        links[0].frames = _enclose_frames(links[0].frames, frames)
        return links, following, following_explicit
    notes = getattr(error, "__notes__", None)
    for note in notes if isinstance(notes, list) else ():
        text += f"\n{note}" if isinstance(note, str) else ""
    # Such a file could not be compiled, and has no frame.
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        code = (error.text or "").strip()
        frames.insert(0, StackFrame(error.filename, error.lineno, "<module>", code))
        # Its text names the file and the line once more. A class of its own may have any text.
        if type(error).__str__ is SyntaxError.__str__:
            text = text.replace(str(error), str(error.msg), 1)
    return [_ChainLink(kind, text, frames)], cause, explicit


def _first_leaf(error: BaseException) -> tuple[BaseException, int] | None:
    """The first exception in an ExceptionGroup that is no group, and how many there are; None: no group."""
    # Python 3.10 has no groups.
    group = getattr(sys.modules["builtins"], "BaseExceptionGroup", None)
    if group is None or not isinstance(error, group):
        return None
    pending: list[Any] = [error]
    leaves: list[BaseException] = []
    while pending and len(leaves) < MAX_TEXT:
        current = pending.pop()
        if isinstance(current, group):
            # Turned round, since the last one is taken next: the group's first is to come first.
            pending += reversed(current.exceptions)
        else:
            leaves.append(current)
    return (leaves[0], len(leaves)) if leaves else None


def _message_text(error: BaseException) -> str:
    text = ""
    with suppress(Exception):  # the user's __str__ may do anything
        text = _cut_middle(str(error))
    return text


def _cut_middle(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 2]}\n{text[-MAX_TEXT // 2 :]}"


def _frames_of(trace: TracebackType | None) -> list[StackFrame]:
    return [stack_frame(frame, line) for frame, line in reversed([*traceback.walk_tb(trace)])]


def _joined_frames(chain: Sequence[_ChainLink]) -> list[StackFrame]:
    """The calls that led to the first cause that `raise ... from` names: it is what went wrong."""
    frames = chain[0].frames
    for link in chain[1:]:
        if not link.explicit:
            break
        if link.text and link.frames:
            frames = _enclose_frames(link.frames, frames)
    return frames


def _enclose_frames(inner: list[StackFrame], outer: list[StackFrame]) -> list[StackFrame]:
    """`inner`, whose outermost call has caught the exception, with the calls around that call in `outer`."""
    if not inner:
        return outer
    # The call that caught the first exception stands in both tracebacks.
    catches = inner[-1].file, inner[-1].function
    for index, frame in enumerate(outer):
        if (frame.file, frame.function) == catches:
            return inner + outer[index + 1 :]
    return inner


def _bound_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """The lines in pieces of LINE_CHARACTERS at most; of too many those at both ends."""
    pieces = [
        line[begin : begin + LINE_CHARACTERS]
        for line in lines
        for begin in range(0, max(1, min(len(line), MESSAGE_CHARACTERS)), LINE_CHARACTERS)
    ]
    room, kept = MESSAGE_CHARACTERS, 0
    for piece in pieces:
        room -= len(piece)
        kept += room >= 0
    if len(pieces) <= min(kept, MAX_LINES):
        return tuple(pieces)
    half = max(1, min(kept, MAX_LINES) // 2)
    return (*pieces[:half], "...", *pieces[-half:])


# -- exceptions of other processes, as text ---------------------------------------

_BEGINS = re.compile(r"^.{0,40}Traceback \(most recent call last\):\s*$")
_CALL = re.compile(r"""^[\s|+]*File "([^"]+)", line (\d+)(?:, in (.+))?$""")
_MARKS = re.compile(r"^[\s|]*[~^]+\s*$")
_ERROR = re.compile(r"^[\s|+]{0,12}([A-Za-z_][\w.]*)(?:: ?(.*))?$")
_EXPLICIT = "The above exception was the direct cause of the following exception:"
_IMPLICIT = "During handling of the above exception, another exception occurred:"


def parse_traceback(text: str) -> list[_ChainLink]:
    """The exceptions of a traceback that Python has formatted, the last one first; empty: there is none."""
    links: list[_ChainLink] = []
    following = False
    """Whether the exception before was named by the `from` of the one that comes."""
    lines = iter(text.splitlines())
    for line in lines:
        if _BEGINS.match(line):
            break
    else:
        return []
    while (link := _parse_exception(lines)) is not None:
        parsed, separator = link
        if links:
            links[-1].explicit = following
        links.append(parsed)
        following = separator == _EXPLICIT
        if not separator:
            break
    links.reverse()
    return links


def _parse_exception(lines: Iterator[str]) -> tuple[_ChainLink, str] | None:
    """One traceback after its first line, and the line before the next one; None: there is none."""
    frames: list[StackFrame] = []
    kind, message, separator = "", [], ""
    for line in lines:
        call = _CALL.match(line)
        if not kind and call is not None:
            frames.append(StackFrame(call[1], min(int(call[2]), 2**31), call[3] or "", ""))
        elif line.strip(" |") in (_EXPLICIT, _IMPLICIT):
            separator = line.strip(" |")
            break
        elif kind:
            message.append(line)
        elif frames and not line[:1].isspace() and (error := _ERROR.match(line)) is not None:
            # Only the exception's own line is not indented.
            kind, message = error[1].rpartition(".")[2], [error[2] or ""]
        elif frames and not frames[-1].code and not _MARKS.match(line):
            # Python 3.11 and later mark the part that failed in a line below the source.
            frames[-1] = frames[-1]._replace(code=line.strip(" |"))
    if not kind:
        return None
    return _ChainLink(kind, "\n".join(message).strip(), frames[::-1]), separator


_PLACES = (
    (re.compile(r"^Caught \S+ in DataLoader worker process \d+"), " in a DataLoader worker"),
    (re.compile(r"^Caught \S+ in pin memory thread"), " in the pin_memory thread"),
    (re.compile(r"^Caught \S+ in replica (\d+)"), " in replica {0}"),
    (re.compile(r"-- Process (\d+) terminated with the following error:"), " in process {0}"),
)


def _remote_place(text: str) -> str:
    for pattern, words in _PLACES:
        if (match := pattern.search(text[:1000])) is not None:
            return words.format(*match.groups())
    return " in another process"


# -- workers that were killed --------------------------------------------------------

_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (?:is killed by signal|exited unexpectedly)"
)
_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([^.]+)\.")


def _name_signal(links: list[_ChainLink], exit_codes: dict[int, int]) -> None:
    """Have the first exception say which signal has killed a worker, where that or its cause tells it."""
    worker = _WORKER.search(links[0].text)
    if worker is None:
        return
    pids = [int(pid) for pid in worker[1].split(",") if pid.strip()]
    # torch gives the signal's description (`Killed`), not its name.
    names = {signal.strsignal(number): number.name for number in signal.Signals}
    signals = {int(pid): names.get(word, word) for link in links for pid, word in _KILLED.findall(link.text)}
    for pid, code in exit_codes.items():
        # An exit code of its own is positive, and no signal.
        with suppress(ValueError):
            signals.setdefault(pid, signal.Signals(-code).name)
    killed_by = next((signals[pid] for pid in pids if pid in signals), "")
    codes = [exit_codes[pid] for pid in pids if exit_codes.get(pid, 0) > 0]
    if killed_by:
        how = f"killed by {killed_by}"
    elif codes:
        how = f"exited with code {codes[0]}"
    else:
        return
    many = len(pids) > 1
    who = f"DataLoader worker{'s' if many else ''} (pid{'s' if many else ''} {', '.join(map(str, pids))})"
    verb = ("were " if many else "was ") if killed_by else ""
    links[0].text = f"{who} {verb}{how}"
    # The others tell the same once more.
    links[1:] = [link for link in links[1:] if _WORKER.search(link.text) is None]
