"""What decoding owes to a command that a signal ends."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Annotated

import msgspec
import pytest

from ddptop.protocol.decoding import converter_to


def test_a_check_of_values_runs_no_python_in_which_a_signal_could_be_dropped() -> None:
    """msgspec drops what is raised within `typing`'s hash of a type: SIGTERM did not end `ddptop merge`."""
    convert = converter_to(list[Annotated[int, msgspec.Meta(ge=0)]])
    assert convert([1, 2]) == [1, 2]
    called: list[str] = []

    def note_call(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(note_call)
    try:
        convert([3])
    finally:
        sys.setprofile(None)
    assert called == ["<lambda>"]
    with pytest.raises(msgspec.ValidationError):
        convert([-1])
