"""The commands that ddptop prints work in a shell, however it was installed; `.ci/run` runs them there."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from ddptop.host.installation import install_command, own_command

WHEEL = "file:///dist/ddptop-0.2.0-py3-none-any.whl"
GIT = {"url": "file:///clone", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process seems to run in an environment of that name, from ddptop of an index, as `ddptop demo`."""
    prefix = tmp_path / "my env"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "ddptop").touch(0o755)
    use_environment(prefix, monkeypatch)
    set_source({}, monkeypatch)
    monkeypatch.setattr(sys, "argv", [str(prefix / "bin" / "ddptop"), "demo"])
    return prefix


def use_environment(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))


def set_source(direct_url: object, monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            return json.dumps(direct_url) if direct_url and name == "direct_url.json" else None

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())


def test_an_environment_with_pip(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment / "bin" / "python"
    assert install_command("torch") == f"'{python}' -m pip install 'ddptop[torch]'"
    assert own_command() == f"'{environment / 'bin' / 'ddptop'}'"

    monkeypatch.chdir(environment.parent)
    assert install_command("torch") == "'my env/bin/python' -m pip install 'ddptop[torch]'"

    (environment / "bin" / "pip").touch(0o755)
    monkeypatch.setenv("PATH", str(environment / "bin"))  # as where the environment is activated
    assert (install_command("torch"), own_command()) == ("pip install 'ddptop[torch]'", "ddptop")


def test_an_environment_of_uv_without_pip(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PathFinder, "find_spec", lambda name: None)
    monkeypatch.chdir(environment.parent)
    assert install_command("web") == "uv pip install --python 'my env/bin/python' 'ddptop[web]'"


@pytest.mark.parametrize(
    ("receipt", "command"),
    [("uv-receipt.toml", "uv tool install"), ("pipx_metadata.json", "pipx install --force")],
)
def test_an_installed_tool(
    receipt: str, command: str, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (environment / receipt).touch()
    assert install_command("torch") == f"{command} 'ddptop[torch]'"
    set_source({"url": WHEEL, "archive_info": {}}, monkeypatch)
    assert install_command("torch") == f"{command} 'ddptop[torch] @ {WHEEL}'"


@pytest.mark.parametrize(
    ("source", "expected", "own"),
    [
        ({}, "'ddptop[torch]'", "uvx"),
        ({"url": WHEEL, "archive_info": {}}, f"'ddptop[torch] @ {WHEEL}'", f"uvx --from 'ddptop @ {WHEEL}'"),
        (GIT, "'ddptop[torch] @ git+file:///clone'", "uvx --from 'ddptop @ git+file:///clone'"),
        (
            {**GIT, "vcs_info": {"vcs": "git", "requested_revision": "v1"}},
            "'ddptop[torch] @ git+file:///clone@v1'",
            "uvx --from 'ddptop @ git+file:///clone@v1'",
        ),
    ],
)
def test_uvx_repeats_the_command(
    source: object, expected: str, own: str, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_environment(environment / "archive-v0" / "x7Q", monkeypatch)
    set_source(source, monkeypatch)
    assert install_command("torch") == f"uvx --from {expected} ddptop demo"
    assert own_command() == f"{own} ddptop"
    monkeypatch.setattr(sys, "argv", ["/cache/bin/ddptop-run", "my script.py"])
    assert install_command("torch") == f"uvx --from {expected} ddptop-run 'my script.py'"


def test_pipx_run_repeats_the_command(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = environment / ".cache" / "b547"
    prefix.mkdir(parents=True)
    (prefix / "pipx_metadata.json").touch()
    use_environment(prefix, monkeypatch)
    assert install_command("torch") == "pipx run --spec 'ddptop[torch]' ddptop demo"
    assert own_command() == "pipx run ddptop"
    set_source({"url": WHEEL, "archive_info": {}}, monkeypatch)
    assert own_command() == f"pipx run --spec 'ddptop @ {WHEEL}' ddptop"
