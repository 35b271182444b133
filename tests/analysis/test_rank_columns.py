"""Columns of all ranks that are kept from frame to frame are what the ranks' own states say."""

import numpy as np
import pytest

from ddptop.analysis.rank_columns import NUMBERS, ReportColumns
from ddptop.analysis.reducer import Reducer
from ddptop.analysis.to_frame import tables
from ddptop.frames.codec import encode_frame
from ddptop.recording.reader import Recording
from tests.recording.made_up import a_run, write
from tests.recording.test_runs import readings_beside

INTEGERS = ("step", "heard_ns", "moved_ns", "seen_ns", "joined", "records", "lost_records")


@pytest.mark.parametrize("every", [1, 2], ids=["in columns", "some alone"])
def test_kept_columns_are_those_of_the_ranks(tmp_path, every):
    path, with_gpu = tmp_path / "run.ddptop", 0
    messages = []
    for number, received in enumerate(a_run(300, world=4)):
        messages.append(received)
        if number > 20 and number % 3 == 0 and received.rank >= 0:
            messages += readings_beside(received, received.rank, 1 if number % 40 else every)
    write(path, messages)
    framed, plain = Reducer(), Reducer()
    with Recording.open(path) as recording:
        for run in recording.runs():
            at = 0
            while at < len(run):
                stop = min(len(run), at + 40)
                at = framed.feed_run(run, at, lambda: pytest.fail("refused"), stop=stop, more=True)
                frame = framed.frame(int(run.heads[0, at - 1]))
                kept, read = framed.state.reports, ReportColumns(framed.state)
                read.read_presence()
                for name in INTEGERS:
                    assert kept.integers(name).tolist() == read.integers(name).tolist(), name
                for kind, names in NUMBERS.items():
                    for name in names:
                        np.testing.assert_array_equal(kept._newest(kind, name), read._newest(kind, name))
                np.testing.assert_array_equal(kept.numbers("micro_steps"), read.numbers("micro_steps"))
                assert kept.with_gpu().tolist() == read.with_gpu().tolist()
                gpus = [tables._facts_of(rank, framed.state.ranks[rank]) for rank in read.with_gpu().tolist()]
                assert frame.gpus == (*gpus,)
                with_gpu += len(kept.with_gpu()) > 0
            plain.feed_run(run, 0, lambda: pytest.fail("refused"))
        now_ns = recording.end_ns
    assert with_gpu > 3
    assert encode_frame(framed.frame(now_ns)) == encode_frame(plain.frame(now_ns))
