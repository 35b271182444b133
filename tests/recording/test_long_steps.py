"""Times of more than 2.1 s take 32 bits on the wire; in ns, and added, they take more."""

from dataclasses import replace

import numpy as np
import pytest

import ddptop
from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import encode_frame
from ddptop.protocol.messages import OwnTime, Steps
from ddptop.recording.reader import Recording
from tests.made_up_run import a_run, feed_runs, numbers, write

EARLIER_US = 3_000_000
"""By how much the base of each message is before its first step."""

LONG_US = 2**31 - 1
"""The wall time of a step in 30, the last one of its message."""

OWN, LONG_OWN = (OwnTime(*[us] * len(OwnTime._fields)) for us in (0, LONG_US))


@pytest.fixture
def record(tmp_path):
    """A function that records a run, with each base so much earlier; it returns the path."""

    def record(earlier_us):
        messages = []
        for received in a_run(200, world=4):
            if isinstance(steps := received.message, Steps):
                rows = [
                    row._replace(
                        begin_us=row.begin_us + earlier_us,
                        wall_us=LONG_US if step % 30 == 29 else row.wall_us,
                        own=LONG_OWN if step % 30 == 29 else OWN,  # rows without it are not sent in columns
                    )
                    for step, row in enumerate(steps.rows, steps.first_step)
                ]
                base_ns = steps.base_ns - 1000 * earlier_us
                received = received._replace(message=replace(steps, rows=tuple(rows), base_ns=base_ns))
            messages.append(received)
        path = tmp_path / f"{earlier_us}.ddptop"
        write(path, messages)
        return path

    return record


def test_long_steps_taken_together_give_the_same_figures_as_one_by_one(record):
    one_by_one, together = Reducer(), Reducer()
    with Recording.open(record(EARLIER_US)) as recording:
        for received in recording.records():
            one_by_one.feed(received)
        feed_runs(together, recording)
        frames = [reducer.frame(recording.end_ns) for reducer in (one_by_one, together)]
    # With clocks that run 2,147 s ahead, how often stalls are looked for differs, and with it when a step is
    # evaluated: an event names the newest step then.
    assert len({encode_frame(replace(frame, events=())) for frame in frames}) == 1
    assert len({tuple(event.message for event in frame.events) for frame in frames}) == 1
    assert numbers(together) == numbers(one_by_one)


def test_when_a_step_began_does_not_depend_on_the_base_of_its_message(record):
    begins = [ddptop.read(record(earlier_us)).steps["begin_s"] for earlier_us in (0, EARLIER_US)]
    np.testing.assert_array_equal(*begins)
