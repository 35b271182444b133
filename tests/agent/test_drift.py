"""The agent's estimate of a clock that runs at another rate: the true offset is within every stated bound."""

from __future__ import annotations

import time

import pytest

from ddptop.protocol.messages import Clock
from ddptop.recording.reader import Recording
from tests.agent.test_killed import Pair
from tests.run_processes import RUN_ID, wait_for

SCALED = """
import sys, time
scale, began, ahead = float(sys.argv.pop()), int(sys.argv.pop()), int(sys.argv.pop())
real = time.monotonic_ns
time.monotonic_ns = lambda: began + ahead + int((real() - began) * scale)
time.monotonic = lambda: time.monotonic_ns() / 1e9
from ddptop.agent.__main__ import main
sys.exit(main())
"""
"""An agent whose clock is `ahead` of this machine's by so many ns, and runs `scale` times as fast."""

AHEAD_NS = 5_000_000_000_000

MANY = 40
"""There are eight clocks at once and then one a second."""


@pytest.mark.slow
@pytest.mark.parametrize("drift_ppm", [200, -200])
def test_the_true_offset_of_a_drifting_clock_is_within_every_bound(host, drift_ppm):
    scale, began = 1 + drift_ppm / 1e6, time.monotonic_ns()
    words = ["--run-dir", host.directory, "--run-id", RUN_ID, "--name", "name", "--record", "unused"]
    host.agent = lambda: host.spawn("-c", SCALED, *words, AHEAD_NS, began, scale)
    pair = Pair(host)
    rank = host.rank(0, 1, steps=1, end="hang")  # without ranks there are no clocks
    wait_for(lambda: pair.recording.stat().st_size > 100)

    def clocks() -> list[Clock]:
        with Recording.open(pair.recording) as recording:
            return [item.message for item in recording.records() if isinstance(item.message, Clock)]

    def done() -> bool:
        """The drift is not known for minutes where agent and collector wait for a processor: three with round
        trips of 20 ms."""
        known = [clock.drift_ppb for clock in clocks()]
        return sum(map(bool, known)) > 3 or len(known) > MANY

    wait_for(done)
    rank.kill()
    host.finish(pair.agent)
    assert len(clocks()) > 3
    for clock in clocks():
        true_ns = began + (clock.t_ns - AHEAD_NS - began) / scale - clock.t_ns
        assert abs(clock.offset_ns - true_ns) <= clock.bound_ns, clock
        assert clock.drift_ppb in (0, pytest.approx(-1000 * drift_ppm, abs=120_000))
