"""What a release says about itself: one version, in `ddptop/__init__.py`, and what has changed in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ddptop import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent
FLAGS = re.MULTILINE | re.IGNORECASE


def read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def print_notes(version: str) -> subprocess.CompletedProcess[str]:
    """What `.github/workflows/release.yml` puts into the release on GitHub."""
    return subprocess.run(
        [ROOT / ".ci" / "release-notes", version], capture_output=True, text=True, timeout=60
    )


def test_the_changelog_says_what_is_new_in_this_version() -> None:
    notes = print_notes(__version__)
    assert (notes.returncode, notes.stderr) == (0, "")
    assert re.findall("^### (.*)", notes.stdout, re.MULTILINE) == ["Added", "Changed", "Fixed"]
    assert len(notes.stdout.split()) <= 300, "shorten another line of this version"
    newest = re.search("^## (.*)", read("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None and newest[1] == __version__


def test_the_examples_install_this_version() -> None:
    stated = re.compile(r"^\s*(?:ARG DDPTOP_)?version(?:=|: )([\d.\"]+)$", FLAGS)
    for file in ("docker/Dockerfile", "conda-forge/recipe.yaml"):
        versions = stated.findall(read(f"examples/{file}"))
        assert [version.strip('"') for version in versions] == [__version__]


def test_the_recipe_requires_what_the_package_does() -> None:
    project = tomllib.loads(read("pyproject.toml"))
    listed = project["project"]["dependencies"] + project["build-system"]["requires"]
    recipe = read("examples/conda-forge/recipe.yaml")
    required = dict(re.findall(r"^    - ([a-z-]+) >=([0-9.]+)", recipe, FLAGS))
    names = {"msgpack": "msgpack-python"}
    expected = {}
    for line in listed:
        name, _, oldest = line.partition(";")[0].partition(">=")
        expected[names.get(name, name)] = oldest
    torch = project["project"]["optional-dependencies"]["torch"][0].removeprefix("torch>=")
    assert required == {**expected, "pytorch": torch}
    assert project["project"]["description"] in recipe


def test_a_tag_of_another_version_is_refused() -> None:
    other = print_notes("0.0.1")
    assert (other.returncode, other.stdout) == (1, "")
    assert other.stderr == "ddptop/__init__.py has another version than 0.0.1\n"
