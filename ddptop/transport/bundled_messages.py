"""The accepted messages of bundles, decoded: those of a usual type together, many of them in columns."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ddptop.protocol.checks import KINDS
from ddptop.protocol.codec import ProtocolError, columns_alike, decode, decode_alike, decode_steps
from ddptop.protocol.encoded_steps import readings_of, step_messages
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.hosts import About, HostUsage
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.message_run import EncodedRun
from ddptop.protocol.messages import Clock, Event, Message, Progress, Received, Steps, Type
from ddptop.protocol.packed import Bodies
from ddptop.transport.receiver import NUMBERED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FEWEST_IN_COLUMNS = 100
"""So many STEPS that are read at a time take less CPU time in columns, here and in the reducer."""

OF_AN_AGENT = (About, Clock, Event)
"""What an agent numbers; `Host` and `HostUsage` are not numbered."""

ABOUT_A_RANK = (Usage, Gpu, Event, Evidence)

Taken: TypeAlias = "tuple[int, int, int, bytes, Message | None]"
"""An accepted message: session, rank, number, body; decoded already, or None."""

_USUAL: dict[tuple[bool, bool, int], type[Message]] = {
    (of_rank, numbered, int(Type[kind.__name__.upper()])): kind
    for of_rank, numbered, kinds in (
        (True, True, (Steps, Memory)),
        (True, False, (Progress,)),
        (False, True, (About, Clock)),
        (False, False, (HostUsage,)),
    )
    for kind in kinds
}
"""By whether a rank sends it, whether it is numbered, and its type: what is decoded together."""


def decoded(taken: Sequence[Taken], now_ns: int, refuse: Callable[[Exception], None]) -> EncodedRun:
    """The messages. `refuse` is called for those that are not valid, while the exception is handled."""
    kinds = [_USUAL.get((one[1] >= 0, one[2] > 0, one[3][1] if len(one[3]) > 1 else 0)) for one in taken]
    taken, kinds = _unwrapped(taken, kinds)
    of_kind: dict[type[Message], list[int]] = {}
    for at, kind in enumerate(kinds):
        if kind is not None:
            of_kind.setdefault(kind, []).append(at)
    bodies = {kind: [taken[at][3] for at in places] for kind, places in of_kind.items()}
    step_bodies = bodies.get(Steps, ())
    steps = step_messages(Bodies.of(step_bodies)) if len(step_bodies) >= FEWEST_IN_COLUMNS else None
    readings = []
    together: dict[type[Message], Iterator[Message]] = {}
    for kind, its_bodies in bodies.items():
        if kind is Steps:
            with suppress(Exception):  # one of them is invalid: each is decoded alone; likewise below
                together[Steps] = iter(decode_steps(its_bodies if steps is None else ()))
        elif steps is None:
            with suppress(Exception):
                together[kind] = iter(decode_alike(kind, its_bodies))
        elif (found := readings_of(kind, np.array(of_kind[kind]), Bodies.of(its_bodies))) is not None:
            readings.append(found)
    in_columns = {one.kind for one in readings} | ({Steps} if steps is not None else set())
    valid = np.ones(len(taken), bool)
    others: list[tuple[int, Received]] = []
    for at, (one, kind) in enumerate(zip(taken, kinds, strict=True)):
        if kind in in_columns:
            continue
        session, rank, seq, body, message = one
        try:
            if kind in together:
                message = next(together[kind])
            elif message is None:
                message = decode(body)
                if kind is None:
                    _check_sender(rank, seq, message)
        except Exception as error:  # noqa: BLE001  # no message may end the collector
            refuse(error)
            valid[at] = False
            continue
        others.append((at, Received(now_ns, rank, session, seq, message)))
    kept = [taken[at] for at in np.flatnonzero(valid).tolist()]
    place = np.cumsum(valid) - 1
    heads = np.full((4, len(kept)), now_ns, np.int64)
    if kept:
        heads[2], heads[1], heads[3] = [*zip(*kept, strict=True)][:3]
    return EncodedRun(
        heads,
        place[of_kind[Steps] if steps is not None else []],
        steps,
        [(int(place[at]), received) for at, received in others],
        [one[3] for one in kept],
        [one._replace(places=place[one.places]) for one in readings],
    )


def _unwrapped(
    taken: Sequence[Taken], kinds: list[type[Message] | None]
) -> tuple[Sequence[Taken], list[type[Message] | None]]:
    """The same with what an agent has read of a rank's process and GPU as of that rank."""
    places = [at for at, kind in enumerate(kinds) if kind is About]
    kinds = [None if kind is About else kind for kind in kinds]
    unwrapped = [*taken]
    for at, (rank, session, body) in zip(places, _abouts([taken[at][3] for at in places]), strict=True):
        kind = KINDS.get(body[1] if len(body) > 1 else 0)
        if kind in (Usage, Gpu):
            unwrapped[at], kinds[at] = (session, rank, 0, body, None), kind
    return unwrapped, kinds


def _abouts(bodies: Sequence[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """The fields of ABOUT messages; of one that is invalid no body."""
    try:
        yield from zip(*columns_alike(About, bodies), strict=True)
    except ProtocolError:
        for body in bodies:
            fields = 0, 0, b""
            with suppress(ProtocolError):
                fields = next(zip(*columns_alike(About, [body]), strict=True))
            yield fields


def _check_sender(rank: int, seq: int, message: Message) -> None:
    """Raise ProtocolError for what a rank, or an agent, does not send."""
    if rank == -1:
        allowed: tuple[type, ...] = OF_AN_AGENT
        if isinstance(message, About) and not isinstance(decode(message.body), ABOUT_A_RANK):
            raise ProtocolError("ABOUT is not about a rank's process")
    else:
        allowed = NUMBERED if seq else (Progress,)
    if not isinstance(message, allowed):
        raise ProtocolError(f"{type(message).__name__} is not to be sent here")
