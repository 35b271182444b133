"""The entries of bundles (`bundles.py`) that arrived, as columns; the messages of those that were accepted,
decoded: those of a usual type together, many of them in columns."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from ddptop.protocol.codec import ProtocolError, decode, decode_alike, decode_steps
from ddptop.protocol.encoded_steps import about_columns, readings_of, step_messages
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.hosts import About, Host, HostUsage
from ddptop.protocol.limits import MAX_NS, MAX_RANK_MESSAGE_BYTES, MAX_STEP, MAX_WORLD
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.message_run import EncodedRun
from ddptop.protocol.messages import Clock, Event, Message, Progress, Received, Steps, Type
from ddptop.protocol.packed import Bodies, numbers_at
from ddptop.transport.bundles import BUNDLE, HEAD_BYTES, HEAD_COLUMNS, MAX_ENTRIES, MAX_WIRE_BYTES
from ddptop.transport.receiver import NUMBERED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import zmq
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

FEWEST_IN_COLUMNS = 100
"""So many STEPS that are read at a time take less CPU time in columns, here and in the reducer."""

OF_AN_AGENT = (About, Clock, Event)
"""What an agent numbers; `Host` and `HostUsage` are not numbered."""

ABOUT_A_RANK = (Usage, Gpu, Event, Evidence)


@dataclass(slots=True)
class Agent:
    """The agent at the other end of a connection."""

    host: Host
    heard_ns: int
    """When its last bundle was read, by the collector's clock."""
    t0_ns: int = 0
    """When the agent sent that, by its own clock; 0: it is answered."""
    read_ns: int = 0
    asks: list[tuple[int, int]] = field(default_factory=list)
    """(session, number) to be sent to it."""


Arrived = tuple[bytes, int, "zmq.Frame"]
"""A bundle that has arrived: ZeroMQ's name of the connection, when it was read, and its frame. A plain tuple,
of which there are many."""


class Entries(NamedTuple):
    """n entries, those of a bundle after those of the one before it: (n,) each, as in `Entry`."""

    sessions: Integers
    seqs: Integers
    ranks: Integers
    backs: Integers
    bodies: Bodies
    counts: Integers
    """By bundle, how many entries it has."""
    t0_ns: list[int]
    """By bundle, when the agent sent it, by its clock."""

    def __len__(self) -> int:
        return len(self.sessions)

    def after(self) -> Integers:
        """(n,) number of the message that the session's sender kept before each; 0: it kept none."""
        return np.asarray(np.where(self.backs > 0, self.seqs - self.backs, 0))


def entries_of(bundles: Sequence[bytes | zmq.Frame]) -> Entries:
    """The entries of the bundles in these frames, their numbers checked for range: frames as `pack_bundle`
    makes them, with the outer array's size and the type in one byte each.

    Raises ProtocolError where those of any bundle are not right.
    """
    whole = Bodies.of(cast("Sequence[bytes]", bundles))  # copied once, and read without Python for each
    try:
        fields = whole.fields(0x94, BUNDLE)  # an array of four
        t0_ns, heads_sizes = fields.integers(), fields.lengths()
        heads_at = fields.at
        fields.skip(heads_sizes)
        sizes = fields.lengths()
        bodies_at = fields.at
        fields.skip(sizes)
    except IndexError as error:
        raise ProtocolError("not a bundle's fields") from error
    counts, rest = np.divmod(heads_sizes, HEAD_BYTES)
    if not whole.end_at(fields.at) or rest.any() or whole.sizes.max(initial=0) > MAX_WIRE_BYTES:
        raise ProtocolError("not the fields of a bundle")
    if counts.max(initial=0) > MAX_ENTRIES or t0_ns.min(initial=0) < 0 or t0_ns.max(initial=0) > MAX_NS:
        raise ProtocolError("a number of a bundle is out of range")
    ends = np.cumsum(counts)
    at, count = np.repeat(heads_at, counts), np.repeat(counts, counts)
    place = np.arange(len(at)) - np.repeat(ends - counts, counts)
    columns = []
    for _, kind in HEAD_COLUMNS:
        width = int(kind[-1])
        columns.append(numbers_at(whole.data, kind, at + width * place).astype(np.int64, copy=False))
        at += width * count
    sessions, seqs, ranks, backs, lengths = columns
    behind = np.concatenate([[0], np.cumsum(lengths)])
    first = behind[ends - counts]
    if (behind[ends] - first != sizes).any():
        raise ProtocolError("the lengths of a bundle are not those of its messages")
    if len(sessions):
        if sessions.min() <= 0 or seqs.min() < 0 or seqs.max() >= MAX_STEP:
            raise ProtocolError("a session or number is out of range")
        if ranks.min() < -1 or ranks.max() >= MAX_WORLD:
            raise ProtocolError("a rank is out of range")
        if lengths.max() > MAX_RANK_MESSAGE_BYTES:
            raise ProtocolError("a message is too long")
    bodies = Bodies(whole.data, behind[:-1] + np.repeat(bodies_at - first, counts), lengths)
    return Entries(sessions, seqs, ranks, backs, bodies, counts, t0_ns.tolist())


def valid_entries(
    arrived: list[Arrived], refuse: Callable[[Exception], None]
) -> tuple[list[Arrived], Entries]:
    """These bundles without those that are not valid, and their entries. `refuse` is called for each of the
    others, while the exception is handled."""
    with suppress(ProtocolError):
        return arrived, entries_of([one[2] for one in arrived])
    valid = _valid(arrived, refuse)
    return valid, entries_of([one[2] for one in valid])


