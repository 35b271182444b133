"""Samples of a stack, folded into a tree: the user's calls, and the first call of each library beneath."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from ddptop.protocol.evidence import SampledCall
from ddptop.protocol.limits import MAX_SAMPLED_CALLS
from ddptop.protocol.user_code import is_users

MAX_DEPTH = 12
"""Innermost calls of one sample that are kept: a user's own are some five deep, unless they recurse."""

MAX_CALLS = 40
"""Calls of a tree that are sent, those in most samples: 40 have 10 kB."""

FILE_CHARACTERS, FUNCTION_CHARACTERS = 160, 80

_OWN_FOLDER = str(Path(__file__).parents[2])

assert MAX_CALLS <= MAX_SAMPLED_CALLS


class _Call(NamedTuple):
    """What tells one call of a tree from another."""

    parent: int
    file: str
    line: int
    function: str


class CallTree:
    """Counts in how many samples each call was on the stack."""

    def __init__(self) -> None:
        self.n_samples = 0
        self._indices: dict[_Call, int] = {}
        self._counts: list[int] = []
        self._names: dict[CodeType, str] = {}

    def add_sample(self, innermost: FrameType) -> None:
        """Count the stack that ends with this frame."""
        self.n_samples += 1
        parent = -1
        # From the outermost on: a call needs the index of the one around it.
        for file, line, function in reversed([*self._kept_calls(innermost)][:MAX_DEPTH]):
            call = _Call(parent, file[-FILE_CHARACTERS:], line, function[:FUNCTION_CHARACTERS])
            parent = self._indices.setdefault(call, len(self._indices))
            if parent == len(self._counts):
                self._counts.append(0)
            self._counts[parent] += 1

    def most_sampled(self) -> tuple[SampledCall, ...]:
        """The calls in most samples, each after the one around it."""
        calls = [*self._indices]
        # A call is in no more samples than the one around it, which has the lower index: of equal ones the
        # first are taken, so that no call loses the one around it.
        ordered = sorted(range(len(calls)), key=lambda index: (-self._counts[index], index))[:MAX_CALLS]
        places = {index: place for place, index in enumerate(sorted(ordered))}
        return tuple(
            SampledCall(call.file, call.line, call.function, places.get(call.parent, -1), self._counts[index])
            for index, call in ((index, calls[index]) for index in places)
        )

    def _kept_calls(self, innermost: FrameType) -> Iterator[tuple[str, int, str]]:
        """File, line and function of the user's calls, and of the library's that the innermost of them has
        called; the innermost first. Where no call is the user's, all of them but ddptop's own."""
        frame: FrameType | None = innermost
        library: FrameType | None = None
        while frame is not None and not is_users(frame.f_code.co_filename):
            # Calls of ddptop itself, around the user's, are no library.
            if not _is_own(frame):
                library = frame
            frame = frame.f_back
        if frame is None:
            library, frame = None, innermost
            while frame is not None:
                if not _is_own(frame):
                    yield frame.f_code.co_filename, 0, self._library_name(frame)
                frame = frame.f_back
        if library is not None:
            yield library.f_code.co_filename, 0, self._library_name(library)
        while frame is not None:
            if is_users(frame.f_code.co_filename):
                yield frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name
            frame = frame.f_back

    def _library_name(self, frame: FrameType) -> str:
        """`torch.save`, or with the whole module where the package does not offer it:
        `torch.utils.data.dataloader.__next__`."""
        code = frame.f_code
        if code not in self._names:
            module = str(frame.f_globals.get("__name__", ""))
            package = module.partition(".")[0]
            offered = vars(sys.modules.get(package, object)).get(code.co_name)
            # Through decorators: what a package offers may be a wrapper of this function.
            while (wrapped := getattr(offered, "__wrapped__", None)) is not None:
                offered = wrapped
            is_offered = getattr(offered, "__code__", None) is code
            self._names[code] = f"{package if is_offered else module}.{code.co_name}".lstrip(".")
        return self._names[code]


def _is_own(frame: FrameType) -> bool:
    """Whether it is a call of ddptop itself."""
    return frame.f_code.co_filename.startswith(_OWN_FOLDER)
