"""The agent skill: its commands, run as printed, and what it says about what they print."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from ddptop.cli.commands import mcp
from ddptop.frames.schema import schema
from tests.examples.runs import EXAMPLES
from tests.processes import environment, run

SKILL = EXAMPLES / "skills" / "ddptop" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)

LONG_S = 300.0

KEY = re.compile(r"^\| `([a-z_.\[\]]+)` \|", re.MULTILINE)


def test_its_front_matter_names_it_and_says_when_to_use_it() -> None:
    matter = re.match(r"---\nname: (.*)\ndescription: (.*)\n---\n", TEXT)
    assert matter is not None
    assert matter[1] == SKILL.parent.name
    assert "Use it when" in matter[2] and len(matter[2]) <= 1024


def test_its_tools_and_causes_are_ours() -> None:
    named = re.search(r"read-only tools (.*?)\. Register", TEXT, re.DOTALL)
    assert named is not None
    tools = re.findall(r"`(\w+)`", named[1])
    assert len(tools) == 5 and all(callable(getattr(mcp, tool)) for tool in tools)
    rows = re.findall(r"^\| (`.*?`) \|", TEXT[TEXT.index("| `cause`") : TEXT.index("## 4.")], re.MULTILINE)
    causes = [cause.strip("`") for row in rows[1:] for cause in row.split(", ")]
    assert len(causes) == 8
    values = json.dumps(schema())
    assert [cause for cause in causes if f'"{cause}"' not in values] == []


@pytest.mark.slow  # two runs of two real ranks, one after the other, and nothing of them is warm
@pytest.mark.timeout(LONG_S + 60)
def test_its_commands_work_as_printed(tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    assert shutil.which("ddptop-run", path=folder) is not None
    env = environment(tmp_path)
    env["PATH"] = f"{folder}{os.pathsep}{env['PATH']}"
    script = EXAMPLES / "trouble.py"
    (tmp_path / "train.py").write_text(
        "import runpy, sys\n"
        f"sys.argv = [{str(script)!r}, 'straggler', '--steps', '120']\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
    )
    install, start, look, report, compare = BLOCKS
    assert install == "pip install 'ddptop[stacks]'\n"
    once, live = look.splitlines()
    text, as_json = report.splitlines()
    lines = [
        start,
        f"{once} > once.txt || exit 11",
        f"{live} > live.json || exit 12",
        "wait",
        f"{text} > report.txt || exit 13",
        f"{as_json} > report.json || exit 14",
        compare + "code=$?; [ $code = 0 ] || [ $code = 1 ] || [ $code = 5 ] || exit 15",
    ]
    done = run(["bash", "-c", "\n".join(lines)], env, tmp_path, cold=True, deadline_s=LONG_S)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "once.txt").read_text().startswith("ddptop before ")

    snapshot = json.loads((tmp_path / "live.json").read_text())
    for names in KEY.findall(TEXT[: TEXT.index("## 3.")]):
        value = snapshot
        for name in names.split("."):
            value = value[name]

    written = json.loads((tmp_path / "report.json").read_text())
    assert {"verdict", "stragglers", "advice", "deaths", "stalls"} <= set(written)
    slow = written["stragglers"][0]
    assert (slow["rank"], slow["cause"]) == (1, "data")
    assert slow["first_step"] <= slow["last_step"] and slow["lost_s"] > 0
    assert all(advice["because"] for advice in written["advice"])
    assert "rank 1 was slow: data loading" in (tmp_path / "report.txt").read_text()