def _valid(arrived: list[Arrived], refuse: Callable[[Exception], None]) -> list[Arrived]:
    """Those that are valid, by halves: one that is not takes no more than some ten times what all take."""
    try:
        entries_of([one[2] for one in arrived])
    except ProtocolError as error:
        if len(arrived) == 1:
            refuse(error)
            return []
        half = len(arrived) // 2
        return [*_valid(arrived[:half], refuse), *_valid(arrived[half:], refuse)]
    return arrived


class Accepted(NamedTuple):
    """n messages that were accepted, in order."""

    heads: Integers
    """(3, n) rank, session and number of each."""
    bodies: Bodies
    decoded: dict[int, Message]
    """By place those that are decoded already."""


_USUAL: tuple[tuple[bool, bool, type[Message]], ...] = (
    (True, True, Steps),
    (True, True, Memory),
    (True, False, Progress),
    (False, True, About),
    (False, True, Clock),
    (False, False, HostUsage),
)
"""Messages that are decoded together: whether a rank sends them, and whether they are numbered."""
_CODES = {kind: int(Type[kind.__name__.upper()]) for kind in (*(kind for *_, kind in _USUAL), Usage, Gpu)}


def decoded(accepted: Accepted, now_ns: int, refuse: Callable[[Exception], None]) -> EncodedRun:
    """The messages. `refuse` is called for those that are not valid, while the exception is handled."""
    accepted, of_kind = _unwrapped(accepted, _usual(accepted))
    heads, bodies, ready = accepted
    places_of_steps = of_kind.get(Steps, ())
    in_columns = len(places_of_steps) >= FEWEST_IN_COLUMNS
    steps = step_messages(bodies.at(of_kind[Steps])) if in_columns else None
    readings = []
    alone = np.ones(heads.shape[1], bool)
    for kind, places in of_kind.items():
        if steps is None:
            with suppress(Exception):  # one of them is invalid: each is decoded alone
                its_bodies = bodies.at(places).single()
                messages = decode_steps(its_bodies) if kind is Steps else decode_alike(kind, its_bodies)
                ready = {**ready, **dict(zip(places.tolist(), messages, strict=True))}
        elif kind is Steps:
            alone[places] = False
        elif (found := readings_of(kind, places, bodies.at(places))) is not None:  # likewise
            readings.append(found)
            alone[places] = False
    valid = np.ones(len(alone), bool)
    others: list[tuple[int, Received]] = []
    usual = {place for kind, places in of_kind.items() for place in places[alone[places]].tolist()}
    for at in np.flatnonzero(alone).tolist():
        rank, session, seq = heads[:, at].tolist()
        try:
            message = ready.get(at)
            if message is None:
                message = decode(bodies.body(at))
                if at not in usual:
                    _check_sender(rank, seq, message)
        except Exception as error:  # noqa: BLE001  # no message may end the collector
            refuse(error)
            valid[at] = False
            continue
        others.append((at, Received(now_ns, rank, session, seq, message)))
    place = np.cumsum(valid) - 1
    kept = slice(None) if valid.all() else np.flatnonzero(valid)
    times = np.full(len(valid), now_ns)
    return EncodedRun(
        np.stack([times, *heads])[:, kept],
        place[of_kind[Steps]] if steps is not None else place[:0],
        steps,
        [(int(place[at]), received) for at, received in others],
        bodies.at(kept),
        [one._replace(places=place[one.places]) for one in readings],
    )


def _usual(accepted: Accepted) -> dict[type[Message], Integers]:
    """The places of those messages that are decoded together."""
    rank, _, seq = accepted.heads
    alike = accepted.bodies.codes().astype(np.int16) * 4 + (rank >= 0) * 2 + (seq > 0)
    found = {}
    for sender, number, kind in _USUAL:
        places = np.flatnonzero(alike == _CODES[kind] * 4 + sender * 2 + number)
        if len(places):
            found[kind] = places
    return found


def _unwrapped(
    accepted: Accepted, of_kind: dict[type[Message], Integers]
) -> tuple[Accepted, dict[type[Message], Integers]]:
    """The same with what an agent has read of a rank's process and GPU as of that rank."""
    places = of_kind.pop(About, None)
    if places is None:
        return accepted, of_kind
    bodies = accepted.bodies
    rank, session, inner, valid = _abouts(bodies.at(places))
    codes = np.where(valid, inner.codes(), 0)
    wrapped = (codes == _CODES[Usage]) | (codes == _CODES[Gpu])
    at = places[wrapped]
    heads, begins, sizes = accepted.heads.copy(), bodies.begins.copy(), bodies.sizes.copy()
    heads[0, at], heads[1, at], heads[2, at] = rank[wrapped], session[wrapped], 0
    begins[at], sizes[at] = inner.begins[wrapped], inner.sizes[wrapped]
    found = {kind: places[codes == _CODES[kind]] for kind in (Usage, Gpu)}
    of_kind |= {kind: some for kind, some in found.items() if len(some)}
    return accepted._replace(heads=heads, bodies=Bodies(bodies.data, begins, sizes)), of_kind


def _abouts(bodies: Bodies) -> tuple[Integers, Integers, Bodies, Mask]:
    """Rank, session and body of ABOUT messages, and which of them are valid."""
    try:
        return *about_columns(bodies), np.ones(len(bodies.sizes), bool)
    except ProtocolError:
        n = len(bodies.sizes)
        columns, valid = np.zeros((4, n), np.int64), np.zeros(n, bool)
        for at in range(n):
            with suppress(ProtocolError):
                rank, session, inner = about_columns(bodies.at(slice(at, at + 1)))
                columns[:, at] = rank[0], session[0], inner.begins[0], inner.sizes[0]
                valid[at] = True
        rank, session, begins, sizes = columns
        return rank, session, Bodies(bodies.data, begins, sizes), valid


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
