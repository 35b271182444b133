"""How this ddptop was installed (pip, uv, pipx, conda), and the commands that work there as printed."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_UVX_FOLDERS = ("archive-v", "environments-v")
"""uvx keeps the environments of its commands in such a folder of its cache."""


def install_command(extra: str) -> str:
    """The shell command that adds the packages of `extra` to this ddptop.

    The environment of `uvx` and of `pipx run` lasts for one command: there it is that command with the extra.
    """
    temporary = _temporary_runner(extra)
    if temporary is not None:
        program = Path(sys.argv[0]).name
        words = [program, *sys.argv[1:]] if program in ("ddptop", "ddptop-run") else ["ddptop"]
        return f"{temporary} {shlex.join(words)}"
    prefix = Path(sys.prefix)
    # The file that uv leaves in the environment of a tool.
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool install {shlex.quote(_requirement(extra))}"
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx install --force {shlex.quote(_requirement(extra))}"
    # pip and uv keep the ddptop that is installed, also one of a clone, a wheel or git.
    # Not `util.find_spec`: that of pip has setuptools take its distutils out of this process.
    if PathFinder.find_spec("pip") is None:
        return f"uv pip install --python {_short_path(sys.executable)} 'ddptop[{extra}]'"
    pip = shutil.which("pip")
    in_path = pip is not None and Path(pip).parent == Path(sys.executable).parent
    return f"{'' if in_path else f'{_short_path(sys.executable)} -m '}pip install 'ddptop[{extra}]'"


def own_command(program: str = "ddptop") -> str:
    """How a shell starts `program` of this installation: by name where PATH has it, else by path or `uvx`."""
    temporary = _temporary_runner()
    if temporary is not None:
        return f"{temporary} {program}"
    installed = Path(sys.executable).parent / program
    on_path = shutil.which(program)
    if not installed.exists() or (on_path is not None and Path(on_path).parent == installed.parent):
        return program
    return _short_path(str(installed))


def _temporary_runner(extra: str = "") -> str | None:
    """`uvx` or `pipx run` with where ddptop comes from; None where the environment lasts."""
    prefix = Path(sys.prefix)
    requirement = _requirement(extra)
    if prefix.parent.name.startswith(_UVX_FOLDERS):
        return "uvx" if requirement == "ddptop" else f"uvx --from {shlex.quote(requirement)}"
    if prefix.parent.name == ".cache" and (prefix / "pipx_metadata.json").exists():
        spec = "" if requirement == "ddptop" else f" --spec {shlex.quote(requirement)}"
        return f"pipx run{spec}"
    return None


def _requirement(extra: str) -> str:
    """`ddptop[extra]`, with the address of the wheel, folder or repository that it was installed from."""
    from importlib import metadata  # takes 20 ms, which every command would wait for

    name = f"ddptop[{extra}]" if extra else "ddptop"
    try:
        source = json.loads(metadata.distribution("ddptop").read_text("direct_url.json") or "{}")
        address = source.get("url")
        if address is None:
            return name  # from an index
        vcs = source.get("vcs_info")
    except (metadata.PackageNotFoundError, OSError, ValueError, AttributeError):
        return name
    if vcs is None:
        return f"{name} @ {address}"
    revision = vcs.get("requested_revision")
    return f"{name} @ git+{address}" + (f"@{revision}" if revision else "")


def _short_path(path: str) -> str:
    """The path for a shell, from the current folder where it lies in it."""
    try:
        return shlex.quote(str(Path(path).relative_to(Path.cwd())))
    except (ValueError, OSError):
        return shlex.quote(path)
