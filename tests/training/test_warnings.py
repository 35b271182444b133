"""Warnings are heard as they are shown; nothing of them is changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from ddptop.training import warnings as warned
from ddptop.training.warnings import MOST, NEEDLESS_SEARCH, WarningLog


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this test's warnings are told as, when they are shown, here to nobody."""
    monkeypatch.setattr(warnings, "_showwarnmsg_impl", lambda _: None)
    monkeypatch.setattr(warnings, "_showwarnmsg", warnings._showwarnmsg)  # put back at the end
    monkeypatch.setattr(warned, "collected", WarningLog())
    warned.listen_to_warnings()
    warned.listen_to_warnings()
    told: list[str] = []
    warned.collected.report_to(told.append)
    return told


def module(name: str) -> Callable[..., None]:
    """A function of a module with this name that warns for its caller, as torch does."""
    namespace = {"__name__": name, "warnings": warnings}
    exec("def warn(*args):\n    warnings.warn(*args, stacklevel=2)", namespace)
    return namespace["warn"]  # type: ignore[return-value]


def test_what_torch_warns_of_is_told_once_by_its_first_line(heard: list[str]) -> None:
    with pytest.warns(UserWarning) as shown:
        for _ in range(2):
            module("torch.autograd.graph")("Grad strides differ (Triggered internally at x.cpp:3)\nsizes")
            module("torch.nn.parallel.distributed")("deprecated", FutureWarning)
            module("train")("a warning of the script's own")
    assert heard == []  # somebody has recorded them instead of showing them
    assert len(shown) == 6
    assert {warning.filename for warning in shown} == {__file__}
    module("torch.autograd.graph")("Grad strides differ (Triggered internally at x.cpp:3)\nsizes")
    module("torch.nn.parallel.distributed")("deprecated", FutureWarning)
    module("train")("a warning of the script's own")
    assert heard == ["UserWarning: Grad strides differ", "FutureWarning: deprecated"]


def test_what_the_filters_hold_back_is_not_told(heard: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module("torch.optim")("ignored")
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="raised"):
        warnings.simplefilter("error")
        module("torch.optim")("raised")
    assert heard == []


def test_warnings_wait_for_somebody_to_tell_them_to_and_are_bounded() -> None:
    collected = WarningLog()
    for number in range(MOST + 5):
        collected.add_warning(f"warning {number}")
    told: list[str] = []
    collected.report_to(told.append)
    collected.add_warning("one more")
    assert told == [f"warning {number}" for number in range(MOST)]


def test_a_warning_of_the_reducers_own_is_known_by_its_facts(heard: list[str]) -> None:
    facts = {"find_unused_parameters": 1, "iteration": 0}
    warned.check_reducer(facts)
    warned.check_reducer(facts | {"iteration": 2, "unused_parameter_size": 8})
    warned.check_reducer(facts | {"iteration": 2, "unused_parameter_size": 0, "static_graph": True})
    assert heard == []
    warned.check_reducer(facts | {"iteration": 2, "unused_parameter_size": 0})
    assert heard == [f"UserWarning: {NEEDLESS_SEARCH}"]
