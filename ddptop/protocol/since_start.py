"""What the analysis knows from all steps of a run, for one who reads only its last steps from a recording."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from ddptop.protocol.decoding import converter_to
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.limits import MAX_NS, MAX_STEP, MAX_TEXT, MAX_WORLD
from ddptop.protocol.texts import printable

UNKNOWN = -1
"""A step or a moment that is not known, or has not come yet."""

MAX_ENTRIES = 4096
"""Most entries of each kind; the writer leaves out what is over it."""

_T = TypeVar("_T")


class BadLoss(NamedTuple):
    """Consecutive steps of a rank with NaN or infinite losses."""

    rank: int
    step: int
    """The first of them, and when it arrived."""
    since_ns: int
    finite_step: int
    """The first step whose loss was finite again; UNKNOWN: there is none yet."""
    finite_ns: int
    last_finite_step: int = UNKNOWN
    """The last step before `step` whose loss was read; earlier versions did not record it."""


class FlaggedSince(NamedTuple):
    """The rank that is flagged as straggler, and since when (Unix seconds)."""

    rank: int
    unix_s: float


class PieceDrift(NamedTuple):
    """A piece of a model whose parameters differ between ranks."""

    model: int
    group: tuple[int, ...]
    """Ranks that hold the model; empty: all."""
    piece: int
    ranks: tuple[int, ...]
    majority: bool
    since: int
    equal: int
    """The step of the last check in which it was equal; UNKNOWN: never."""
    unix_s: float


class EqualPieces(NamedTuple):
    """The last check of each piece of a model in which all ranks were equal."""

    model: int
    group: tuple[int, ...]
    steps: tuple[int, ...]
    """UNKNOWN: there was none."""


class LoggedValues(NamedTuple):
    """The newest values that the ranks' scripts logged under one name."""

    name: str
    ranks: tuple[int, ...]
    values: tuple[float, ...]


class SinceStart(NamedTuple):
    """What follows, at one moment of a run, from steps long before it."""

    incarnation: int
    step: int
    """The newest complete step; UNKNOWN: none."""
    at_ns: int
    """When the newest message arrived, on the collector's clock."""
    shadow_steps: tuple[int, ...]
    """Number of the last step of each shadow block; below, what the recorder costs by it, as a share."""
    shadow_shares: tuple[float, ...]
    bad_losses: tuple[BadLoss, ...]
    straggler: FlaggedSince | None
    loss_spread_s: float | None
    """Since when the loss of a rank stands apart (Unix seconds); None: it does not."""
    drifts: tuple[PieceDrift, ...]
    equal_pieces: tuple[EqualPieces, ...]
    logged: tuple[LoggedValues, ...]
    pauses_ns: tuple[tuple[str, int], ...]
    """By function the longest time that a rank was in it before the run continued."""


def pack_since_start(since_start: SinceStart) -> list[object]:
    """The state as a list for msgpack."""
    # The reader refuses longer lists, and with them the whole state.
    limited = since_start._replace(
        bad_losses=since_start.bad_losses[:MAX_ENTRIES],
        drifts=since_start.drifts[:MAX_ENTRIES],
        equal_pieces=since_start.equal_pieces[:MAX_ENTRIES],
        logged=since_start.logged[:MAX_ENTRIES],
        pauses_ns=since_start.pauses_ns[:MAX_ENTRIES],
    )
    packed: list[object] = [*limited]
    # As bytes: there may be thousands of them, and a reader checks their length before it makes numbers.
    packed[3:5] = _pack_numbers("q", limited.shadow_steps), _pack_numbers("d", limited.shadow_shares)
    packed[9] = [(model, group, _pack_numbers("q", steps)) for model, group, steps in limited.equal_pieces]
    packed[10] = [
        (name, _pack_numbers("q", ranks), _pack_numbers("d", values))
        for name, ranks, values in limited.logged
    ]
    return packed


