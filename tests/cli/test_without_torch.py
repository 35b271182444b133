"""Where torch is missing or too old, what needs it says so in one line with the command; the rest works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddptop.host.installation import install_command, own_command
from ddptop.training.torch_compat import why_unusable

NO_TORCH = "import sys; sys.modules['torch'] = None"
"""From then on `import torch` raises what it raises where torch is not installed."""

MISSING = f"needs torch, which is not installed: {install_command('torch')}"
OLD = f"needs torch 2.6 or newer, not 2.5.1+cu121: {install_command('torch')}"


def python(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DDPTOP")}
    places = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
    folder.chmod(0o700)
    return subprocess.run(
        [sys.executable, "-c", code],
        env=kept | places | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("from ddptop.cli.launch import main; sys.exit(main(['train.py']))", "ddptop-run"),
        ("from ddptop.cli.main import main; sys.exit(main(['demo', '--headless']))", "ddptop demo"),
    ],
)
def test_commands_that_need_torch_name_the_command_that_installs_it(
    call: str, what: str, tmp_path: Path
) -> None:
    done = python(f"{NO_TORCH}\n{call}", tmp_path)
    other = f", or {own_command()} demo --simulate 8, which needs none" if "demo" in what else ""
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"ddptop: {what} {MISSING}{other}\n")


def test_a_public_name_raises_an_import_error_that_names_the_command(tmp_path: Path) -> None:
    code = f"""{NO_TORCH}
import ddptop
try:
    ddptop.setup
except ImportError as error:
    print(error.name, error)
assert not hasattr(ddptop, "nothing")
"""
    done = python(code, tmp_path)
    assert (done.stderr, done.stdout) == ("", f"torch ddptop.setup {MISSING}\n")


@pytest.mark.parametrize(
    "call",
    [
        "import ddptop, ddptop.tui.app, ddptop.sources.live, ddptop.report.build, ddptop.cli.agent",
        "from ddptop.cli.main import main; main(['ls'])",
        "from ddptop.cli.main import main; assert main(['--help']) in (0, None)",
        "import ddptop.training.attach",
    ],
)
def test_the_rest_works_without_torch(call: str, tmp_path: Path) -> None:
    done = python(
        f"{NO_TORCH}\ntry:\n    exec({call!r})\nexcept SystemExit as end:\n    assert not end.code", tmp_path
    )
    assert done.returncode == 0, done.stderr


def old_torch(folder: Path, version: str) -> str:
    """A stub whose launcher prints the script instead of running it; the folder for PYTHONPATH."""
    package = folder / "stub" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (package / "__init__.py").touch()
    (package / "run.py").write_text(
        "import argparse\n"
        "def get_args_parser():\n"
        "    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--no-python', action='store_true')\n"
        "    parser.add_argument('training_script')\n"
        "    parser.add_argument('training_script_args', nargs=argparse.REMAINDER)\n"
        "    return parser\n"
        "def main():\n"
        "    print(parse_args(None).training_script)\n"
    )
    return str(folder / "stub")


@pytest.mark.parametrize(
    ("version", "option", "expected"),
    [
        ("2.5.1+cu121", "", (1, "", f"ddptop: ddptop-run {OLD}\n")),
        ("2.5.1+cu121", "--ddptop-off", (0, "train.py\n", "")),
        ("2.6.0a0+gitdf5bbc0", "--ddptop-off", (0, "train.py\n", "")),
    ],
)
def test_an_older_torch_is_refused_unless_it_is_to_run_alone(
    version: str, option: str, expected: tuple[int, str, str], tmp_path: Path
) -> None:
    words = [option, "train.py"] if option else ["train.py"]
    code = f"import sys; from ddptop.cli.launch import main; sys.exit(main({words!r}))"
    done = python(code, tmp_path, PYTHONPATH=old_torch(tmp_path, version))
    assert (done.returncode, done.stdout, done.stderr) == expected


@pytest.mark.parametrize(
    ("version", "usable"),
    [
        ("2.6.0", True),
        ("2.6.0a0+gitdf5bbc0", True),
        ("2.6.0.dev20241112+cu124", True),
        ("2.6.0rc1", True),
        ("2.13.0+cpu", True),
        ("3.0", True),
        ("", True),
        ("git", True),
        ("2.5.1", False),
        ("2.5.0a0+872d972e41.nv24.08", False),
        ("1.13.1", False),
    ],
)
def test_versions_are_compared_by_their_release(version: str, usable: bool) -> None:
    assert (why_unusable("x", version) is None) == usable
