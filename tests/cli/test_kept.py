"""Imports that the garbage collector does not look at."""

from __future__ import annotations

import gc

import pytest

from ddptop.cli.show import without_garbage_collection


def test_what_was_made_meanwhile_is_kept_out_of_collections_and_these_go_on_even_after_an_error() -> None:
    before = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), without_garbage_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
