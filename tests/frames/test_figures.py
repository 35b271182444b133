"""The declarations of figures and what they declare belong together."""

from __future__ import annotations

import os
from dataclasses import fields
from importlib import resources
from pathlib import Path

from ddptop.frames.figures import FIGURES, RANK_FIGURES, Ranks, figures_shown
from ddptop.frames.frame import GpuFacts
from tests.frames.metrics_document import metrics_document


def test_every_column_of_the_ranks_is_declared_and_every_declared_one_is_there() -> None:
    columns = {field.name for field in fields(Ranks) if field.type == "Column"}
    assert columns == RANK_FIGURES.keys()
    of_gpus = {figure.name for figure in FIGURES if figure.scope == "gpu"}
    assert of_gpus <= {field.name for field in fields(GpuFacts)}


def test_names_titles_and_places_are_unique() -> None:
    for values in ([figure.name for figure in FIGURES], [figure.title for figure in FIGURES if figure.title]):
        assert len(values) == len(set(values))
    for shown in (figures_shown(lambda one: one.screen), figures_shown(lambda one: one.plain)):
        places = [how.place for _, how in shown]
        assert len(places) == len(set(places))


def test_metrics_md_says_of_every_figure_what_its_declaration_says() -> None:
    path = Path(str(resources.files("ddptop").joinpath("analysis/METRICS.md")))
    text = path.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_METRICS") == "1":
        path.write_text(metrics_document(text), encoding="utf-8")
        return
    assert text == metrics_document(text), "UPDATE_METRICS=1 writes it again"
