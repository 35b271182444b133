"""A training over two hosts while everything of ours is killed and stopped at random, and the link is cut.

`python -m tests.benchmarks.bench_kills [--minutes M] [--seed N] [--world RANKS] [--stall SECONDS]`, as root:
the hosts are namespaces of this machine (`tests/hosts/namespaces.py`). Two hosts train a DDP model under
`ddptop-run` while, seeded, the collector, the agent of the other host and a viewer are killed (SIGKILL) or
stopped (SIGSTOP) for a moment, and the cable of a host is pulled. Afterwards the same steps are trained
under torchrun.

The table has what was done how often, what each outlet says of missing records, whether weights are equal,
what was left behind, and every critical event and every sentence about a stall that a viewer has shown: in
a training that nothing harms but a cut link each of them should be about the link. Exits with code 1 where
the weights differ, a step is missing, or something is left.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from ddptop.analysis.reducer import Reducer
from ddptop.protocol.limits import NS
from ddptop.recording.reader import Recording
from tests.hosts.jobs import Job, enough, in_repository, launched, recorded, snapshot
from tests.hosts.namespaces import Host, hosts
from tests.processes import DDPTOP, until

WEIGHTS = {"kill agent": 5, "kill collector": 3, "cut link": 2, "kill viewer": 1, "stop": 2}
"""How often each is drawn."""

PAUSE_S = (1.0, 6.0)
"""Between two of them."""

STOPPED_S = (1.0, 8.0)
CUT_S = (2.0, 25.0)
"""How long: below and above what makes a host unreachable, lost, and a run stalled."""


class Viewer:
    """`ddptop run --watch` on a host, which is started again where it has ended."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._file = host.folder / "watched"
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._file.open("ab") as file:
            return subprocess.Popen(
                self._host.entering([*DDPTOP, "run", "--watch"]),
                env=in_repository(self._host),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def ensure(self) -> None:
        """Start another one where it has ended."""
        if self._process.poll() is not None:
            self._process = self._start()

    def resume(self) -> None:
        """`nsenter` stops with what it has started."""
        self._process.send_signal(signal.SIGCONT)

    def lines(self) -> list[str]:
        """All that was shown."""
        return self._file.read_text().splitlines()

    def end(self) -> None:
        """Kill it."""
        victim = _process(self._host, "--watch")
        if victim is not None:
            victim.kill()
        self._process.wait()


def _process(host: Host, word: str) -> psutil.Process | None:
    for process in host.processes():
        with contextlib.suppress(psutil.Error):
            if word in process.cmdline():
                return process
    return None


def harm(a: Host, b: Host, viewer: Viewer, seconds: float, chance: random.Random) -> collections.Counter[str]:
    """Do harm for so long; returns how often each was done."""
    done: collections.Counter[str] = collections.Counter()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        time.sleep(chance.uniform(*PAUSE_S))
        viewer.ensure()
        what = chance.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        if what == "cut link":
            host = chance.choice((a, b))
            host.cut()
            time.sleep(chance.uniform(*CUT_S))
            host.mend()
            done[what] += 1
            continue
        whom = what.split()[1] if what != "stop" else chance.choice(("collector", "agent", "viewer"))
        host, word = {
            "collector": (a, "ddptop.collector"),
            "agent": (b, "ddptop.agent"),
            "viewer": (a, "--watch"),
        }[whom]
        victim = _process(host, word)
        if victim is None:  # it is being started again
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            if what == "stop":
                victim.suspend()
                time.sleep(chance.uniform(*STOPPED_S))
                victim.resume()
                viewer.resume()
            else:
                victim.kill()
            done[f"{what} {whom}" if what == "stop" else what] += 1
    return done


def left_behind(both: tuple[Host, Host]) -> list[str]:
    """Processes, sockets that are listened on, run folders and files in /tmp of these hosts."""
    found = []
    for host in both:
        for process in host.processes():
            with contextlib.suppress(psutil.Error):
                found.append(f"{host.name}: process {' '.join(process.cmdline())[:100]}")
        runs = host.folder / "r" / "ddptop"
        found += [f"{host.name}: {path}" for path in (runs.iterdir() if runs.exists() else ())]
        inside = Path(f"/proc/{host.first_pid}/root/tmp")
        found += [f"{host.name}: {path.name}" for path in inside.iterdir() if "ddptop" in path.name]
        network = Path(f"/proc/{host.first_pid}/net")
        found += [
            f"{host.name}: a listening TCP socket" for line in _rows(network / "tcp") if line[3] == "0A"
        ]
        found += [f"{host.name}: {line[-1]}" for line in _rows(network / "unix") if "ddptop" in line[-1]]
        found += [f"{host.name}: {path}" for path in (host.folder / "state").rglob("*@*")]
    return found


def _rows(table: Path) -> list[list[str]]:
    return [line.split() for line in table.read_text().splitlines()[1:]]


def said_of_loss(a: Host, job: Job) -> Iterator[tuple[str, str]]:
    """By outlet, what it says of missing records."""
    (path,) = (a.folder / "state" / "ddptop").glob("run.ddptop")
    picture = recorded(a)
    yield "--json", str(sum(rank["lost_records"] for rank in picture["ranks"]))
    for outlet, words in (("--once", ["replay", str(path), "--once"]), ("report", ["report", str(path)])):
        text = a.run([*DDPTOP, *words], in_repository(a)).stdout
        yield (
            outlet,
            "; ".join(line.strip()[:90] for line in text.splitlines() if "lost" in line) or "nothing",
        )
    for number, host in enumerate(("node-a", "node-b")):
        said = [line for line in job.lines(number) if "lost" in line or "keeps ending" in line]
        yield f"launcher on {host}", "; ".join(said) or "nothing"


def _trains(host: Host, world: int) -> bool:
    picture = snapshot(host, "run")
    steps = [] if picture is None else [rank["step"] or 0 for rank in picture["ranks"]]
    return len(steps) == world and min(steps) > 5


def _is_whole(host: Host, world: int) -> bool:
    """Whether all ranks and hosts report, and nothing waits on a host."""
    picture = snapshot(host, "run")
    if picture is None or picture["run"]["state"] != "live":
        return False
    live = [rank["state"] for rank in picture["ranks"]] == ["live"] * world
    return live and all(each["state"] == "live" for each in picture["hosts"]) and len(picture["hosts"]) == 2


def critical(path: Path) -> list[str]:
    """The critical events of a recording, and every half second its critical alerts and its stall: each with
    its seconds of the run."""
    reducer, said, next_ns, begun_s = Reducer(), dict[str, list[float]](), 0, 0.0
    reducer.state.log.kept = 1 << 20
    with Recording.open(path) as recording:
        for received in recording.records():
            now_ns = reducer.state.newest_ns
            # All that was read together is taken first, as before a viewer gets its frame.
            if received.t_ns == now_ns or now_ns < next_ns or not reducer.state.world:
                reducer.feed(received)
                continue
            next_ns = now_ns + NS // 2
            frame = reducer.frame(now_ns)
            reducer.feed(received)
            begun_s = begun_s or frame.run.started_at
            texts = [f"alert: {alert.message}" for alert in frame.alerts if alert.severity == "critical"]
            texts += [f"stall: {frame.stall.sentence}"] if frame.stall is not None else []
            for text in texts:
                said.setdefault(re.sub(r"[\d,]+", "N", text), []).append(frame.unix_s - begun_s)
        events = reducer.frame(reducer.state.newest_ns).events
    lines = [
        f"event at {event.unix_s - begun_s:.1f} s: {event.message}"
        for event in events
        if event.severity == "critical"
    ]
    return lines + [f"{text} ({len(at) / 2:g} s, first at {at[0]:.1f} s)" for text, at in said.items()]


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--world", type=int, default=4, help="ranks, half of them on each host")
    parser.add_argument("--stall", type=float, default=15.0, help="as --ddptop-stall")
    parser.add_argument("--keep", type=Path, help="folder for the recording and what was printed")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder, hosts(2, Path(folder)) as (a, b):
        run = ("--ddptop-name", "run", "--ddptop-stall", str(options.stall))
        script = ("steps=0", "pause_ms=20", f"weights={folder}/weights")
        with launched((a, b), *script, ranks=options.world // 2, options=run) as job:
            until(lambda: _trains(a, options.world), "a run that trains")
            viewer = Viewer(a)
            done = harm(a, b, viewer, 60 * options.minutes, chance)
            # A rank that ends waits 0.8 s for a collector or agent that is to be started again: no longer.
            with contextlib.suppress(AssertionError):
                until(lambda: _is_whole(a, options.world), "all of it runs again", 90.0)
            enough((a, b))
            codes = job.wait()
            viewer.end()
        weights = (Path(folder) / "weights").read_bytes()
        with contextlib.suppress(AssertionError):
            until(lambda: not left_behind((a, b)), "nothing is left", 45.0)
        left = left_behind((a, b))
        picture = recorded(a)
        loss = [*said_of_loss(a, job)]
        (path,) = (a.folder / "state" / "ddptop").glob("run.ddptop")
        lines = critical(path)
        steps = int(job.out[0].split()[0])
        script = (f"steps={steps}", "pause_ms=0", f"weights={folder}/plain")
        with launched((a, b), *script, ranks=options.world // 2, plain=True) as plain:
            plain_codes = plain.wait()
        same = (Path(folder) / "plain").read_bytes() == weights
        watched = viewer.lines()
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / "watched").write_text("\n".join(watched))
            (options.keep / "printed").write_text("\n".join(job.err))
            (options.keep / "run.ddptop").write_bytes(path.read_bytes())
    counts = {(rank["step"], rank["records"], rank["lost_records"]) for rank in picture["ranks"]}
    once = counts == {(steps, steps, 0)}
    print(f"| seed, minutes, ranks | {options.seed}, {options.minutes:g}, {options.world} |")
    for what, times in sorted(done.items()):
        print(f"| {what} | {times} |")
    print(f"| exit codes | {codes}, torchrun {plain_codes} |")
    print(f"| weights as under torchrun | {'the same to the bit' if same else 'DIFFER'} |")
    print(f"| steps trained, by rank (step, records, lost) | {steps}, {sorted(counts)} |")
    print(f"| left behind | {'; '.join(left) or 'nothing'} |")
    for outlet, said in loss:
        print(f"| missing records: {outlet} | {said} |")
    for line in lines:
        print(f"| critical | {line} |")
    shown: collections.Counter[str] = collections.Counter()
    for line in watched:
        if re.search("missing|unreachable|transport|no progress|dead|killed|LOST|STALLED", line):
            shown[re.sub(r"[\d,.]+", "N", line)[:110]] += 1
    for line, times in shown.most_common(20):
        print(f"| shown for {times} s | {line} |")
    return 0 if same and once and not left and codes == [0, 0] else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
