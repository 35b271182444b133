"""A viewer's request is sent with its credit and answered in its frames only."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from ddptop.collector.viewers import Viewers
from ddptop.frames.frame import Frame
from ddptop.host.processes import current_process
from ddptop.host.runs import RunFile, view_endpoint, write_run_file
from ddptop.sources.live import LiveSource
from ddptop.transport.credit import CreditServer
from ddptop.transport.sockets import new_context
from tests.analysis.test_timeline import fed
from tests.made_up_run import World
from tests.run_processes import DEADLINE_S


def test_two_viewers_get_each_what_it_asked_for(tmp_path: Path) -> None:
    pid, start, boot, namespace = current_process()
    run = RunFile("name", "id", pid, start, boot, namespace, 1.0, "", 2, None, tmp_path)
    write_run_file(tmp_path, run)
    reducer = fed(World(4, delays={(1, "data"): 20_000}), 30)

    def frame(*, cursor: int, focus: int | None, want: str) -> Frame:
        return reducer.frame(0, cursor=cursor, focus=focus, want=want)

    context = new_context()
    server = CreditServer(context, view_endpoint(tmp_path))
    viewers = Viewers(server, frame, epoch=7)
    lanes, cells = LiveSource(run), LiveSource(run)
    with contextlib.ExitStack() as stack:
        stack.callback(context.term)
        stack.callback(server.close)
        for source in (lanes, cells):
            source.start()
            stack.callback(source.close)
        lanes.request("timeline 20 3")
        cells.request("heat data 2 5")

        def served() -> bool:
            server.drain_credits(time.monotonic_ns())
            viewers.serve_due(time.monotonic_ns())
            first, second = lanes.latest(), cells.latest()
            return bool(first and second and first.timeline and second.heat)

        end = time.monotonic() + DEADLINE_S
        while not served():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.005)
        first, second = lanes.latest(), cells.latest()
        assert first is not None and first.timeline is not None and first.heat is None
        assert first.timeline.step == 20
        assert second is not None and second.heat is not None and second.timeline is None
        assert second.heat.steps == (25, 26, 27, 28, 29)

        cells.request("heat of the moment")
        while second.heat is not None:
            assert time.monotonic() < end, "a want that makes no sense still brings something"
            server.drain_credits(time.monotonic_ns())
            viewers.serve_due(time.monotonic_ns())
            time.sleep(0.005)
            second = cells.latest() or second
