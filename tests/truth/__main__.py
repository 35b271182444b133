"""`python -m tests.truth`: train with faults, and compare what ddptop says with what the script did.

--rows NAME...    rows of `rows.py`; `all`; without it the short list. Rows of `incidents.py` too, or `hangs`,
                  `deaths`, `mismatches`, `ends`: all of a group. Rows of `links.py`, or `links`: needs root.
                  Rows of `rare.py`, or `rare`
--windows N       windows with the fault, each between two without; so many runs of a row of the other two
--load N          busy loops beside the training
--keep FOLDER     keep recordings and stamps, FOLDER/NAME-load-N/; of the other two in folders of their seeds
--replay FOLDER   compare kept recordings again instead of training
--pack FOLDER     write traces for `test_traces.py`
--json FILE       write every window's figures
--minutes M       length of each run in minutes instead of windows (for `healthy`)
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from ddptop.recording.reader import Recording
from tests.processes import DDPTOP_RUN, busy_loops, environment, started
from tests.truth import incident_runs, incidents, links, rare, traces
from tests.truth.judge import Judged, Stamps, judge, looks
from tests.truth.rows import BY_NAME, ROWS, SHORT, Row
from tests.truth.table import LEGEND, as_json, heading, line
from tests.truth.trials import Trials

SCRIPT = Path(__file__).parent / "script.py"
DEADLINE_S = 3600.0


def train(row: Row, folder: Path, load: int, **more: Any) -> None:
    """One run beside `load` busy loops: its recording and stamps into the folder."""
    recording = folder / "run.ddptop"
    recording.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as home, busy_loops(load):
        env = environment(Path(home))
        options = ["--ddptop-record", str(recording), "--standalone", "--nproc-per-node", str(row.world)]
        command = [*DDPTOP_RUN, *options, str(SCRIPT), str(folder), json.dumps(row.spec(**more))]
        with started(command, env, folder) as training:
            _, err = training.communicate(timeout=DEADLINE_S)
        if training.returncode:
            raise SystemExit(err)


def compare(row: Row, folder: Path) -> Judged:
    """A recording and its stamps."""
    with Recording.open(folder / "run.ddptop") as recording:
        return judge(row, Stamps.read(folder), looks(recording.records()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=SHORT)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0)
    for name in ("--keep", "--replay", "--pack", "--json"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    trials = Trials(options.windows, options.seed, options.load, options.keep, options.replay)
    if ended := incidents.named(options.rows):
        incident_runs.show(ended, trials)
        names = {one.name for one in ended} | {*incidents.GROUPS}
        options.rows = [name for name in options.rows if name not in names]
    if linked := [row for row in links.LINKS if {row.name, "links", "all"} & {*options.rows}]:
        links.show(linked, trials)
        options.rows = [name for name in options.rows if name not in {"links", *(row.name for row in linked)}]
    if rows_of_rare := [row for row in rare.ROWS if {row.name, "rare", "all"} & {*options.rows}]:
        rare.show(rows_of_rare, trials)
        options.rows = [
            name for name in options.rows if name not in {"rare", *(row.name for row in rare.ROWS)}
        ]
    if not options.rows:
        return
    rows = list(ROWS) if options.rows == ["all"] else [BY_NAME[name] for name in options.rows]
    windows = 10**6 if options.minutes else 2 * options.windows + 1
    more = {"steps": options.steps, "windows": windows, "seed": options.seed, "seconds": 60 * options.minutes}
    print(
        f"load average {os.getloadavg()[0]:.1f}, {options.load} busy loops\n{LEGEND}\n{heading()}", flush=True
    )
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        for row in rows:
            name = f"{row.name}-load-{options.load}"
            folder = (options.replay or options.keep or Path(temporary)) / name
            if options.replay is None:
                folder.mkdir(parents=True, exist_ok=True)
                train(row, folder, options.load, **more)
            judged = compare(row, folder)
            found.append(judged)
            print(line(judged), flush=True)
            if options.pack:
                traces.write(options.pack / f"{name}.trace", row, folder)
    if options.json:
        options.json.write_text(json.dumps([as_json(judged) for judged in found], indent=1) + "\n")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
