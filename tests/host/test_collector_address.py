"""The file by which agents find the collector of their run."""

from __future__ import annotations

import dataclasses

import pytest

from ddptop.host.collector_address import ADDRESS_FILE, CollectorAddress, read_address, write_address

ADDRESS = CollectorAddress("a1", "train-x", "node0", "tcp://10.0.0.1:4242", "s" * 40, "p" * 40, "q" * 40)


def test_what_is_written_is_read(tmp_path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    assert read_address(folder) is None
    write_address(folder, ADDRESS)
    assert read_address(folder) == ADDRESS
    (folder / ADDRESS_FILE).chmod(0o644)
    assert read_address(folder) is None  # others could have read the keys


@pytest.mark.parametrize(
    "changed",
    [
        {"endpoint": "ipc:///tmp/x"},
        {"endpoint": "tcp://10.0.0.1"},
        {"endpoint": "tcp://a b:1"},
        {"server_key": "short"},
        {"agent_secret": ""},
    ],
)
def test_what_is_no_address_is_refused(changed: dict[str, str]) -> None:
    assert CollectorAddress.from_text(ADDRESS.to_text()) == ADDRESS
    with pytest.raises(ValueError, match="not an address"):
        CollectorAddress.from_text(dataclasses.replace(ADDRESS, **changed).to_text())


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"run_id": 1}', "x" * 10_000, "\x00"])
def test_nor_is_other_text(text: str) -> None:
    with pytest.raises(ValueError):
        CollectorAddress.from_text(text)
