"""The short form of `python -m tests.faults`: the faults that a run meets soonest, once each."""

from __future__ import annotations

import pytest

from tests.faults.faults import FAULTS, Fault


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.short], ids=lambda fault: fault.name)
def test_a_run_survives(fault: Fault) -> None:
    seen, as_expected = fault.seen(seed=1)
    assert as_expected, f"{fault.name}: expected {fault.expected}, seen: {seen}, told: {seen.told}"
