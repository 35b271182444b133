"""Wrapper prefixes come and go; real names stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DataParallel

from ddptop.training.ddp.checkpoint import fitted_names, match_names, unwrapped_names, wrapper_paths

COMPONENTS = ("module", "submodule", "module2", "_orig_mod", "a", "b")

trees = st.recursive(
    st.just({}), lambda inner: st.dictionaries(st.sampled_from(COMPONENTS), inner, max_size=3), max_leaves=6
)


class Node(nn.Module):
    """A module with one parameter of its own, and children of any name."""

    def __init__(self, tree: dict[str, Any], wrapped: list[bool]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        for name, below in tree.items():
            child: nn.Module = Node(below, wrapped)
            # DataParallel adds "module." as DDP does, and needs no process group.
            self.add_module(name, DataParallel(child) if wrapped and wrapped.pop() else child)


def names_of(model: nn.Module) -> set[str]:
    return set(model.state_dict())


@given(trees, st.lists(st.booleans(), max_size=6))
def test_a_wrapped_model_has_the_names_of_the_bare_one(tree: dict[str, Any], wrapped: list[bool]) -> None:
    bare = Node(tree, [])
    model: nn.Module = Node(tree, list(wrapped))
    for outer in (model, DataParallel(model), DataParallel(DataParallel(model))):
        assert set(unwrapped_names(outer, outer.state_dict())) == names_of(bare)


@given(trees, st.lists(st.booleans(), max_size=6))
def test_bare_names_find_their_place_in_any_wrapping(tree: dict[str, Any], wrapped: list[bool]) -> None:
    state = {name: torch.tensor(float(i)) for i, name in enumerate(Node(tree, []).state_dict())}
    model = DataParallel(Node(tree, list(wrapped)))
    model.load_state_dict(fitted_names(model, state))
    assert unwrapped_names(model, model.state_dict()) == state


@given(trees)
def test_a_wrapped_state_of_others_finds_its_place_in_the_bare_model(tree: dict[str, Any]) -> None:
    bare = Node(tree, [])
    state = {f"module.{name}": torch.tensor(float(i)) for i, name in enumerate(bare.state_dict())}
    bare.load_state_dict(fitted_names(bare, state))
    assert {f"module.{name}": value for name, value in bare.state_dict().items()} == state


dotted = st.lists(st.sampled_from(COMPONENTS), min_size=1, max_size=5).map(".".join)


@given(dotted, dotted)
def test_a_name_that_fits_is_not_touched(name: str, other: str) -> None:
    assert match_names([name], {name, other})[name] == name


@example({"module.module", "_orig_mod.module"}, {"module"})
@given(st.sets(dotted, max_size=6), st.sets(dotted, max_size=6))
def test_no_two_names_come_to_mean_the_same(names: set[str], wanted: set[str]) -> None:
    found = match_names(sorted(names), wanted)
    assert set(found) == names
    assert len(set(found.values())) == len(names)


@pytest.mark.parametrize(
    ("names", "wanted", "expected"),
    [
        (["submodule.x"], ["submodule.x"], ["submodule.x"]),
        (["encoder.module.weight"], ["encoder.module.weight"], ["encoder.module.weight"]),
        (["module.encoder.module.weight"], ["encoder.module.weight"], ["encoder.module.weight"]),
        (["module.weight", "module.module.weight"], ["weight", "module.weight"], ["weight", "module.weight"]),
        (["backbone.module.w", "head.w"], ["backbone.w", "head.w"], ["backbone.w", "head.w"]),
        (["_orig_mod.module.w"], ["w"], ["w"]),
        (["submodule.w"], ["w"], ["submodule.w"]),
    ],
)
def test_only_whole_components_are_taken_away(
    names: list[str], wanted: list[str], expected: list[str]
) -> None:
    assert list(match_names(names, wanted).values()) == expected


def test_compiled_models_are_known_by_their_type() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.Linear(1, 1)

    assert wrapper_paths(Inner()) == set()
    compiled = torch.compile(Inner(), backend="eager")
    assert wrapper_paths(compiled) == {"_orig_mod"}
    assert set(unwrapped_names(compiled, compiled.state_dict())) == {"_orig_mod.weight", "_orig_mod.bias"}
