"""Rank 1 sleeps, loops, reads a file or sorts an array, in every place of a step: its line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.sampled_stack import SampledStack, hot_line, hot_path, samples_phrase
from ddptop.protocol.evidence import StackSamples
from ddptop.recording.reader import Recording
from tests.processes import DDPTOP_RUN, environment, run

SCRIPT = Path(__file__).parent / "scripts" / "slow_lines.py"
KINDS = ("sleep", "loop", "read_file", "sort_array")
PLACES = ("data", "forward", "before_optimizer", "before_forward", "after_optimizer", "before_backward")
STEPS = 800
"""Of a stretch: some 20 s, in which a rank is flagged, asked, and takes its samples within the budget."""

WINDOWS = [(place, KINDS[number % 4]) for number, place in enumerate(PLACES)]


def sampled_in(recording: Path) -> list[SampledStack]:
    """Every series of samples in a recording, as the frame right after it has it."""
    reducer, stacks = Reducer(), []
    for received in Recording.open(recording).records():
        reducer.feed(received)
        if isinstance(received.message, StackSamples):
            newest = max(reducer.frame(received.t_ns).sampled, key=lambda stack: stack.taken_s)
            stacks.append(newest)
    return stacks


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_line_that_takes_the_time_is_named(tmp_path: Path) -> None:
    recording = tmp_path / "lines.ddptop"
    words = [f"{place}:{kind}" for place, kind in WINDOWS] + ["after_optimizer:save"]
    command = [*DDPTOP_RUN, "--ddptop-record", recording, "--standalone", "--nproc-per-node", "2"]
    done = run([*command, SCRIPT, str(STEPS), *words], environment(tmp_path), tmp_path, deadline_s=900)
    assert done.returncode == 0, done.stderr
    stacks = sampled_in(recording)
    right, told = 0, []
    long_steps = [stack for stack in stacks if stack.is_long_step and stack.rank == 1]
    assert [hot_line(stack).partition(" ")[2] for stack in long_steps[-1:]] == ["save > torch.save"]
    asked = [stack for stack in stacks if not stack.is_long_step]
    assert {stack.rank for stack in asked} == {1}
    for stack in asked:
        user = next(group.call for group in reversed(hot_path(stack)) if group.call.line)
        told.append(f"{stack.place}: {samples_phrase(stack)}")
        right += _kind_at(stack.step) == user.function
    assert len(asked) >= 5, told
    assert right >= 0.9 * len(asked), told


def _kind_at(step: int) -> str:
    """What was slow at a step, or right before it."""
    number = (step - 60) // (STEPS + 60)
    return WINDOWS[min(number, len(WINDOWS) - 1)][1]
