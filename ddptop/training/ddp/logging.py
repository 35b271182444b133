"""What a script reports itself: `ddptop.log` and `ddptop.phase`, and a logger that prints on rank 0 only."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch

from ddptop.training import attach
from ddptop.training.ddp.group_info import GroupInfo
from ddptop.training.guard import guard


def log(**scalars: float | torch.Tensor | None) -> None:
    """Show numbers of your own, of this rank and over all ranks: `ddptop.log(loss=loss, accuracy=0.9)`.

    `loss` replaces, for this step, what `backward()` was called with. A tensor holds one element; one on a
    GPU is copied without waiting for the device and shows when it is there. Where nothing is recorded this
    does nothing; what is not a number is left out.
    """
    session = attach.current_session()
    if session is None:
        return
    for name, value in scalars.items():
        try:
            if value is not None:
                session.log_scalar(name, value)
        except Exception as error:  # noqa: BLE001 - the training boundary: what is not a number is not logged
            guard.caught(error)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Declare what training does in the block (`evaluate`, `checkpoint`): its steps need not advance."""
    session = attach.current_session()
    if session is None:
        yield
        return
    with session.declared_phase(name):
        yield


def note_on_card(name: str, value: str | int | float | bool) -> None:
    """Add a value of this script to the run's card, where the run is recorded."""
    session = attach.current_session()
    if session is None:
        return
    try:
        session.card[name] = value
        session.request_description()  # which also sends the card again
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)


class RankZero(logging.Filter):
    """Lets records pass on rank 0 only."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0


def rank_logger(group: GroupInfo, name: str | None = None) -> logging.Logger:
    """`logging.getLogger(name)`, silent on all ranks but 0; level and handlers are the script's to set."""
    logger = logging.getLogger(name or "train")
    # Called twice, the logger would otherwise have two filters.
    for rank_filter in [rank_filter for rank_filter in logger.filters if isinstance(rank_filter, RankZero)]:
        logger.removeFilter(rank_filter)
    logger.addFilter(RankZero(group.rank))
    return logger
