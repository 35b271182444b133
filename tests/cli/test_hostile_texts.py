"""Escapes in every text of every message of a recording: no outlet passes one on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ddptop.cli.main import main
from ddptop.frames import codec
from ddptop.protocol import decoding
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.messages import Bye, Event, Logged, Message, Received, Run
from ddptop.recording.reader import Recording
from tests.made_up_run import a_run, write
from tests.protocol.test_codec import MESSAGES
from tests.tui.hostile import ESCAPES

WORDS = frozenset({("Run", "state")})
"""Texts that may only be words of the vocabulary: a message with another one is refused."""


def texts_of(value: Any) -> Iterator[str]:
    """All texts in a message, however deep."""
    if isinstance(value, str):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from texts_of(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from texts_of(name)
            yield from texts_of(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from texts_of(item)


def with_escapes(value: Any) -> Any:
    """The same with escapes after every text."""
    if isinstance(value, str):
        return value + ESCAPES
    if isinstance(value, Mapping):
        return {with_escapes(name): with_escapes(item) for name, item in value.items()}
    if isinstance(value, tuple):
        items = [with_escapes(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def hostile(message: Message) -> Message:
    """A message with escapes in all texts that are not words of the vocabulary."""
    kind = type(message).__name__
    changed = {
        field.name: with_escapes(getattr(message, field.name))
        for field in dataclasses.fields(message)  # type: ignore[arg-type]
        if (kind, field.name) not in WORDS
    }
    return dataclasses.replace(message, **changed)  # type: ignore[type-var]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_texts_of_messages_are_cleaned_where_they_enter(message: Message) -> None:
    received = decode(encode(hostile(message)))
    assert type(received) is type(message)
    assert all(text.isprintable() for text in texts_of(received))
    assert len(list(texts_of(received))) == len(list(texts_of(message)))


def test_a_word_that_is_none_is_refused() -> None:
    run = next(message for message in MESSAGES if isinstance(message, Run))
    with pytest.raises(ProtocolError, match="state"):
        decode(encode(dataclasses.replace(run, state=run.state + ESCAPES)))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "run.ddptop"
    messages = list(a_run(120, ending=False))
    end_ns = messages[-1].t_ns
    more = [
        Event("stall", end_ns, 1, 119, {"message": "rank 1 is missing"}),
        Event("exit", end_ns, 1, -1, {"exit_code": 1, "signal": "SIGSEGV", "session": 1001}),
        Event(ESCAPES, end_ns, 1, 119, {"message": "of no kind"}),
        *(message for message in MESSAGES if isinstance(message, (Logged, Event))),
        Bye(end_ns, "ValueError: no such file"),
    ]
    for number, message in enumerate(more):
        messages.append(Received(end_ns + number, 1, 1001, 10_000 + number, message))
    keep = ("exit", "stall")  # kinds of events are words that rules look for

    def lie(received: Received) -> Received:
        message = received.message
        if isinstance(message, Event) and message.kind in keep:
            fields = {name: with_escapes(value) for name, value in message.fields.items()}
            return received._replace(message=dataclasses.replace(message, fields=fields))
        return received._replace(message=hostile(message))

    write(path, map(lie, messages))
    return path


OUTLETS = (
    "replay FILE --once",
    "replay FILE --json",
    "report FILE",
    "report FILE --json",
    "report FILE --html OUT/page.html",
    "export FILE --to csv -o OUT/csv",
    "export FILE --to json -o OUT/json",
    "export FILE --to perfetto -o OUT/trace",
    "check FILE --against FILE --junit OUT/junit.xml",
)


def trust_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have texts taken as they come."""
    for module in (decoding, codec):
        monkeypatch.setattr(module, "printable", lambda text: text)


@pytest.mark.parametrize("trusting", [False, True], ids=["cleaned", "trusted"])
@pytest.mark.parametrize("line", OUTLETS)
def test_no_outlet_of_a_recording_passes_an_escape_on(
    line: str,
    trusting: bool,
    recording: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the checks of what enters have let it through."""
    if "perfetto" in line:
        pytest.importorskip("perfetto")
    if trusting:
        trust_texts(monkeypatch)
        with Recording.open(recording) as opened:
            assert ESCAPES in opened.run.name
    main(line.replace("FILE", str(recording)).replace("OUT", str(tmp_path)).split())
    shown = capsys.readouterr()
    assert not set("\x1b\x07\u202e") & set(shown.out + shown.err)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert shown.out or written, "it showed nothing"
    for path in written:
        data = path.read_bytes()
        assert not any(raw.encode() in data for raw in ("\x1b]0", "\x1b[41m", "\x9b31m", "\u202e")), path
        assert path.suffix not in (".html", ".xml") or b"</svg><script>" not in data
