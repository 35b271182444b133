"""Faults of the network between hosts: what is done to a link, and what is said of it and of the ranks.

Hosts are namespaces of the kernel, joined by cables in user space (`tests/hosts/cable.py`). The two ends of
the faulty link are drawn at random; no rank may be flagged, whatever is done.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from ddptop.analysis.reducer import Reducer
from ddptop.recording.reader import Recording
from tests.hosts.cable import Cable
from tests.hosts.jobs import enough, launched, shows
from tests.hosts.namespaces import Host, hosts
from tests.truth.incident_runs import GRAVE, LOOK_NS
from tests.truth.trials import Trials

EVEN_S, FAULT_S = 10.0, 30.0
"""How long the network is well, and how long it is not, at most."""

AFTER_S = 3.0
"""A run goes on for so long after the link was named."""

TRAFFIC = """
import socket, sys, threading
server = socket.create_server(("", 40007))
def read(peer):
    while peer.recv(1 << 20): pass
while True: threading.Thread(target=read, args=(server.accept()[0],), daemon=True).start()
"""
SENDER = """
import socket, sys, time
peer, chunk = socket.create_connection((sys.argv[1], 40007)), bytes(1 << 16)
while True: peer.sendall(chunk); time.sleep(0.01)
"""
"""A rival flow of some 6 MB/s, which takes the user-space cable a good part of its time."""


@dataclass(frozen=True)
class LinkRow:
    """One line of the table."""

    name: str
    """Before the first `-` is the group that `--rows` takes."""
    world: int = 3
    delay_ms: float = 0.0
    back_delay_ms: float = 0.0
    """Towards the first end, and from it."""
    loss: float = 0.0
    back_loss: float = 0.0
    flapping_s: float = 0.0
    """Cut for so long, then well for four times as long."""
    traffic: bool = False
    from_start: bool = False
    """The kernel keeps the least round trip of five minutes: a delay is there from the first step on."""
    words: str = ""
    """What is said of the link; empty: it is not to be named."""


LINKS = (
    LinkRow("link-slow", delay_ms=10, back_delay_ms=10, from_start=True, words=r"round trip \d+"),
    LinkRow("link-slow-of-two", 2, delay_ms=10, back_delay_ms=10, from_start=True, words=r"round trip \d+"),
    LinkRow("link-one-way", delay_ms=20, from_start=True, words=r"round trip \d+"),
    LinkRow("link-lossy", loss=0.05, back_loss=0.05, words="segments lost"),
    LinkRow("link-lossy-one-way", loss=0.1, words="segments lost"),
    LinkRow("link-flapping", flapping_s=1.0, words="segments lost|cut"),
    LinkRow("link-loss-of-1e-3", loss=0.001, back_loss=0.001),
    LinkRow("link-traffic", traffic=True),
)  # fmt: skip


@dataclass
class LinkTrial:
    """One run."""

    row: LinkRow
    ends: tuple[str, str]
    named_after_s: float | None = None
    others_named: bool = False
    """A link of which nothing was wrong."""
    flagged: tuple[str, ...] = ()
    """Alerts of ranks, from the first step to the last."""
    last: str = ""

    @property
    def right(self) -> bool:
        """The link is named where it is to be, no other one, and no rank."""
        told = self.named_after_s is not None
        return told == bool(self.row.words) and not self.others_named and not self.flagged


def run(row: LinkRow, folder: Path, seed: int) -> None:
    """One trial: its recording and stamps into the folder."""
    chance = Random(f"{row.name} {seed}")
    with tempfile.TemporaryDirectory() as base, ExitStack() as stack:
        made = stack.enter_context(hosts(row.world, Path(base)))
        # gloo's ring sends from each rank to the next one: the ends of a link are such two.
        first = chance.randrange(row.world)
        ends = made[first], made[(first + 1) % row.world]
        cable = stack.enter_context(Cable(ends[1], ends[0], seed=seed))
        if row.from_start:
            begin(row, cable)
        job = stack.enter_context(launched(made, "steps=0", "pause_ms=5"))
        shows(made[0], row.world)
        time.sleep(0 if row.from_start else EVEN_S)
        stamp = {"unix_s": time.time(), "ends": [ends[0].name, ends[1].name]}
        (folder / "fault.json").write_text(json.dumps(stamp))
        begin(row, cable)
        if row.traffic:
            stack.enter_context(ends[1].started([sys.executable, "-c", TRAFFIC]))
            time.sleep(1.0)
            stack.enter_context(ends[0].started([sys.executable, "-c", SENDER, ends[1].address]))
        _wait(row, made[0], cable)
        (folder / "ended").write_text(str(time.time()))
        cable.is_cut = False
        cable.loss = cable.back_loss = 0.0
        enough(made)
        codes = job.wait()
        assert not any(codes), job.err
        (path,) = (made[0].folder / "state" / "ddptop").glob("run.ddptop")
        (folder / "run.ddptop").write_bytes(path.read_bytes())


def begin(row: LinkRow, cable: Cable) -> None:
    """The fault begins."""
    cable.delay_s, cable.back_delay_s = row.delay_ms / 1e3, row.back_delay_ms / 1e3
    cable.loss, cable.back_loss = row.loss, row.back_loss


def _wait(row: LinkRow, host: Host, cable: Cable) -> None:
    end = time.monotonic() + FAULT_S
    while time.monotonic() < end:
        if row.flapping_s:
            cable.is_cut = True
            time.sleep(row.flapping_s)
            cable.is_cut = False
        time.sleep(4 * row.flapping_s or 1.0)


def judge(row: LinkRow, folder: Path) -> LinkTrial:
    """Compare a recording with its stamp."""
    stamp = json.loads((folder / "fault.json").read_text())
    until_s = float((folder / "ended").read_text())
    trial = LinkTrial(row, tuple(stamp["ends"]))
    flagged: dict[str, None] = {}
    reducer, due = Reducer(), 0
    with Recording.open(folder / "run.ddptop") as recording:
        for received in recording.records():
            due = due or received.t_ns
            while due <= received.t_ns:
                frame = reducer.frame(due)
                due += LOOK_NS
                if frame.unix_s > until_s:
                    break
                for alert in frame.alerts:
                    if alert.kind in GRAVE:
                        flagged[f"{alert.kind}: {alert.message}"] = None
                    elif alert.kind == "network":
                        _note(trial, alert.message, frame.unix_s - stamp["unix_s"])
            reducer.feed(received)
    trial.flagged = tuple(flagged)
    return trial


def _note(trial: LinkTrial, message: str, after_s: float) -> None:
    found = re.match(r"network from host (\S+) to host (\S+?): (.*)", message)
    trial.last = message
    if found is None or {found[1], found[2]} != {*trial.ends}:
        trial.others_named = True
    elif trial.row.words and re.search(trial.row.words, found[3]):
        trial.named_after_s = after_s if trial.named_after_s is None else trial.named_after_s


HEADING = f"{'row':<22}{'trials':<8}{'named':<8}{'after s':<14}{'other link':<12}{'rank flagged':<12}"


def show(rows: list[LinkRow], trials: Trials) -> None:
    """Run the rows and print a line of each."""
    print(
        f"named: the link with both ends, or that it is not where nothing is to be said\n{HEADING}",
        flush=True,
    )
    for row in rows:
        made = [judge(row, folder) for folder in trials.of(row.name, partial(run, row))]
        named = sum((one.named_after_s is not None) == bool(row.words) for one in made)
        after = sorted(one.named_after_s for one in made if one.named_after_s is not None)
        times = f"{after[len(after) // 2]:.0f}, {after[-1]:.0f}" if after else "-"
        others, flagged = sum(one.others_named for one in made), sum(bool(one.flagged) for one in made)
        print(f"{row.name:<22}{len(made):<8}{named:<8}{times:<14}{others:<12}{flagged:<12}", flush=True)
        for one in made:
            if not one.right:
                print(f"  {one.ends}: {one.last or 'nothing'} {'; '.join(one.flagged)}", flush=True)
