"""The shape of the package: modules, who imports whom, cycles and levels of imports.

An import counts wherever it stands: at the top, under TYPE_CHECKING or inside a function.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ddptop"

ENTRY_POINTS = frozenset({"__init__.py", "__main__.py", "sitecustomize.py"})
"""Files that the interpreter finds by their names."""


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    path: Path
    lines: int
    imports: frozenset[str] = field(default=frozenset())
    """Modules of the package that it imports."""

    @property
    def package(self) -> str:
        """Name of the package that it lies in; of a package itself."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Shape:
    """All modules of a package, by name."""

    modules: dict[str, Module]

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Modules by which each module is imported."""
        importers: dict[str, set[str]] = defaultdict(set)
        for module in self.modules.values():
            for imported in module.imports:
                importers[imported].add(module.name)
        return importers

    @property
    def lines(self) -> int:
        """Lines of all files together."""
        return sum(module.lines for module in self.modules.values())

    def with_one_importer(self) -> list[str]:
        """Modules that exactly one other imports, which lies in the same folder."""
        found = []
        for name, module in self.modules.items():
            importers = self.importers[name]
            if module.path.name not in ENTRY_POINTS and len(importers) == 1:
                (importer,) = importers
                if self.modules[importer].package == module.package:
                    found.append(name)
        return found

    def cycle(self) -> list[str]:
        """Modules that import each other in a circle, the first again at the end; empty where none do."""
        try:
            TopologicalSorter({name: module.imports for name, module in self.modules.items()}).prepare()
        except CycleError as error:
            return list(error.args[1])
        return []

    def levels(self, package: str) -> int:
        """Modules in the longest chain of imports inside one folder and those below it."""
        inside = {name for name in self.modules if name == package or name.startswith(f"{package}.")}
        deep: dict[str, int] = {}
        for name in TopologicalSorter({n: self.modules[n].imports & inside for n in inside}).static_order():
            deep[name] = 1 + max((deep[other] for other in self.modules[name].imports & inside), default=0)
        return max(deep.values(), default=0)


def shape(package: Path = PACKAGE) -> Shape:
    """Read a package's files. Raises SyntaxError for one that is no Python."""
    paths, modules = module_paths(package), {}
    for name, path in paths.items():
        text = path.read_text(encoding="utf-8")
        imports = frozenset(_imported(ast.parse(text), paths.keys())) - {name}
        modules[name] = Module(name, path, text.count("\n"), imports)
    return Shape(modules)


def module_paths(package: Path) -> dict[str, Path]:
    """The files of a package, by the names of their modules."""
    return {_name(path, package): path for path in sorted(package.rglob("*.py"))}


def imported_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a file imports, wherever that stands in it."""
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a node, and what holds some: most of a tree are expressions."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        below = getattr(node, name, ())
        for child in below if isinstance(below, list) else ():  # the body of a lambda is an expression
            yield child
            yield from _statements(child)


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, known: Container[str]) -> Iterator[str]:
    for _, name in imported_names(tree):
        if name in known:
            yield name
        elif (parent := name.rpartition(".")[0]) in known:
            yield parent
