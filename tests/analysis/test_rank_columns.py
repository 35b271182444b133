"""Frames that are made while messages come change nothing, and show what the ranks' own states say."""

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import encode_frame
from ddptop.recording.reader import Recording
from tests.made_up_run import a_run, write
from tests.recording.test_runs import readings_beside

GPU, MEMORY = ("util_pct", "mem_bytes", "throttle", "nvlink_rx_bytes"), ("allocated_bytes", "retries")


def known(column):
    return [None if number != number else number for number in column.tolist()]


@pytest.mark.parametrize("every", [1, 2], ids=["steady", "changing"])
def test_the_columns_of_a_frame_are_what_the_ranks_have_reported(tmp_path, every):
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
                at = framed.feed_run(run, at, lambda: pytest.fail("refused"), stop=stop)
                frame, ranks = framed.frame(int(run.heads[0, at - 1])), framed.state.ranks
                assert frame.ranks.records.tolist() == [rank.records for rank in ranks]
                assert known(frame.ranks.micro_steps) == [rank.micro_steps for rank in ranks]
                usage = [rank.usage for rank in ranks]
                assert known(frame.ranks.rss_bytes) == [one and one.rss_bytes for one in usage]
                for facts in frame.gpus:
                    gpu, memory = ranks[facts.rank].gpu, ranks[facts.rank].memory
                    for name in GPU:
                        assert getattr(facts, name) == getattr(gpu, name, None)
                    for name in MEMORY:
                        assert getattr(facts, name) == getattr(memory, name, None)
                with_gpu += len(frame.gpus) > 0
            plain.feed_run(run, 0, lambda: pytest.fail("refused"))
        now_ns = recording.end_ns
    assert with_gpu > 3
    assert encode_frame(framed.frame(now_ns)) == encode_frame(plain.frame(now_ns))
