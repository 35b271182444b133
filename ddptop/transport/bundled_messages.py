"""The entries of bundles (`bundles.py`) that arrived, as columns; the messages of those that were accepted,
decoded: those of a usual type together, many of them in columns."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import msgspec
import numpy as np

from ddptop.protocol.decoding import UNDECODABLE, decode, decode_struct, decode_structs
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.hosts import About, Host
from ddptop.protocol.limits import MAX_NS, MAX_RANK_MESSAGE_BYTES, MAX_STEP, MAX_WORLD
from ddptop.protocol.message_run import COLUMNS, EncodedRun, Readings, StepMessages, message_codes
from ddptop.protocol.messages import (
    CODES,
    TRAITS,
    Message,
    Progress,
    Received,
    Steps,
    message_code,
    select_kinds,
)
from ddptop.transport.bundles import BUNDLE, HEAD_BYTES, HEAD_COLUMNS, MAX_ENTRIES, MAX_WIRE_BYTES
from ddptop.transport.receiver import NUMBERED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Set

    import zmq
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

AGENT_MESSAGES = select_kinds(lambda traits: traits.is_numbered and "agent" in traits.senders)
"""What an agent numbers."""

ABOUT_A_RANK = select_kinds(lambda traits: "about" in traits.senders)


@dataclass(slots=True)
class ConnectedAgent:
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
    """n entries, those of a bundle after those of the one before it: (n,) each, as in `BundleEntry`."""

    sessions: Integers
    seqs: Integers
    ranks: Integers
    backs: Integers
    bodies: list[bytes]
    counts: Integers
    """By bundle, how many entries it has."""
    t0_ns: list[int]
    """By bundle, when the agent sent it, by its clock."""

    def __len__(self) -> int:
        return len(self.sessions)

    def seqs_before(self) -> Integers:
        """(n,) number of the message that the session's sender kept before each; 0: it kept none."""
        return np.asarray(np.where(self.backs > 0, self.seqs - self.backs, 0))


class _Bundle(msgspec.Struct, array_like=True, tag=BUNDLE, forbid_unknown_fields=True):
    """A frame as `pack_bundle` makes it."""

    t0_ns: Annotated[int, msgspec.Meta(ge=0, le=MAX_NS)]
    heads: Annotated[bytes, msgspec.Meta(max_length=MAX_ENTRIES * HEAD_BYTES)]
    bodies: bytes


_DECODE_BUNDLE = msgspec.msgpack.Decoder(_Bundle).decode


def _decode_bundle(frame: bytes | zmq.Frame) -> _Bundle:
    if len(frame) > MAX_WIRE_BYTES:
        raise ProtocolError("a bundle is too long")
    try:
        return _DECODE_BUNDLE(cast("bytes", frame))
    except UNDECODABLE as error:
        raise ProtocolError(f"no bundle: {error}") from error


def entries_of(frames: Sequence[bytes | zmq.Frame]) -> Entries:
    """The entries of the bundles in these frames, their numbers checked for range.

    Raises ProtocolError where those of any bundle are not right.
    """
    # All or none: the error names no bundle, and the caller halves the list until it has found it.
    bundles = [*map(_decode_bundle, frames)]
    counts, remainder = np.divmod(np.array([len(bundle.heads) for bundle in bundles], np.int64), HEAD_BYTES)
    if remainder.any():
        raise ProtocolError("the heads of a bundle are not those of entries")
    sessions, seqs, ranks, backs, lengths = _read_heads([bundle.heads for bundle in bundles], counts)
    if len(sessions):
        # 0 is INTRODUCE in a nack, and so names no session.
        if sessions.min() <= 0 or seqs.min() < 0 or seqs.max() >= MAX_STEP:
            raise ProtocolError("a session or number is out of range")
        if ranks.min() < -1 or ranks.max() >= MAX_WORLD:
            raise ProtocolError("a rank is out of range")
        if lengths.max() > MAX_RANK_MESSAGE_BYTES:
            raise ProtocolError("a message is too long")
    bodies: list[bytes] = []
    sizes, end = lengths.tolist(), 0
    for bundle, count in zip(bundles, counts.tolist(), strict=True):
        begin, end = end, end + count
        bodies += _divide_bodies(bundle.bodies, sizes[begin:end])
    return Entries(sessions, seqs, ranks, backs, bodies, counts, [bundle.t0_ns for bundle in bundles])


