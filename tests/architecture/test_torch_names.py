"""Private names of torch are used in `ddptop/training/torch_compat/` only, which says on which versions.

Objects of torch carry no type here, so every private name counts that this package does not define itself,
on whatever object it is used: as an attribute, or as a string that is given to a function (`getattr`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "ddptop"
COMPAT = PACKAGE / "training" / "torch_compat"
SOURCES = [
    path
    for path in [*(PACKAGE / "training").rglob("*.py"), *(PACKAGE / "cli").glob("*.py")]
    if not path.is_relative_to(COMPAT)
]
"""What may import torch (tests/test_imports.py)."""

PRIVATE = re.compile(r"_[A-Za-z]\w*")

OF_OTHERS = {
    # Python's own
    "_asdict", "_fields", "_make", "_replace",  # of named tuples: public, with an underscore against clashes
    "_active", "_DummyThread",  # threading
    "_bootstrap", "_inheriting",  # multiprocessing
    "_current_frames", "_exit", "_getframe",  # sys and os: public as well
    "_get_option_tuples",  # argparse
    "_py_warnings", "_showwarnmsg", "_showwarnmsg_impl",  # warnings
    "_process",  # of a screen that textual-serve has started
    # Set on objects of torch and of Python by ddptop itself
    "_ddptop_patched",
}  # fmt: skip
"""Private names that are neither torch's nor defined in this package."""


def own_names(tree: ast.AST) -> Iterator[str]:
    """Names that a module defines: functions, classes, variables, attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every private name that a module takes from elsewhere, as far as can be told."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            parts = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom):
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute) and not _is_self(node.value):
            parts = [node.attr]
        elif isinstance(node, ast.Call):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            parts = [a.value for a in values if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        else:
            continue
        yield from ((node.lineno, part) for part in parts if PRIVATE.fullmatch(part))


@pytest.fixture(scope="module")
def known() -> tuple[set[str], set[str]]:
    """Names that the package or Python defines, and those that `torch_compat` takes from torch."""
    own = {name for path in SOURCES for name in own_names(ast.parse(path.read_text(encoding="utf-8")))}
    compat = [ast.parse(path.read_text(encoding="utf-8")) for path in COMPAT.glob("*.py")]
    of_torch = {name for tree in compat for _, name in private_names(tree)}
    return own | OF_OTHERS, of_torch - {name for tree in compat for name in own_names(tree)}


def strays(source: str, known: tuple[set[str], set[str]]) -> list[str]:
    """`line name` of each private name of torch in a source."""
    defined, of_torch = known
    names = private_names(ast.parse(source))
    return [f"{line} {name}" for line, name in names if name not in defined or name in of_torch]


def test_private_names_of_torch_are_in_one_folder(known: tuple[set[str], set[str]]) -> None:
    found = {}
    for path in SOURCES:
        if here := strays(path.read_text(encoding="utf-8"), known):
            found[str(path.relative_to(PACKAGE))] = here
    assert not found


def test_the_folder_names_the_versions_that_it_was_checked_on() -> None:
    modules = sorted(COMPAT.glob("*.py"))
    assert [path.name for path in modules if "torch 2.6, 2.13 and 2.15" not in path.read_text("utf-8")] == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch._C import x",
        "from torch.nn.modules.batchnorm import _BatchNorm",
        "reducer._update_process_group(group)",
        "dist.distributed_c10d._world.pg_names",
        "getattr(model, '_comm_hooks', None)",
        "wrap(model, '_pre_forward', step)",
        "dist._register_comm_hook = mine",
    ],
)
def test_a_private_name_of_torch_is_noticed(source: str, known: tuple[set[str], set[str]]) -> None:
    assert strays(source, known)
