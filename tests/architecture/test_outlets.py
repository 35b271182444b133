"""Text leaves for a terminal, a page or a file through one module, which cleans it: `protocol/outlets.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.shape import PACKAGE

GATE = "protocol/outlets.py"

ELSEWHERE = {
    # what other processes of ddptop read
    "agent/launcher.py": "JSON to the launcher's pipe",
    "cli/commands/attach.py": "a number and a list of processes, for the ranks to attach to",
    "cli/web_sockets.py": "Textual's packets to the process of a screen",
    "collector/alert_calls.py": "JSON to the process that makes the calls",
    "collector/supervisor.py": "JSON to the collector's pipe, and its log, which it opens for it",
    "host/early_failures.py": "a message, encoded",
    "host/folders.py": "files of a run: JSON, keys, and logs that are opened for others",
    "host/inject.py": "code for gdb, and what gdb prints, for ddptop alone",
    "host/step_counters.py": "a message, encoded",
    "recording/disk.py": "the recording, whose texts are cleaned where it is read",
    "training/attached.py": "JSON for `ddptop attach`",
    "training/ddp/teardown.py": "the failure of a rank, pickled, for the other ranks",
    "training/evidence/flight_analysis.py": "JSON for the collector, from a process of its own",
    "transport/stdio.py": "frames of `--connect`, encoded",
    # what is a user's own
    "cli/launch.py": "the exception of a script, printed as torchrun does",
    "training/ddp/checkpoint.py": "the user's checkpoint",
    "training/ddp/collectives.py": "`ddptop.print_in_order`: the user's own text",
    "training/ddp/wrap.py": "a warning, with no text of others in it",
    "cli/commands/key.py": "a key that was just made",
    # forms whose texts are cleaned one by one
    "cli/commands/check.py": "XML of texts that are cleaned where it is made",
    "export/output.py": "the file that a format writes to",
    "export/perfetto.py": "packets, of which every text is cleaned",
    "export/tables.py": "CSV and JSON, of which every cell is cleaned",
    "sources/saving.py": "a new file, which the gate writes to",
    "cli/first_picture.py": "the picture before the screen: fixed sequences and words that are cleaned",
    "tui/app.py": "the bell and the title, cleaned where they are made",
    "tui/terminal.py": "Textual's own output, whose lines the widget has cleaned, and fixed sequences",
}
"""Files that write in a way of their own, and what."""

PRINTING = frozenset(
    {"print_exc", "print_exception", "print_stack", "print_last", "warn", "excepthook", "echo"}
)

MODES = frozenset("rwxab+t")


def ways_out(source: str) -> Iterator[int]:
    """Lines that write to a stream or a file, other than by functions of the gate."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        of_self = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "self"
        if (
            name == "print"
            or name in PRINTING
            or (name in ("open", "fdopen") and opens_for_writing(node))
            or (method and name in ("write_text", "write_bytes", "writelines"))
            or (method and name == "write" and not of_self and (node.args or node.keywords))
        ):
            yield node.lineno


def opens_for_writing(call: ast.Call) -> bool:
    words = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [str(word.value) for word in words if isinstance(word, ast.Constant)]
    return any(mode and set(mode) <= MODES and set(mode) & set("wxa+") for mode in modes)


OTHER_WRITE = frozenset(
    {
        *("cli/commands/metrics.py", "tui/views/curve.py"),
        "training/evidence/reporter.py",
    }
)
"""Their `write` is a function or a class of ours that writes to no file."""


def test_no_other_module_writes_text() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if any(True for _ in ways_out(path.read_text(encoding="utf-8")))
    }
    assert GATE in found
    found -= {GATE, *OTHER_WRITE}
    assert found - ELSEWHERE.keys() == set(), "use ddptop.protocol.outlets, or say here why not"
    assert ELSEWHERE.keys() - found == set(), "they write no more"


@pytest.mark.parametrize(
    "line",
    [
        "print(text)",
        "sys.stderr.write(text)",
        "os.write(2, text)",
        "path.write_text(text)",
        "open(path, 'w')",
        "path.open(mode='a')",
        "os.fdopen(number, 'x')",
        "traceback.print_exc()",
        "warnings.warn(text)",
    ],
)
def test_a_way_of_its_own_is_noticed(line: str) -> None:
    assert list(ways_out(line)) == [1]


@pytest.mark.parametrize(
    "line", ["open(path)", "path.open('rb')", "print_text(text)", "write_text(path, text)"]
)
def test_other_calls_are_none(line: str) -> None:
    assert list(ways_out(line)) == []