def _read_heads(heads: Sequence[bytes], counts: Integers) -> list[Integers]:
    """HEAD_COLUMNS of all bundles, (entries,) each. `counts`: (bundles,) how many entries each has."""
    # All at once: each read has a cost.
    data, sizes = np.frombuffer(b"".join(heads), np.uint8), counts * HEAD_BYTES
    column_at, n_entries = np.repeat(np.cumsum(sizes) - sizes, counts), np.repeat(counts, counts)
    place = np.arange(len(column_at)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = []
    for _, kind in HEAD_COLUMNS:
        width = int(kind[-1])
        numbers: NDArray[Any] = np.ndarray(max(0, len(data) - width + 1), kind, data.data, 0, (1,))
        columns.append(numbers[column_at + width * place].astype(np.int64, copy=False))
        # Within a bundle the next column begins behind this one of all its entries.
        column_at += width * n_entries
    return columns


def _divide_bodies(bodies: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The body of each message of a bundle. Raises ProtocolError where these are not their sizes."""
    *starts, whole = accumulate(sizes, initial=0)
    if whole != len(bodies):
        raise ProtocolError("the lengths of a bundle are not those of its messages")
    return [bodies[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def valid_entries(
    arrived: list[Arrived], refuse: Callable[[Exception], None]
) -> tuple[list[Arrived], Entries]:
    """These bundles without those that are not valid, and their entries. `refuse` is called for each of the
    others, while the exception is handled."""
    # Nearly always all are valid: the search for one that is not begins only after an error.
    with suppress(ProtocolError):
        return arrived, entries_of([arrival[2] for arrival in arrived])
    valid = _drop_invalid(arrived, refuse)
    return valid, entries_of([arrival[2] for arrival in valid])


def _drop_invalid(arrived: list[Arrived], refuse: Callable[[Exception], None]) -> list[Arrived]:
    """Return the bundles that are valid; the others are refused. Found by halving: one invalid bundle takes
    at most ten times as long as all valid ones."""
    try:
        entries_of([arrival[2] for arrival in arrived])
    except ProtocolError as error:
        if len(arrived) == 1:
            refuse(error)
            return []
        half = len(arrived) // 2
        return [*_drop_invalid(arrived[:half], refuse), *_drop_invalid(arrived[half:], refuse)]
    return arrived


class AcceptedEntries(NamedTuple):
    """n messages that were accepted, in order."""

    heads: Integers
    """(3, n) rank, session and number of each."""
    bodies: list[bytes]
    decoded: dict[int, Message]
    """By place those that are decoded already."""


_USUAL = [
    ("rank" in TRAITS[kind].senders, TRAITS[kind].is_numbered, kind)
    for kind in (Steps, About, *COLUMNS)
    if kind not in ABOUT_A_RANK
]
"""Messages that are decoded together: whether a rank sends them, and whether they are numbered."""
_WRAPPED = {CODES[kind]: kind for kind in COLUMNS if kind in ABOUT_A_RANK}
"""What an agent sends in an ABOUT, and is taken as the rank's."""


def decode_accepted(
    accepted: AcceptedEntries, now_ns: int, refuse: Callable[[Exception], None]
) -> EncodedRun:
    """The messages. `refuse` is called for those that are not valid, while the exception is handled."""
    # First, so that a reading inside an ABOUT is in a column with those of other hosts.
    accepted, of_kind = _unwrap_abouts(accepted, _places_of_usual(accepted))
    heads, bodies, _ = accepted
    alone = np.ones(heads.shape[1], bool)
    steps, readings = None, []
    for kind, places in of_kind.items():
        its_bodies = [bodies[place] for place in places.tolist()]
        # Where one of them is invalid, each is decoded alone.
        if kind is Steps:
            steps = StepMessages.decoded(its_bodies)
            alone[places] = steps is None
        elif (same_kind := Readings.decoded(kind, places, its_bodies)) is not None:
            readings.append(same_kind)
            alone[places] = False
    # Their type fits their sender already, by `_USUAL`: they are alone because another one was not valid.
    usual = {place for kind, places in of_kind.items() for place in places[alone[places]].tolist()}
    messages, valid = _decode_alone(accepted, np.flatnonzero(alone).tolist(), usual, refuse)
    # Places move up where a message before them was refused.
    place = np.cumsum(valid) - 1
    alone_messages = []
    for index, message in messages.items():
        rank, session, seq = heads[:, index].tolist()
        alone_messages.append((int(place[index]), Received(now_ns, rank, session, seq, message)))
    if not valid.all():
        kept = np.flatnonzero(valid)
        heads, bodies = heads[:, kept], [bodies[index] for index in kept.tolist()]
    return EncodedRun(
        np.stack([np.full(heads.shape[1], now_ns), *heads]),
        place[of_kind[Steps]] if steps is not None else place[:0],
        steps,
        alone_messages,
        bodies,
        [same_kind._replace(places=place[same_kind.places]) for same_kind in readings],
    )


def _decode_alone(
    accepted: AcceptedEntries, places: Sequence[int], usual: Set[int], refuse: Callable[[Exception], None]
) -> tuple[dict[int, Message], Mask]:
    """The valid messages at these places, each decoded by itself; and which of all messages are valid.

    `usual`: the places at which the sender needs no check.
    """
    heads, bodies, ready = accepted
    valid = np.ones(len(bodies), bool)
    messages: dict[int, Message] = {}
    for index in places:
        rank, _, seq = heads[:, index].tolist()
        try:
            message = ready.get(index)
            # Introductions were decoded where they were accepted.
            if message is None:
                message = decode(bodies[index])
                if index not in usual:
                    _check_sender(rank, seq, message)
            messages[index] = message
        except Exception as error:  # noqa: BLE001  # no message may end the collector
            refuse(error)
            valid[index] = False
    return messages, valid


def _places_of_usual(accepted: AcceptedEntries) -> dict[type[Message], Integers]:
    """The places of those messages that are decoded together."""
    rank, _, seq = accepted.heads
    codes = message_codes(accepted.bodies).astype(np.int64)
    # One number for type, sender and whether it is numbered: compared at once for all messages.
    alike = codes * 4 + (rank >= 0) * 2 + (seq > 0)
    places_by_kind = {}
    for sender, number, kind in _USUAL:
        places = np.flatnonzero(alike == CODES[kind] * 4 + sender * 2 + number)
        if len(places):
            places_by_kind[kind] = places
    return places_by_kind


def _unwrap_abouts(
    accepted: AcceptedEntries, of_kind: dict[type[Message], Integers]
) -> tuple[AcceptedEntries, dict[type[Message], Integers]]:
    """The entries with readings that an agent took of a rank's process or GPU, as messages of that rank."""
    places = of_kind.pop(About, None)
    if places is None:
        return accepted, of_kind
    heads, bodies = accepted.heads.copy(), accepted.bodies.copy()
    unwrapped: dict[type[Message], list[int]] = {}
    wrapped: list[tuple[int, int, int]] = []
    """Place, rank and session."""
    for place, about in _decode_abouts(places.tolist(), bodies):
        kind = _WRAPPED.get(message_code(about.body))
        if kind is not None:
            unwrapped.setdefault(kind, []).append(place)
            wrapped.append((place, about.rank, about.session))
            bodies[place] = about.body
    about_places, rank, session = np.array(wrapped, np.int64).reshape(-1, 3).T
    # Number 0: of an agent's reading the ABOUT was acked, under the agent's own session.
    heads[:, about_places] = rank, session, np.zeros_like(about_places)
    of_kind |= {kind: np.array(its_places, np.int64) for kind, its_places in unwrapped.items()}
    return accepted._replace(heads=heads, bodies=bodies), of_kind


def _decode_abouts(places: list[int], bodies: list[bytes]) -> Iterator[tuple[int, Any]]:
    """Place and struct of those messages at some places that are ABOUT; others are refused when they are
    decoded alone."""
    with suppress(ProtocolError):
        yield from zip(places, decode_structs(About, [bodies[place] for place in places]), strict=True)
        return
    for place in places:
        with suppress(ProtocolError):
            yield place, decode_struct(bodies[place])


def _check_sender(rank: int, seq: int, message: Message) -> None:
    """Raise ProtocolError for what a rank, or an agent, does not send."""
    if rank == -1:
        allowed: tuple[type, ...] = AGENT_MESSAGES
        # What an ABOUT wraps is taken as of the rank: an agent may not send a rank's STEPS in it.
        if isinstance(message, About) and not isinstance(decode(message.body), ABOUT_A_RANK):
            raise ProtocolError("ABOUT is not about a rank's process")
    else:
        # Without a number only heartbeats: nobody would ever miss anything else that got lost.
        allowed = NUMBERED if seq else (Progress,)
    if not isinstance(message, allowed):
        raise ProtocolError(f"{type(message).__name__} is not to be sent here")
