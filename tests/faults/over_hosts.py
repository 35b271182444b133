"""Faults of the link between hosts, with real ranks on namespaces that a cable joins."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.row import CannotTryError, Result, Row
from tests.hosts.jobs import enough, launched, nothing_left, recorded, shows, snapshot
from tests.hosts.namespaces import hosts, why_no_hosts
from tests.processes import until


def cut_for(seconds: float) -> Callable[[int], Result]:
    """The last of three hosts is cut off for so long, then trains on."""

    def attempt(_: int) -> Result:
        reason = why_no_hosts()
        if reason is not None:
            raise CannotTryError(reason)
        with tempfile.TemporaryDirectory(prefix="ddptop-faults-") as folder:
            return _cut(Path(folder), seconds)

    return attempt


def _cut(folder: Path, seconds: float) -> Result:
    with hosts(3, folder) as (a, b, c), launched((a, b, c), "steps=0", "pause_ms=20") as job:
        shows(a, 3)
        c.cut()
        time.sleep(seconds)  # what is tried
        picture = snapshot(a, "run")
        sentence = "" if picture is None else str(picture["verdict"]["sentence"])
        c.mend()
        before = 0 if picture is None else max(rank["step"] or 0 for rank in picture["ranks"])
        # The kernel sends again what gloo had sent after a pause as long as the cut.
        until(
            lambda: (
                (now := snapshot(a, "run")) is not None
                and min(rank["step"] or 0 for rank in now["ranks"]) > before
            ),
            "steps after the cut",
            60 + 3 * seconds,
        )
        enough((a, b, c))
        codes = job.wait()
        nothing_left((a, b, c))
        steps = int(job.out[0].split()[0])
        ranks = recorded(a)["ranks"]
    lost = sum(rank["lost_records"] for rank in ranks)
    whole = [rank["records"] for rank in ranks] == [steps] * 3 and not lost
    seen = f"{sentence.partition(':')[0]}; {steps} steps, {lost} lost, exit codes {codes}"
    return Result(seen, whole and codes == [0, 0, 0] and "node-c" in sentence)


ROWS = tuple(
    Row(
        f"link of a host cut for {seconds} s",
        "host named, every step recorded once",
        cut_for(seconds),
        long=seconds > 10,
    )
    for seconds in (10, 60)
)
