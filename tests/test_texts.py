"""The README and all texts for users: their length, their commands, and forms that are hard to read.

The forms are those of the old sentences that had to be read twice. Each pattern has a plain form beside it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop.cli.commands import COMMANDS, LOOK
from ddptop.cli.launch_options import help_text, split_exec
from ddptop.cli.settings import SETTINGS, flag_of
from tests.architecture.shape import PACKAGE, ROOT
from tests.architecture.test_documents import DOCUMENTS
from tests.processes import DEADLINE_S, environment, run, started, until

README = ROOT / "README.md"
MOST_WORDS_README = 900
MOST_WORDS = 2500
MOST_WORDS_IN_A_SENTENCE = 40
LONG_PAGES = {
    "ddptop/analysis/METRICS.md",
}
"""Pages to look things up in, not to read."""

BANNED = {
    r"lost to skew": "waiting for slower ranks costs",
    r"records lost": "records missing",
    r"no (?:consistent )?straggler\b": "no rank is (consistently) slow",
    r"(?:^|(?<=[.:;] ))Where (?!to |it |they |things |time |each |ddptop )": "If",
    r"\b(?:is|are|was|were) to be\b": "must be, is",
    r"\b(?:nothing|nobody|none) but\b": "only",
    r"\bstands? aside\b": "pauses",
    r"\b[Ss]o long after\b": "after N s",
    r"\bof several,? the (?:newest|first)\b": "if several match, the newest",
    r"\bless (?:that|those) (?:of|without)\b": "minus",
    r"(?:^|(?<=[.:;] ))There (?:the|a|an) \w+ (?:is|are|has|have|was|were)\b": "the plain order",
    r"\bdrowns?\b|\bdearer\b": "no metaphor",
    r"\bcalled within\b": '"within"',
    r"\bpassed over\b": "ignored",
    r"\bis not there (?:any more|yet)\b": "is missing",
}
"""What is not written, and what is written in its place."""

MEASUREMENTS = re.compile(r"tests/(?:truth|benchmarks)/|ddptop/analysis/METRICS\.md")
"""Pages of figures and formulas: a sentence with many figures is longer."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose_of(document: str) -> str:
    """A document without its code and the targets of its links."""
    text = re.sub(r"^ *```.*?^ *```", "", document, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`\n]*`", "X", text)


def sentences_of(document: str) -> Iterator[str]:
    """Sentences of the paragraphs and lists of a document, without tables and headings."""
    lines = [line for line in prose_of(document).splitlines() if not line.lstrip().startswith(("|", "#"))]
    text = "\n".join(lines)
    for paragraph in re.split(r"\n\s*\n|\n *(?:-|\d+\.) ", text):
        yield from re.split(r"(?<=[.?!:;])\s+", " ".join(paragraph.split()))


def banned_in(text: str) -> list[str]:
    """Each banned form in a text, with what stands around it."""
    return [
        f"{text[max(0, match.start() - 30) : match.end() + 30]!r}: write {instead!r}"
        for pattern, instead in BANNED.items()
        for match in re.finditer(pattern, text, re.MULTILINE)
    ]


def texts_in_code(path: Path) -> Iterator[str]:
    """The string constants of a module that are sentences, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_a_banned_form_is_found() -> None:
    assert banned_in("Where the rank is slow, X") and banned_in("13% of step time lost to skew")
    assert not banned_in("If the rank is slow, it says where the time goes.")


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= MOST_WORDS_README


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_a_page_is_short_and_its_sentences_are_plain(document: Path) -> None:
    text, name = document.read_text(encoding="utf-8"), name_of(document)
    if name not in LONG_PAGES:
        assert len(text.split()) <= MOST_WORDS
    assert banned_in(prose_of(text)) == []
    if not MEASUREMENTS.match(name):
        assert [line for line in sentences_of(text) if len(line.split()) > MOST_WORDS_IN_A_SENTENCE] == []


FOR_ALL = {"README.md", "CHANGELOG.md", "examples/skills/ddptop/SKILL.md"}
"""Pages that are for everybody, or have a form of their own."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_a_page_begins_with_whom_it_is_for(document: Path) -> None:
    _, first = document.read_text(encoding="utf-8").split("\n\n", 2)[:2]
    if name_of(document) not in FOR_ALL:
        assert first.startswith("For ")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_a_link_to_a_heading_finds_it(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = []
    for path, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)]+)\)", text):
        target = (document.parent / path).resolve() if path else document
        headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
        if heading not in anchors:
            missing.append(f"{path}#{heading}")
    assert missing == []


def test_the_sentences_in_the_code_are_plain() -> None:
    found = {
        str(path.relative_to(PACKAGE)): forms
        for path in sorted(PACKAGE.rglob("*.py"))
        if (forms := [form for text in texts_in_code(path) for form in banned_in(text)])
    }
    assert found == {}


