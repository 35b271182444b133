"""The declarations of figures and what they declare belong together."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from importlib import resources
from pathlib import Path

import pytest

from ddptop.frames.figures import (
    BUCKET_FIGURES,
    FIGURES,
    GROUP_FIGURES,
    HOST_FIGURES,
    PROCESS_GROUP_FIGURES,
    RANK_FIGURES,
    Figure,
    Ranks,
    figures_shown,
)
from ddptop.frames.frame import BucketFigures, GpuFacts, GroupFigures
from ddptop.frames.hosts import HostFigures
from ddptop.frames.process_groups import ProcessGroupFigures
from tests.frames.figure_documents import export_document, metrics_document, snapshot_document


def test_every_column_of_the_ranks_is_declared_and_every_declared_one_is_there() -> None:
    columns = {field.name for field in fields(Ranks) if field.type == "Column"}
    assert columns == RANK_FIGURES.keys()
    of_gpus = {figure.name for figure in FIGURES if figure.scope == "gpu"}
    assert of_gpus <= {field.name for field in fields(GpuFacts)}


@pytest.mark.parametrize(
    ("figures", "kind"),
    [
        (HOST_FIGURES, HostFigures),
        (BUCKET_FIGURES, BucketFigures),
        (PROCESS_GROUP_FIGURES, ProcessGroupFigures),
        (GROUP_FIGURES, GroupFigures),
    ],
)
def test_every_field_of_a_host_a_bucket_and_the_group_is_declared(
    figures: tuple[Figure, ...], kind: type[HostFigures | BucketFigures | ProcessGroupFigures | GroupFigures]
) -> None:
    names = [figure.name for figure in figures]
    assert len(names) == len(set(names))
    assert set(names) - {"best%"} == {field.name for field in fields(kind)}
    assert all(figure.formula and figure.source for figure in figures)


def test_names_titles_and_places_are_unique() -> None:
    for values in ([figure.name for figure in FIGURES], [figure.title for figure in FIGURES if figure.title]):
        assert len(values) == len(set(values))
    for shown in (figures_shown(lambda one: one.screen), figures_shown(lambda one: one.plain)):
        places = [how.place for _, how in shown]
        assert len(places) == len(set(places))


@pytest.mark.parametrize(
    ("document", "as_declared"),
    [
        ("analysis/METRICS.md", metrics_document),
        ("export/README.md", export_document),
        ("frames/README.md", snapshot_document),
    ],
)
def test_a_document_says_of_every_figure_what_its_declaration_says(
    document: str, as_declared: Callable[[str], str]
) -> None:
    path = Path(str(resources.files("ddptop").joinpath(document)))
    text = path.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_METRICS") == "1":
        path.write_text(as_declared(text), encoding="utf-8")
        return
    assert text == as_declared(text), "UPDATE_METRICS=1 writes it again"
