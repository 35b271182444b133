"""Imports run one way, along the way of the data, and what need not load torch does not."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ddptop"

MAY_IMPORT = {
    "protocol": set(),
    "frames": {"protocol"},
    "host": {"protocol"},
    "transport": {"protocol", "host"},
    "recording": {"protocol"},
    "training": {"protocol", "transport", "host"},
    "analysis": {"protocol", "frames"},
    "agent": {"protocol", "transport", "host", "recording"},
    "collector": {"protocol", "frames", "transport", "host", "recording", "analysis", "agent"},
    "sources": {"protocol", "frames", "transport", "host", "recording", "analysis"},
    "render": {"protocol", "frames"},
    "report": {"protocol", "frames", "recording", "analysis", "sources", "render"},
    "export": {"protocol", "frames", "host", "recording", "analysis"},
    "tui": {"protocol", "frames", "sources", "render"},
    "cli": {
        "protocol",
        "frames",
        "transport",
        "host",
        "recording",
        "analysis",
        "agent",
        "collector",
        "sources",
        "render",
        "report",
        "export",
        "tui",
    },
}
"""Package -> the packages of ddptop that it may import; itself always. `protocol` is shared by all."""

ALSO = "ddptop.training.torch_compat"
"""The command line may import it besides: it knows which torch is needed, and torchrun's private names."""


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import in a file, wherever it stands in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_run_one_way(package: str) -> None:
    wrong = []
    for path in sorted((PACKAGE / package).rglob("*.py")):
        for line, name in imported(path):
            parts = name.split(".")
            if parts[0] == "ddptop" and len(parts) > 1 and parts[1] in MAY_IMPORT:
                allowed = {package} | MAY_IMPORT[package]
                if parts[1] not in allowed and not (package == "cli" and name.startswith(ALSO)):
                    wrong.append(f"{path.relative_to(PACKAGE)}:{line} {name}")
    assert not wrong


def test_every_package_has_its_direction() -> None:
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == set(MAY_IMPORT)


def test_only_training_and_the_launcher_import_torch() -> None:
    named = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for _, name in imported(path)
        if name.split(".")[0] == "torch"
    }
    assert {name for name in named if not name.startswith("training/")} == {"cli/launch.py"}


RANK = (
    "import ddptop.training.publisher, ddptop.training.early_exit, ddptop.training.exit, "
    "ddptop.training.session, ddptop.training.evidence.errors, ddptop.host.early_failures"
)
"""A training process only encodes, and reads a few answers."""


def test_a_rank_loads_nothing_that_decodes() -> None:
    code = f"{RANK}\nimport sys\nassert not {{'msgspec', 'zmq', 'textual'}} & {{*sys.modules}}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


AGENT = (
    "import ddptop.agent.host_watch, ddptop.agent.admission, ddptop.agent.run_file, ddptop.recording.writer"
)
"""There is one on every host: it does without numpy, which takes as much memory as the rest of it."""


@pytest.mark.parametrize(
    "statement",
    [
        "import ddptop",
        "import ddptop.cli.main; ddptop.cli.main.main(['ls'])",
        "import ddptop.tui.app, ddptop.sources.live, ddptop.sources.replay",
        "import ddptop.collector.service, ddptop.collector.supervisor",
        "import ddptop.agent.service",
        "import ddptop.training.attach, ddptop.training.import_hook",
        "import ddptop.cli.demo, ddptop.cli.launch",
        AGENT,
    ],
)
def test_torch_is_not_loaded(statement: str, tmp_path: Path) -> None:
    code = f"{statement}\nimport sys\nassert 'torch' not in sys.modules"
    code += "\nassert 'numpy' not in sys.modules" * (statement == AGENT)
    # They take 7 MB, and serve the calls of another process alone.
    served = "collector.service" in statement or "agent.service" in statement
    code += "\nassert not {'_hashlib', 'http', 'ssl'} & {*sys.modules}" * served
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    tmp_path.chmod(0o700)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


STEPS_AT_AN_AGENT = """
import sys
from pathlib import Path
import msgpack, zmq
from ddptop.agent.local_ranks import LocalRanks
from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Hello, StepRow, Steps
from ddptop.transport.receiver import FEWEST_BYTES
from ddptop.transport.sockets import new_context

hello = Hello(1, "run", 5, 0, 1, 0, 0, "node", 1, "cuda:0", "nccl", "reducer", 0, 10**18, 1.0)
row = StepRow(0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 9, None, (0, 1, 2))
messages = [hello, *(Steps(1, step, 7, (row,)) for step in range(200))]
assert sum(len(encode(steps)) for steps in messages[1:]) > 2 * FEWEST_BYTES
heads = [msgpack.packb((5, 0, number, max(1, number))) for number in range(len(messages))]
sent = [[*map(zmq.Frame, (b"route", head, encode(one)))] for head, one in zip(heads, messages)]

def receive():
    if not sent:
        raise zmq.Again
    return sent.pop(0)

context = new_context()
ranks = LocalRanks.bind(
    context, Path("."), None, lambda hello, peer: None, run_id="run", epoch=1, one_part=True
)
ranks._receiver._receive_frames = receive
assert len(ranks.receive_messages(1)) == len(messages), ranks.take_refused(1)
ranks.close()
context.term()
assert 'numpy' not in sys.modules
"""


def test_an_agent_decodes_many_steps_without_numpy(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STEPS_AT_AN_AGENT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