def unpack_since_start(packed: object) -> SinceStart:
    """From what `pack_since_start` returns. Raises ProtocolError for anything else."""
    incarnation, step, at_ns, shadow_steps, shadow_shares, losses, straggler, spread_s, *last_fields = (
        _check_fields(packed, 12)
    )
    drifts, equal, logged, pauses = last_fields
    flagged = None if straggler is None else _check_fields(straggler, 2)
    steps, shares = _unpack_numbers("q", shadow_steps), _unpack_numbers("d", shadow_shares)
    # Read as two rows of numbers, they could have different lengths, and `zip` would drop some silently.
    if len(steps) != len(shares):
        raise ProtocolError("shadow blocks of different lengths")
    return SinceStart(
        _COUNT(incarnation),
        _STEP(step),
        _NS(at_ns),
        tuple(map(_STEP, steps)),
        tuple(map(_SHARE, shares)),
        _read_entries(losses, _read_bad_loss),
        None if flagged is None else FlaggedSince(_RANK(flagged[0]), _SECONDS(flagged[1])),
        None if spread_s is None else _SECONDS(spread_s),
        _read_entries(drifts, _read_drift),
        _read_entries(equal, _read_equal_pieces),
        _read_entries(logged, _read_logged_values),
        _read_entries(pauses, _read_pause),
    )


def _type_checker(kind: Any) -> Callable[[object], Any]:
    """Checks a value for its type and range."""
    convert = converter_to(kind)

    def check_value(value: object) -> Any:
        try:
            return convert(value)
        except msgspec.ValidationError as error:
            raise ProtocolError(str(error)) from error

    return check_value


_COUNT = _type_checker(Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)])
_STEP = _type_checker(Annotated[int, msgspec.Meta(ge=UNKNOWN, le=MAX_STEP)])
_NS = _type_checker(Annotated[int, msgspec.Meta(ge=UNKNOWN, le=MAX_NS)])
_RANK = _type_checker(Annotated[int, msgspec.Meta(ge=0, le=MAX_WORLD - 1)])
_SECONDS = _type_checker(Annotated[float, msgspec.Meta(ge=0.0, le=MAX_NS / 1e9)])
_SHARE = _type_checker(Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)])
_NAME = _type_checker(Annotated[str, msgspec.Meta(max_length=MAX_TEXT)])


def _check_fields(value: object, count: int) -> Sequence[object]:
    if not isinstance(value, (tuple, list)) or len(value) != count:
        raise ProtocolError(f"no array of {count} fields")
    return value


def _read_entries(values: object, read: Callable[[object], _T]) -> tuple[_T, ...]:
    if not isinstance(values, (tuple, list)) or len(values) > MAX_ENTRIES:
        raise ProtocolError("no array of entries")
    return tuple(map(read, values))


def _pack_numbers(kind: str, values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}{kind}", *values)


def _unpack_numbers(kind: str, data: object) -> tuple[int | float, ...]:
    if not isinstance(data, bytes) or len(data) % 8:
        raise ProtocolError("no row of numbers")
    return struct.unpack(f"<{len(data) // 8}{kind}", data)


def _read_bad_loss(value: object) -> BadLoss:
    if isinstance(value, (tuple, list)) and len(value) == 5:
        value = (*value, UNKNOWN)  # of an earlier version
    rank, step, since_ns, finite_step, finite_ns, last_finite_step = _check_fields(value, 6)
    steps = _STEP(step), _STEP(finite_step), _STEP(last_finite_step)
    return BadLoss(_RANK(rank), steps[0], _NS(since_ns), steps[1], _NS(finite_ns), steps[2])


def _read_drift(value: object) -> PieceDrift:
    model, group, piece, ranks, majority, since, equal, unix_s = _check_fields(value, 8)
    checked = (_COUNT(model), _read_entries(group, _RANK), _COUNT(piece), _read_entries(ranks, _RANK))
    return PieceDrift(*checked, majority is True, _STEP(since), _STEP(equal), _SECONDS(unix_s))


def _read_equal_pieces(value: object) -> EqualPieces:
    model, group, steps = _check_fields(value, 3)
    return EqualPieces(
        _COUNT(model), _read_entries(group, _RANK), tuple(map(_STEP, _unpack_numbers("q", steps)))
    )


def _read_logged_values(value: object) -> LoggedValues:
    name, ranks, values = _check_fields(value, 3)
    of_ranks, newest = tuple(map(_RANK, _unpack_numbers("q", ranks))), _unpack_numbers("d", values)
    if len(of_ranks) != len(newest):
        raise ProtocolError("logged values of different lengths")
    # The name is a script's own, and the file may come from anybody.
    return LoggedValues(printable(_NAME(name)), of_ranks, newest)


def _read_pause(value: object) -> tuple[str, int]:
    name, pause_ns = _check_fields(value, 2)
    return printable(_NAME(name)), _NS(pause_ns)
