"""Bytes as messages: every field is checked for type and range, and texts are made safe to show.

msgspec decodes a message to a struct, whose types and ranges are those that `messages.py` declares beside
each field. The limits of lists, maps and texts hold before anything is allocated for them: memory stays
within a small multiple of a message's bytes, whatever they are. `codec.py` encodes, and has the few messages
that a training process reads, which does without msgspec.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from ddptop.protocol import limits, step_rows, step_words
from ddptop.protocol.earlier_steps import FIRST_WIDTH, fill_own_times, widen_words
from ddptop.protocol.errors import ProtocolError, UnknownType
from ddptop.protocol.messages import CODES, KINDS, NAMES, Hello, Message, State, Steps
from ddptop.protocol.ranges import MostItems, Range
from ddptop.protocol.texts import printable

# RecursionError: msgspec raises it for values that are nested too deep.
UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What msgspec raises for bytes that are not as a type says; a text may be no UTF-8."""

_STATE_BEGINS = bytes((0x90 + 1 + len(NAMES[State]), CODES[State]))
"""A msgpack array of so many elements and its first one: how the one message begins that may be large."""


def converter_to(kind: Any) -> Callable[[object], Any]:
    """`msgspec.convert` of values to this type. Raises what UNDECODABLE holds.

    `msgspec.convert` looks a type up by its hash, each time: ten times slower, and what the handler of a
    signal raises within that is dropped, so that a command would not end. It reads a struct once.
    """
    holder: Any = msgspec.defstruct("Holder", [("value", kind)], array_like=True)
    return lambda value: msgspec.convert((value,), holder).value


# -- from the declarations of messages.py to msgspec's types --------------------------------------


