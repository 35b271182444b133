"""The package keeps a shape in which a newcomer finds the way. `python -m tests.architecture` prints it.

There is no limit of lines or of files: a file is one concept, however long that is.
"""

from __future__ import annotations

from tests.architecture.shape import shape


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert shape().cycle() == []


def test_a_cycle_is_found_where_there_is_one(tmp_path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "__init__.py").touch()
    (tmp_path / "p" / "a.py").write_text("from p import b\n")
    (tmp_path / "p" / "b.py").write_text("def f():\n    from p.c import x\n")
    (tmp_path / "p" / "c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a\n"
    )
    found = shape(tmp_path / "p")
    assert set(found.cycle()) == {"p.a", "p.b", "p.c"}
    assert found.with_one_importer() == ["p.a", "p.b", "p.c"]
