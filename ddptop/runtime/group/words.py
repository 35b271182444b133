"""What a script says of its own accord to those who watch: `ddptop.log` and `ddptop.phase`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ddptop.runtime import attach
from ddptop.runtime.guard import guard


def log(*, loss: float | torch.Tensor | None = None) -> None:
    """Give the loss of this step in your own words, instead of what `backward()` was called with.

    A tensor on a GPU is not read: that would wait for the device.
    """
    session = attach.current_session()
    if session is None or loss is None:
        return
    try:
        if isinstance(loss, torch.Tensor):
            if loss.device.type != "cpu":
                return
            loss = loss.detach()
        session.recorder.log_loss(float(loss))
    except Exception as error:  # noqa: BLE001 - the training boundary: what is no number is not logged
        guard.caught(error)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Declare what training does meanwhile (`evaluate`, `checkpoint`): its steps stand still on purpose."""
    session = attach.current_session()
    if session is None:
        yield
        return
    with session.declared(name):
        yield


def tell_card(name: str, value: str | int | float | bool) -> None:
    """Write a fact of this script on the run's card, where the run is recorded."""
    session = attach.current_session()
    if session is None:
        return
    try:
        session.card[name] = value
        session.ask_for_description()  # which also sends the card again
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)
