"""`python -m tests.architecture`: the shape of the package in figures."""

from __future__ import annotations

from statistics import median

from tests.architecture.shape import Shape, shape


def figures(found: Shape) -> dict[str, object]:
    """Name and value of each figure."""
    lengths = [module.lines for module in found.modules.values()]
    return {
        "files": len(found.modules),
        "lines": found.lines,
        "longest file": max(lengths),
        "median file": median(lengths),
        "modules with one importer in their folder": len(found.with_one_importer()),
        "import cycle": " -> ".join(found.cycle()) or "none",
        "levels of imports in analysis": found.levels("ddptop.analysis"),
    }


if __name__ == "__main__":
    for name, value in figures(shape()).items():
        print(f"{name:42} {value}")
