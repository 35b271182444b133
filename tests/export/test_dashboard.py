"""`examples/observability`: every query of the dashboard names a series that ddptop has, and is PromQL."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ddptop.export.metrics import Family, metric_families
from tests.tui import fake

FOLDER = Path(__file__).parents[2] / "examples" / "observability"


def queries() -> list[str]:
    panels = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_query_names_a_series() -> None:
    name_of = pytest.importorskip("ddptop.export.prometheus").name_of
    known = set()
    for family in metric_families(fake.many()):
        counted = isinstance(family, Family) and family.kind == "counter"
        known.add(f"{name_of(family)}_total" if counted else name_of(family))
    for query in queries():
        named = re.findall(r"(\w+)\{", query)
        assert named, query
        assert set(named) <= known, query


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian's package prometheus)")
def test_prometheus_takes_config_and_queries(tmp_path: Path) -> None:
    rules = [
        {"record": f"query_{i}", "expr": query.replace("$instance", ".*")}
        for i, query in enumerate(queries())
    ]
    file = tmp_path / "rules.yml"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    for words in (["config", str(FOLDER / "prometheus.yml")], ["rules", str(file)]):
        done = subprocess.run(["promtool", "check", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