def help_texts() -> Iterator[str]:
    for command in [LOOK, *COMMANDS]:
        yield " ".join(command.parser().format_help().split())
    yield " ".join(help_of_ddptop_run().split())


def test_the_page_of_the_commands_has_every_option() -> None:
    """Beside the name of the command. The settings of the screen and `metrics` have pages of their own."""
    settings = {flag_of(name) for name in SETTINGS}
    missing = []
    for command in [LOOK, *COMMANDS]:
        page = "sources" if command.name == "metrics" else "cli"
        text = (PACKAGE / page / "README.md").read_text(encoding="utf-8")
        passages = re.split(r"\n\s*\n|\n(?=\|)", text)
        mark = re.compile(rf"`{command.name}`|ddptop {command.name}\b" if command.name else "`ddptop")
        about = " ".join(passage for passage in passages if mark.search(passage))
        for action in command.parser()._actions:
            names = [name for name in action.option_strings if name not in {*settings, "-h", "--help"}]
            if action.help != argparse.SUPPRESS and names:
                pattern = "|".join(rf"(?<![\w-]){name}(?![\w-])" for name in names)
                if not re.search(pattern, about):
                    missing.append(f"ddptop {command.name} {names[-1]}")
    assert missing == []


def help_of_ddptop_run() -> str:
    others = argparse.ArgumentParser()
    others.add_argument("--nnodes", help="of torchrun")
    return help_text(others)


def test_the_help_is_plain() -> None:
    assert [form for text in help_texts() for form in banned_in(text)] == []


def test_the_help_of_ddptop_run_begins_with_examples_and_our_options() -> None:
    text = help_of_ddptop_run()
    parts = [
        "usage: ddptop-run",
        "\nexamples:",
        "\nddptop's options",
        "\n  --ddptop-name",
        "\ntorchrun's arguments",
    ]
    places = [text.index(part) for part in [*parts, "of torchrun"]]
    assert places == sorted(places)


INSTALLS = ("pip install", "uvx ", "pipx ", "uv ")
"""What CI runs on a fresh machine, not here."""


def readme_commands() -> list[str]:
    """Each line of the README's fenced blocks that is a command."""
    blocks = re.findall(r"^```\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.strip() and not line.startswith("#")]


TRIED = {
    "ddptop demo",
    "ddptop-run --standalone --nproc-per-node 2 examples/plain_ddp.py",
    "ddptop-run --standalone --nproc-per-node 2 --ddptop-stall 5 examples/trouble.py hang",
}
"""Each has a test below."""


def test_each_command_of_the_readme_is_tried() -> None:
    commands = readme_commands()
    assert commands.index(next(line for line in commands if "pytest" in line)) > 0
    assert {line for line in commands if not any(words in line for words in INSTALLS)} == TRIED
    for line in TRIED:
        words = shlex.split(line)
        if words[0] == "ddptop-run":
            assert split_exec(words[1:]) is None
            assert (ROOT / next(word for word in words if word.endswith(".py"))).exists()


def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of a user in the clone, with our commands on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, module in (("ddptop", "main"), ("ddptop-run", "launch")):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ddptop.cli.{module} "$@"\n')
        script.chmod(0o755)
    env = environment(tmp_path)
    return env | {"PATH": f"{folder}:{env['PATH']}"}


@pytest.mark.slow
def test_the_demo_runs_as_printed(tmp_path: Path) -> None:
    with started(["sh", "-c", "exec ddptop demo"], shell(tmp_path), ROOT) as process:
        assert process.stdout is not None
        assert any(re.search(r"live +step +[1-9]", line) for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130


@pytest.mark.slow
def test_a_script_and_a_hang_run_as_printed(tmp_path: Path) -> None:
    env = shell(tmp_path)
    script, hang = sorted(line for line in TRIED if line.startswith("ddptop-run"))[::-1]
    done = run(["sh", "-c", script], env, ROOT, deadline_s=1.5 * DEADLINE_S)  # it trains for thirty seconds
    assert done.returncode == 0, done.stderr
    # By its name: a run of the same user that has no runtime folder is seen from here, too.
    assert "finished" in run(["sh", "-c", "ddptop plain_ddp --once"], env, ROOT).stdout.lower()
    with started(["sh", "-c", f"exec {hang}"], env, ROOT) as process:

        def names_the_line() -> bool:
            shown = run(["sh", "-c", "ddptop trouble --json"], env, ROOT)
            stall = json.loads(shown.stdout)["stall"] if shown.returncode == 0 else None
            return stall is not None and "trouble.py" in json.dumps(stall["positions"])

        until(names_the_line, "the stall has the line of the script")
        process.kill()
