"""How the agents of a run reach its collector: a file in the run folder of each host.

The collector writes it on its own host once it has bound its port. The launcher, or a rank, copies it through
the job's own store to the other hosts; there the agent reads it.

Where no launcher of ours starts collector and agents, each host begins with an agent. A rank of the host then
writes the file `role`, once it is decided: the agent of one host executes the collector in its place.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from ddptop.host.folders import RunDirectoryError, open_private, read_private, write_private
from ddptop.protocol.limits import CURVE_KEY_CHARACTERS

if TYPE_CHECKING:
    from pathlib import Path

ADDRESS_FILE = "collector.json"

ROLE_FILE = "role"

MAX_BYTES = 4096

_ENDPOINT = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):\d{1,5}")


@dataclass(frozen=True, slots=True)
class CollectorAddress:
    """Address of a run's collector, and the keys of the run. With it any process can report as a host."""

    run_id: str
    """Id of the run at the collector: `ddptop ls` on its host shows it."""
    name: str
    host: str
    """Name of the collector's host."""
    endpoint: str
    """`tcp://ADDRESS:PORT`, as the other hosts reach it."""
    server_key: str
    """Public CURVE key of the collector, in Z85 as the other two."""
    agent_public: str
    agent_secret: str
    """Key pair that the agents of this run share."""

    def to_text(self) -> str:
        """For the job's store."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | bytes) -> CollectorAddress:
        """Raises ValueError where the text is not what `to_text` makes."""
        # Checked here, since the text comes from the job's store, which any process of the job may write.
        values = json.loads(text) if len(text) <= MAX_BYTES else None
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or any(not isinstance(values.get(name), str) for name in names):
            raise ValueError("not an address of a collector")
        address = cls(**{name: values[name] for name in names})
        keys = (address.server_key, address.agent_public, address.agent_secret)
        if not _ENDPOINT.fullmatch(address.endpoint) or any(len(key) != CURVE_KEY_CHARACTERS for key in keys):
            raise ValueError("not an address of a collector")
        return address


def write_address(folder: Path, address: CollectorAddress) -> None:
    """Put the file into a run folder, whole or not at all, mode 0600. Raises RunDirectoryError, OSError."""
    with open_private(folder) as inside:
        write_private(inside, ADDRESS_FILE, address.to_text().encode())


def read_address(folder: Path) -> CollectorAddress | None:
    """The address in a run folder; None if there is none, it is not ours alone, or it is none."""
    try:
        return CollectorAddress.from_text(read_private(folder, ADDRESS_FILE, MAX_BYTES + 1))
    except (OSError, RunDirectoryError, ValueError):
        return None


def write_role(folder: Path, serve: str) -> None:
    """Decide what this host's agent becomes. Raises RunDirectoryError, OSError.

    `serve`: HOST:PORT for the collector's `--serve`; empty: it stays an agent.
    """
    with open_private(folder) as inside:
        write_private(inside, ROLE_FILE, serve.encode())


def read_role(folder: Path) -> str | None:
    """What `write_role` has written there; None where it is not decided."""
    try:
        return read_private(folder, ROLE_FILE, MAX_BYTES).decode(errors="replace")
    except (OSError, RunDirectoryError):
        return None