# Structs are made from the messages, and not the messages structs: a rank only encodes, and never imports
# msgspec.
def _wire_type(declared: Any) -> Any:
    """The type that msgspec checks: with its constraints in place of ours, and structs for tuples."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Annotated:
        declared, *constraints = arguments
        (constraint,) = map(_msgspec_constraint, constraints)
        return Annotated[_wire_type(declared), constraint]
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_wire_type, arguments))
    if origin in (tuple, dict):
        return origin[tuple(argument if argument is ... else _wire_type(argument) for argument in arguments)]
    if isinstance(declared, type) and issubclass(declared, tuple):
        # A NamedTuple travels as an array; `array_like` makes msgspec check its length and each of its items.
        return _define_struct(declared, declared._field_defaults, tag=None)  # type: ignore[attr-defined]
    return declared


def _msgspec_constraint(declared: Range | MostItems) -> msgspec.Meta:
    if isinstance(declared, MostItems):
        return msgspec.Meta(max_length=declared.most)
    return msgspec.Meta(ge=declared.low, le=declared.high)


def _define_struct(kind: Any, defaults: dict[str, Any], *, tag: int | None) -> type[msgspec.Struct]:
    """A struct with the fields of a message, or of a tuple in one, as an array."""
    hints = get_type_hints(kind, include_extras=True)
    names = NAMES.get(kind) or kind._fields
    fields = [
        (name, _wire_type(hints[name]), *([defaults[name]] if name in defaults else [])) for name in names
    ]
    struct = msgspec.defstruct(
        kind.__name__, fields, array_like=True, tag=tag, forbid_unknown_fields=True, frozen=True
    )
    _KIND_OF[struct] = kind
    return struct


_KIND_OF: dict[type[msgspec.Struct], Any] = {}


def _message_struct(kind: Any) -> type[msgspec.Struct]:
    """Fields that have a default were added later: earlier versions did not send them."""
    # A default factory is no default here: the fields that have one came with their message.
    given = {field.name: field.default for field in dataclasses.fields(kind)}
    defaults = {name: value for name, value in given.items() if value is not dataclasses.MISSING}
    return _define_struct(kind, defaults, tag=CODES[kind])


_Count = Annotated[int, msgspec.Meta(ge=0, le=limits.MAX_STEP)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=limits.MAX_NS)]
_MicrosecondsOrUnknown = Annotated[int, msgspec.Meta(ge=-1, le=limits.MAX_US)]
_Row = Annotated[
    tuple[_MicrosecondsOrUnknown | float | None, ...],
    msgspec.Meta(min_length=step_words.HEAD, max_length=step_words.HEAD + limits.MAX_CELLS),
]
_Rows = Annotated[tuple[_Row, ...], msgspec.Meta(min_length=1, max_length=limits.MAX_ROWS)]
_RowCount = Annotated[int, msgspec.Meta(ge=1, le=limits.MAX_ROWS)]
_Width = Annotated[int, msgspec.Meta(ge=FIRST_WIDTH, le=limits.MAX_RANK_MESSAGE_BYTES)]
_OwnTimes = Annotated[tuple[int, ...], msgspec.Meta(max_length=step_words.HEAD + limits.MAX_CELLS)]


# By hand, not from `messages.py`: the fields on the wire are not those of `Steps`, and have two forms.
class StepsStruct(msgspec.Struct, array_like=True, tag=CODES[Steps], forbid_unknown_fields=True):
    """STEPS in either form: in columns, whose words `rows` are, with their count and width; or in rows, with
    the own times of all of them. Once decoded, those of earlier versions have all fields of this one."""

    generation: _Count
    first_step: _Count
    base_ns: _Time
    rows: bytes | _Rows
    count_or_own: _RowCount | _OwnTimes = ()
    width: _Width | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        words_or_rows, count_or_own, width = self.rows, self.count_or_own, self.width
        if width == step_words.WIDTH:
            return  # nearly every message
        if isinstance(words_or_rows, tuple) and isinstance(count_or_own, tuple):
            self.count_or_own = fill_own_times(count_or_own, len(words_or_rows))
        elif type(words_or_rows) is bytes and type(count_or_own) is int and type(width) is int:
            self.rows, self.width = widen_words(words_or_rows, count_or_own, width)

    @property
    def words(self) -> tuple[bytes, int, int] | None:
        """The words of a message in columns, their rows and width; None: it is in rows.

        Raises ProtocolError where they are not as many as it says, or the fields are of both forms."""
        words, count, width = self.rows, self.count_or_own, self.width
        if type(words) is bytes and type(count) is int and type(width) is int:
            step_words.check_size(len(words), count, width)
            return words, count, width
        if type(words) is bytes or type(count) is int or width is not msgspec.UNSET:
            raise ProtocolError("STEPS is neither in columns nor in rows")
        return None

    @property
    def own(self) -> tuple[int, ...]:
        """The own times of a message in rows, one row after the other."""
        return cast("tuple[int, ...]", self.count_or_own)


# The type alone tells a message of a later version, which is skipped, from damaged bytes, which are an error.
class _Head(msgspec.Struct, array_like=True):
    """The type of any message; what follows is skipped."""

    code: int


_STRUCTS = {kind: _message_struct(kind) for kind in CODES if kind is not Steps} | {Steps: StepsStruct}
_DECODE = msgspec.msgpack.Decoder(functools.reduce(operator.or_, _STRUCTS.values())).decode
_DECODE_HEAD = msgspec.msgpack.Decoder(_Head).decode


# -- messages -------------------------------------------------------------------------------------


def decode_struct(data: bytes) -> Any:
    """The message in `data` as a struct with the message's fields, whose texts are as they came.

    Raises UnknownType for a type of a later version, ProtocolError for anything else that is not right.
    """
    # The size is checked before msgspec sees the bytes: only a STATE, the answer to a viewer, may be large.
    large = data[:2] == _STATE_BEGINS
    if len(data) > (limits.MAX_FRAME_BYTES if large else limits.MAX_RANK_MESSAGE_BYTES):
        raise ProtocolError(f"message of {len(data)} bytes")
    try:
        return _DECODE(data)
    except UNDECODABLE as error:
        raise _refusal(data, error) from error


def decode(data: bytes) -> Message:
    """The message in `data`, every field checked for type and range; texts are safe to show.

    Raises as `decode_struct`.
    """
    struct = decode_struct(data)
    return _MAKE[type(struct)](struct)


def decode_structs(kind: type[Message], bodies: Sequence[bytes]) -> list[Any]:
    """The structs of these messages, which are all of one kind. Raises ProtocolError."""
    # The smaller limit holds here: a STATE, the only large message, is never decoded with others.
    if max(map(len, bodies), default=0) > limits.MAX_RANK_MESSAGE_BYTES:
        raise ProtocolError("a message is too long")
    try:
        structs = [*map(_DECODE, bodies)]
    except UNDECODABLE as error:
        raise ProtocolError(f"no {kind.__name__}: {error}") from error
    # The decoder takes every type of message: by `message_code` these are of one kind, by their bytes maybe
    # not.
    if not set(map(type, structs)) <= {_STRUCTS[kind]}:
        raise ProtocolError(f"no {kind.__name__}")
    return structs


def field_columns(kind: type[Message], structs: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The fields of some structs of one kind, a column of each, with texts as `decode` returns them."""
    columns = [*zip(*map(msgspec.structs.astuple, structs), strict=True)]
    for place in _TEXTS[kind]:
        columns[place] = (*map(_as_shown, columns[place]),)
    return columns


