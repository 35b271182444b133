"""`ddptop-run --ddptop-metrics`: a real Prometheus scrapes the live training of two ranks."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddptop.frames.snapshot import snapshot
from tests.export.test_dashboard import queries
from tests.processes import DDPTOP_RUN, DEADLINE_S, environment, free_port, started, until
from tests.recording.replays import frame_at

SCRIPT = Path(__file__).parent / "training" / "scripts" / "paced.py"
STEPS, SLOW_FROM, LATE_MS = 500, 100, 20

NOT_HERE = "hw_gpu_"
"""How names of series begin that a machine without a GPU does not have."""

GROUP = {
    "exposed_wait_seconds": ("exposed_wait_ms", 1e-3),
    "exposed_transfer_seconds": ("exposed_transfer_ms", 1e-3),
    "exposed_communication_ratio": ("exposed_comm_pct", 1e-2),
}
"""By the name of a series without prefix: the field of the JSON's `group`, and its unit."""

RANK = {f"rank_{name}_seconds": f"{of}_ms" for name, of in (("own_time", "own"), ("excess", "excess"))} | {
    "rank_step_duration_seconds": "step_ms"
}
PHASES = ("data", "forward", "backward", "optimizer", "other")


class Prometheus:
    """Asks a Prometheus."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that a query gives; none while it starts."""
        words = urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(f"http://{self._address}/api/v1/query?{words}", timeout=60) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except OSError:
            return []

    def scrapes(self) -> list[dict[tuple[str, ...], float]]:
        """What it has scraped, one after the other: the value by the name without prefix and the labels."""
        found: defaultdict[float, dict[tuple[str, ...], float]] = defaultdict(dict)
        for series in self.ask('{__name__=~"ddptop_.*"}[10m]'):
            labels = series["metric"]
            name = labels["__name__"].removeprefix("ddptop_")
            key = (name, *(labels[one] for one in ("rank", "phase", "quantile") if one in labels))
            for at_s, value in series["values"]:
                found[at_s][key] = float(value)
        return [found[at_s] for at_s in sorted(found)]


@contextmanager
def prometheus(target: str, folder: Path) -> Iterator[Prometheus]:
    """One that scrapes HOST:PORT once a second."""
    jobs = [{"job_name": "ddptop", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}]
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": jobs}), encoding="utf-8")  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={config}", f"--web.listen-address={address}", f"--storage.tsdb.path={folder}/db"]
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)
    try:
        yield Prometheus(address)
    finally:
        server.terminate()
        server.wait()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus (Debian's package)")
def test_prometheus_has_every_panel_and_the_figures_of_the_recording(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="pip install 'ddptop[metrics]'")
    recording = tmp_path / "run.ddptop"
    words = [*DDPTOP_RUN, "--ddptop-metrics", "prometheus:0", "--ddptop-record", str(recording)]
    words += ["--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    words += [str(STEPS), str(tmp_path), str(SLOW_FROM), str(LATE_MS)]
    panels = [query.replace("$instance", ".*") for query in queries() if NOT_HERE not in query]
    with started(words, environment(tmp_path), tmp_path) as process:
        assert process.stderr is not None
        target = next(line for line in process.stderr if "/metrics" in line).split("/")[2]
        with prometheus(target, tmp_path) as server:
            until(lambda: all(map(server.ask, panels)), "series for every panel")
            (excess,) = (query for query in panels if "rank_excess" in query)

            def ranks() -> set[str]:
                return {series["metric"]["rank"] for series in server.ask(excess)}

            until(lambda: ranks() == {"0", "1"}, "both ranks")  # none while a scrape has failed
            (tmp_path / "go").touch()
            assert process.wait(DEADLINE_S) == 0
            scrapes = [one for one in server.scrapes() if ("straggler_cost_ratio", "1") in one]
    assert scrapes
    for scraped in scrapes[-4:]:
        step = int(scraped["step",])
        assert scraped == pytest.approx(scraped | figures(recording, step), rel=1e-3, abs=1e-5), step


def figures(recording: Path, step: int) -> dict[tuple[str, ...], float]:
    """What a scrape at this step has, by the JSON of the recording there."""
    shown: Any = snapshot(frame_at(recording, step))
    group, ranks, slow = shown["group"], shown["ranks"], shown["straggler"]
    found: dict[tuple[str, ...], float] = {
        (name,): factor * group[field] for name, (field, factor) in GROUP.items()
    }
    found["loss",] = group["loss"]["mean"]
    found |= {
        ("step_duration_seconds", of): group["step_ms"][f"p{100 * float(of):.0f}"] / 1e3
        for of in ("0.5", "0.95")
    }
    found |= {(name, str(rank["rank"])): rank[field] / 1e3 for rank in ranks for name, field in RANK.items()}
    found |= {
        ("rank_phase_seconds", str(rank["rank"]), phase): rank[f"{phase}_ms"] / 1e3
        for rank in ranks
        for phase in PHASES
    }
    found["straggler_cost_ratio", str(slow["rank"])] = slow["cost_pct"] / 100
    return found
