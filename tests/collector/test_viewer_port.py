"""Viewers over TCP: those with a key of `ddptop key new`, and nobody else."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import zmq

from ddptop.cli.errors import Exit
from ddptop.cli.main import main
from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Credit
from ddptop.transport.curve import KeyPair, ViewerKey, load_viewer_keys
from tests.processes import free_port


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the user whose collectors and keys these are."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_key(path: Path, *words: object) -> Path:
    path.touch(mode=0o600)
    path.write_text(json.dumps(words))
    return path


def test_a_viewer_with_a_key_is_let_in_and_nobody_else(
    stage, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"127.0.0.1:{free_port()}"
    collector = stage.collector("--listen", where)
    ranks = stage.ranks(steps=100_000)
    assert main(["key", "new", "laptop.key"]) == Exit.DONE  # counts for a run that is listening already
    assert (home / "laptop.key").stat().st_mode & 0o777 == 0o600
    right = ViewerKey.read_file(home / "laptop.key")
    capsys.readouterr()
    assert main(["--connect", where, "--key", "laptop.key", "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["run"]["name"] == "name"

    wrong = KeyPair.new()
    write_key(home / "unknown.key", right.server_key, wrong)
    write_key(home / "other.key", wrong.public, right.keys)
    for name, line in (("unknown.key", "does not admit our key"), ("other.key", "has not the key")):
        assert main(["--connect", where, "--key", name, "--json"]) == Exit.REFUSED
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        assert line in shown.err
    for garbage in (
        b"",
        b"\xff" * 64,
        b"\xff\0\0\0\0\0\0\0\1\x7f\3\0" + b"CURVE".ljust(20, b"\0") + bytes(99),
        b"GET / ",
    ):
        with socket.create_connection(("127.0.0.1", int(where.rpartition(":")[2]))) as raw:
            raw.sendall(garbage)
    assert main(["--connect", where, "--key", "laptop.key", "--once"]) == Exit.DONE
    capsys.readouterr()
    (home / "laptop.key").chmod(0o644)
    assert main(["--connect", where, "--key", "laptop.key", "--json"]) == Exit.REFUSED
    assert "open to other users" in capsys.readouterr().err
    (home / "laptop.key").chmod(0o600)
    assert main(["--connect", where, "--json"]) == Exit.REFUSED
    assert "needs --key FILE" in capsys.readouterr().err
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.connect(f"tcp://{where}")
        plain.send(encode(Credit(0, 0, -1)))
        assert not plain.poll(500)

    assert main(["key", "rm", "laptop.key"]) == Exit.DONE
    assert load_viewer_keys(home / "state" / "ddptop").admitted == {}
    stage.wait_for(lambda: main(["--connect", where, "--key", "laptop.key", "--once"]) == Exit.REFUSED)
    for rank in ranks:
        rank.kill()
    stage.finish(collector, 1)
