"""How many files it takes to add a thing: a made-up one is declared, and everything shows it."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache
from typing import get_args

import pytest

from ddptop.frames import causes, codec, conditions
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import slowest, verdict
from ddptop.render.plain import draw_frame
from tests.architecture.shape import PACKAGE, module_paths
from tests.tui.fake import straggler

DUMMY = causes.CauseWords(
    title="swapping",
    where="in swapping",
    remedy_kind="more_memory",
    remedy="Give {ranks} on {host} more memory.",
    sentence="{who} swap{s} {size} {often}",
)


@cache
def _texts() -> dict[str, str]:
    return {name: path.read_text(encoding="utf-8") for name, path in module_paths(PACKAGE).items()}


def files_that_name(word: str) -> set[str]:
    """Modules with this text as a constant: what a newcomer has to read who changes the kind."""
    candidates = {name: text for name, text in _texts().items() if f'"{word}"' in text}
    return {
        name
        for name, text in candidates.items()
        if any(isinstance(node, ast.Constant) and node.value == word for node in ast.walk(ast.parse(text)))
    }


def test_a_cause_is_declared_in_one_file_and_found_in_another(monkeypatch) -> None:
    """What `analysis/straggler/` would find is put in by hand: no other file knows the cause."""
    monkeypatch.setattr(causes, "CAUSES", {**causes.CAUSES, "swap": DUMMY})
    frame = straggler()
    assert frame.straggler is not None
    late = replace(frame.straggler, cause="swap", place=None, waits_for="")  # type: ignore[arg-type]  # made up
    frame = replace(frame, straggler=late)
    assert verdict(frame).sentence.startswith("rank 1 swaps 20.3 ±0.1 ms longer in 96% of steps · swapping ·")
    assert str(slowest(frame)).endswith(" ms swap")
    assert "rank 1 swaps 20.3" in draw_frame(frame, 120)
    assert snapshot(frame)["straggler"]["cause"] == "swap"
    kind, action = causes.remedy("swap", None, "persistent", "rank 1", "node0")
    assert (kind, action) == ("more_memory", "Give rank 1 on node0 more memory.")


def test_the_words_of_a_cause_and_its_declaration_are_the_same() -> None:
    assert codec.WORDS["Cause"] == set(get_args(causes.Cause)) == set(causes.CAUSES)


@pytest.mark.parametrize("cause", ["mixed", "gc", "uneven_work"])
def test_only_the_declaration_and_the_rules_name_a_cause(cause: str) -> None:
    """Those that are no phase of a step: phases are figures too. `vocabulary` has the parts of own time,
    `bill` the words for the classes of the ledger, of which one is garbage collection."""
    outside = {name for name in files_that_name(cause) if not name.startswith("ddptop.analysis.")}
    also = {"ddptop.protocol.vocabulary", *(["ddptop.frames.bill"] if cause == "gc" else [])}
    assert outside - also == {"ddptop.frames.causes"}


def test_the_words_of_alerts_and_stalls_and_their_declarations_are_the_same() -> None:
    assert set(get_args(conditions.AlertKind)) <= set(conditions.CONDITIONS)
    assert set(get_args(conditions.StallKind)) == set(conditions.STALLS)


MOST_FILES = 4
"""Its declaration, what detects it, and the sentences that say what was seen."""


@pytest.mark.parametrize("kind", ["mismatch", "transport", "asking", "unreachable_host", "host_lost"])
def test_few_files_name_a_kind(kind: str) -> None:
    assert len(files_that_name(kind)) <= MOST_FILES
