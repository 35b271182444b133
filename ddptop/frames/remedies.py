"""What to try about a straggler, by where its time lies: for the page of a rank and for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.phrases import PLACES

if TYPE_CHECKING:
    from ddptop.protocol.vocabulary import OwnPlace

_WHERE = {
    "data": "in waiting for its next batch",
    "forward": "in forward",
    "backward": "in computing backward",
    "optimizer": "in the optimizer",
    "other": "in the time outside all phases",
    "cpu": "in waiting for a CPU",
    "gc": "in garbage collection",
    "uneven_work": "in batches of different sizes",
}

_BALANCE = (
    "Make the ranks' batches alike (sort or bucket samples by length, drop_last), and look for work that the "
    "ranks do in turn: the time is lost {where}."
)

_EVEN = (
    "Give all ranks batches of the same size: bucket samples by length, pack sequences up to a number of "
    "tokens, or share out each step's samples by their sizes. No rank is slow by itself."
)

_ACTIONS = {
    "data": (
        "data_workers",
        "Speed up the data loading of {ranks}: num_workers, prefetch_factor, the disk or network mount "
        "of {place}, samples that are larger there.",
    ),
    "forward": (
        "slow_device",
        "Check the device and host of {ranks} ({place}): clocks, heat, other programs on its cores.",
    ),
    "backward": (
        "slow_device",
        "Check the device and host of {ranks} ({place}): clocks, heat, other programs on its cores; and "
        "hooks that run there alone.",
    ),
    "optimizer": (
        "slow_optimizer",
        "See what the optimizer step of {ranks} does more than the others': parameters kept on it alone, "
        "swapping.",
    ),
    "other": (
        "work_between_steps",
        "See what {ranks} does between the phases: logging, metrics with .item(), checkpoints. Do it "
        "every so many steps, or in a thread.",
    ),
    "cpu": (
        "cpu_contention",
        "See what else runs on the cores of {ranks} ({place}), to which cores its process is pinned, and "
        "what CPU quota it has (cpu.max, a container's limit): it could run and waits for a CPU.",
    ),
    "gc": (
        "garbage_collection",
        "Collect garbage in the same steps on all ranks: gc.freeze() and gc.disable() after the first steps, "
        "gc.collect() every so many steps. See which objects {ranks} creates and keeps.",
    ),
    "": (
        "slow_rank",
        "Look at the host of {ranks} ({place}): time goes in several phases, as on a busy machine.",
    ),
}


_AT_PLACE = {
    "before_forward": "See what {ranks} does between receiving a batch and forward: copies to the device, "
    "augmentation. Do it in the workers of its DataLoader (pin_memory, non_blocking=True).",
    "before_backward": "See what {ranks} does between forward and backward: the loss function, metrics, "
    ".item() and print calls.",
    "before_optimizer": "See what {ranks} does between backward and the optimizer: gradient clipping, norms "
    "and logging with .item(). Do it every so many steps.",
    "after_optimizer": "See what {ranks} does between the optimizer and its next batch: logging, "
    "metrics with .item(), checkpoints. Do it every so many steps, or in a thread.",
}
"""What to do about time in none of the phases, by its place in the step."""


def place_phrase(cause: str | None, place: OwnPlace | None) -> str:
    """`in forward`, `between the batch and forward`: where the excess lies; empty: in several phases."""
    if cause == "other" and place is not None and place in PLACES:
        return PLACES[place]
    return _WHERE.get(cause or "", "")


def remedy(
    cause: str | None, place: OwnPlace | None, pattern: str | None, ranks: str, where: str
) -> tuple[str, str]:
    """The kind of the remedy and what to try. `ranks`: `rank 1`; `where`: its host and device."""
    if cause == "uneven_work":
        return "even_batches", _EVEN
    if pattern == "rotating" and cause != "gc":
        return "even_batches", _BALANCE.format(where=place_phrase(cause, place) or "in their steps")
    kind, action = _ACTIONS.get(cause or "", _ACTIONS[""])
    if cause == "other" and place is not None:
        action = _AT_PLACE.get(place, action)
    return kind, action.format(ranks=ranks, place=where or "its host")
