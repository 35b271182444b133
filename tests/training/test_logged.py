"""`ddptop.log`: the newest of each name goes out, once, and nothing grows."""

from __future__ import annotations

from ddptop.training.publisher import MAX_NAMES, LoggedScalars


def test_the_newest_of_each_name_goes_out_once() -> None:
    scalars = LoggedScalars()
    assert scalars.take_values(None) is None
    for step in range(5):
        scalars.note_value("accuracy", step / 10, step)
    scalars.note_value("lr", 0.5, 2)
    sent = scalars.take_values(None)
    assert sent is not None
    assert (sent.step, sent.values) == (4, {"accuracy": 0.4, "lr": 0.5})
    assert scalars.take_values(None) is None


def test_what_is_not_finite_is_said_to_be_unknown() -> None:
    scalars = LoggedScalars()
    scalars.note_value("norm", float("nan"), 1)
    sent = scalars.take_values(None)
    assert sent is not None
    assert sent.values == {"norm": None}


def test_a_value_on_a_gpu_waits_for_the_device() -> None:
    scalars = LoggedScalars()
    device = {"there": False}
    scalars.note_value("norm", object(), 3)

    def read(_: object) -> float | None:
        return 2.5 if device["there"] else None

    assert scalars.take_values(read) is None
    device["there"] = True
    sent = scalars.take_values(read)
    assert sent is not None
    assert sent.values == {"norm": 2.5}


def test_new_names_without_end_do_not_fill_the_memory() -> None:
    scalars = LoggedScalars()
    for step in range(10 * MAX_NAMES):
        scalars.note_value(f"name {step}", 1.0, step)
    sent = scalars.take_values(None)
    assert sent is not None
    assert len(sent.values) == MAX_NAMES
