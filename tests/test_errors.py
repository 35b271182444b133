"""How a rank fails, and where its worker hangs, is said in everything that ddptop shows of a run."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddptop.host.worker_calls import find_py_spy
from tests.processes import DDPTOP, DDPTOP_RUN, environment, run, started, until

SCRIPT = Path(__file__).parent / "scripts" / "failing.py"
LINES = SCRIPT.read_text("utf-8").splitlines()


def line_of(code: str) -> int:
    return 1 + next(number for number, line in enumerate(LINES) if code in line)


class FailedRun:
    """A run of the script that has ended, and what ddptop prints of its recording."""

    def __init__(self, home: Path, how: str) -> None:
        self.home = home
        self.recording = home / "run.ddptop"
        words = ["--ddptop-record", str(self.recording), "--standalone", "--nproc-per-node", "2"]
        self.done = run([*DDPTOP_RUN, *words, str(SCRIPT), how], environment(home), home)

    def ddptop(self, *words: str) -> str:
        """What a command prints; lines are joined, for they are wrapped."""
        done = run([*DDPTOP, *words], environment(self.home) | {"COLUMNS": "80"}, self.home)
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split())

    def json(self) -> dict[str, Any]:
        return json.loads(self.ddptop("replay", str(self.recording), "--json"))

    def everything(self) -> dict[str, str]:
        """By command, what it says of the failure."""
        recording = str(self.recording)
        page = self.home / "page.html"
        self.ddptop("report", recording, "--html", str(page))
        snapshot = self.json()
        return {
            "--once": self.ddptop("replay", recording, "--once"),
            "--json": json.dumps(snapshot["deaths"][0], ensure_ascii=False),
            "verdict": snapshot["verdict"]["sentence"],
            "alert": snapshot["alerts"][0]["message"],
            "report": self.ddptop("report", recording),
            "report --json": self.ddptop("report", recording, "--json"),
            "HTML": page.read_text("utf-8").replace("&#x27;", "'"),
            "export": self.ddptop("export", recording, "--to", "json", "-o", "-"),
        }


@pytest.fixture(scope="module")
def worker_raises(tmp_path_factory: pytest.TempPathFactory) -> FailedRun:
    return FailedRun(tmp_path_factory.mktemp("worker"), "worker-raises")


def test_an_exception_of_a_worker_is_said_everywhere_as_its_own(worker_raises: FailedRun) -> None:
    assert worker_raises.done.returncode == 1
    said = "ValueError in a DataLoader worker: cannot identify image file 'shard-7/320.jpg'"
    everything = worker_raises.everything()
    assert [where for where, text in everything.items() if said not in text] == []
    assert [where for where, text in everything.items() if "Original Traceback" in text] == []


def test_its_place_is_the_line_that_raised_it(worker_raises: FailedRun) -> None:
    line = line_of("raise ValueError")
    death = worker_raises.json()["deaths"][0]
    call = death["position"]["user_call"]
    assert (call["line"], call["function"]) == (line, "decode")
    assert Path(call["file"]).name == SCRIPT.name
    once, report = (
        worker_raises.ddptop(*words, str(worker_raises.recording))
        for words in (["replay", "--once"], ["report"])
    )
    action = f"Fix the ValueError in failing.py:{line} decode (rank 1), then resume from a checkpoint."
    assert f"try: {action}" in once
    assert action in report


@pytest.mark.parametrize(
    ("how", "reason", "code"),
    [
        pytest.param(
            "import",
            "ModuleNotFoundError: No module named 'no_such_module'",
            "import no_such_module",
            marks=pytest.mark.slow,
        ),
        (
            "before-ddp",
            "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/last.pt'",
            "torch.load(",
        ),
    ],
)
def test_an_exception_before_ddp_is_said_like_any_other(
    tmp_path: Path, how: str, reason: str, code: str
) -> None:
    failed = FailedRun(tmp_path, how)
    assert failed.done.returncode == 1
    everything = failed.everything()
    assert [where for where, text in everything.items() if reason not in text] == []
    death = failed.json()["deaths"][0]  # the other rank may fail in what it waits for
    assert (death["rank"], death["step"], death["exit_code"]) == (1, None, 1)
    assert death["position"]["user_call"]["line"] == line_of(code)
    kind = reason.partition(":")[0]
    assert (
        f"try: Fix the {kind} in failing.py:{line_of(code)} (rank 1), then start again."
        in everything["--once"]
    )
    assert "last steps may be missing" not in everything["--once"]


@pytest.mark.skipif(find_py_spy() is None, reason="needs py-spy")
def test_a_worker_that_hangs_is_said_everywhere_with_its_line(tmp_path: Path) -> None:
    run_of_script = [*DDPTOP_RUN, "--ddptop-name", "hangs", "--ddptop-stall", "2", "--standalone"]
    words = ["--nproc-per-node", "2", str(SCRIPT), "worker-hangs"]
    env = environment(tmp_path) | {"COLUMNS": "80"}
    said = f"in failing.py:{line_of('time.sleep(600)')} decode_stuck_image"

    def ddptop(*words: str) -> str:
        return " ".join(run([*DDPTOP, *words], env, tmp_path).stdout.split())

    def said_in_verdict() -> dict[str, Any] | None:
        shown = json.loads(ddptop("hangs", "--json") or "{}")
        return shown if said in shown.get("verdict", {}).get("detail", "") else None

    with started([*run_of_script, *words], env, tmp_path) as process:
        try:
            shown: Any = until(said_in_verdict, "the worker is named")
            once, report = ddptop("hangs", "--once"), ddptop("report", "hangs")
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()
    alert = next(alert for alert in shown["alerts"] if alert["kind"] == "stall")
    position = shown["stall"]["positions"][0]
    for place in (alert["evidence"]["waits_for"], position["waits_for"], once, report):
        assert re.search(rf"DataLoader worker pid \d+ {re.escape(said)}", place), place
    assert f"Find out what holds {alert['evidence']['waits_for']}" in once
    assert f"Find out what holds {alert['evidence']['waits_for']}" in report
