"""Ranks that have joined, and steps of several backward passes, on the screen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.tui.fake import live
from tests.tui.pages import page, place_at


def test_a_rank_that_has_run_out_of_inputs_is_joined() -> None:
    frame = live()
    frame = replace(frame, ranks=replace(frame.ranks, joined=np.array([0.0, 0.0, 1.0, 0.0])))
    for size in ((80, 24), (160, 50)):
        told = page(frame, place_at("overview"), size)
        assert told.count("● joined") == 1
        assert told.count("● live") == 3
    assert "● joined" in page(frame, place_at("rank", rank=2), (80, 24))


def test_micro_steps_have_a_column_where_there_are_any() -> None:
    frame = live()
    assert " micro " not in page(frame, place_at("overview"), (160, 50))
    frame = replace(frame, ranks=replace(frame.ranks, micro_steps=np.full(4, 8.0)))
    assert " micro " in page(frame, place_at("overview"), (160, 50))
    assert "micro-steps 8" in page(frame, place_at("rank", rank=1), (80, 24))