def _refusal(data: bytes, error: Exception) -> ProtocolError:
    """Says which field is wrong."""
    try:
        code = _DECODE_HEAD(data).code
    except UNDECODABLE:
        return ProtocolError(f"no message: {error}")
    if code not in KINDS:
        return UnknownType(f"message of type {code}")
    # msgspec names a place in the array (`$[3]`), which tells a reader of the log nothing.
    wrong_place = re.search(r"\$\[(\d+)\]", str(error))
    names = ("type", *NAMES[KINDS[code]])
    name = (
        names[int(wrong_place[1])]
        if wrong_place and int(wrong_place[1]) < len(names)
        else KINDS[code].__name__
    )
    return ProtocolError(f"{name}: {error}")


def _holds_text(declared: Any) -> bool:
    if get_origin(declared) is not None:
        return any(map(_holds_text, get_args(declared)))
    return declared is str or (isinstance(declared, type) and issubclass(declared, tuple))


def _text_places(kind: Any) -> list[int]:
    """Which fields are texts, or hold some."""
    hints = get_type_hints(kind, include_extras=True)
    return [place for place, name in enumerate(NAMES[kind]) if _holds_text(hints[name])]


_TEXTS = {kind: _text_places(kind) for kind in CODES if kind is not Steps}


def _as_shown(value: Any) -> Any:
    """A value of a field with its texts safe to show, and tuples in place of structs."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        return tuple(map(_as_shown, value))
    if isinstance(value, dict):
        return {_as_shown(key): _as_shown(item) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        return _KIND_OF[type(value)](*map(_as_shown, msgspec.structs.astuple(value)))
    return value


def _message_maker(kind: Any) -> Callable[[Any], Any]:
    as_tuple, places = msgspec.structs.astuple, _TEXTS[kind]

    # Two functions, not a test in one: this runs for each message, and few kinds of message have texts.
    def make_message(struct: Any) -> Any:
        return kind(*as_tuple(struct))

    def make_message_with_texts(struct: Any) -> Any:
        values = list(as_tuple(struct))
        for place in places:
            values[place] = _as_shown(values[place])
        return kind(*values)

    return make_message_with_texts if places else make_message


def _make_hello(struct: Any) -> Hello:
    if struct.rank >= struct.world_size:
        raise ProtocolError("rank is not below the world size")
    values = map(_as_shown, msgspec.structs.astuple(struct))
    kept: list[Any] = [_kept_once(value) if type(value) is str else value for value in values]
    return Hello(*kept)


@functools.lru_cache(maxsize=1024)
def _kept_once(text: str) -> str:
    """The first one of equal texts: most of a HELLO are those of other ranks. Not `sys.intern`, which keeps
    all of them for good in Python 3.12."""
    return text


def _make_steps(struct: StepsStruct) -> Steps:
    words = struct.words
    rows, own_times = (cast("Any", struct.rows), struct.own) if words is None else step_words.rows_of(*words)
    return Steps(
        struct.generation, struct.first_step, struct.base_ns, step_rows.make_step_rows(rows, own_times)
    )


_MAKE: dict[type, Callable[[Any], Message]] = {
    struct: _message_maker(kind) for kind, struct in _STRUCTS.items() if kind is not Steps
}
_MAKE |= {_STRUCTS[Hello]: _make_hello, StepsStruct: _make_steps}
