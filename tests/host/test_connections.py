"""The ranks' connections to other hosts: which of them count, and what is reported of them."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

import pytest

from ddptop.host import connections
from ddptop.host.connections import PERIOD_NS, Connection, LinkSampler, established
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.hosts import MAX_LINKS, HostLink, HostUsage


def test_a_connection_of_this_process_is_read_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "is_loopback", lambda address: False)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0],
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, connections.NETLINK_SOCK_DIAG) as link,
    ):
        inode = os.fstat(one.fileno()).st_ino
        found = {each.inode: each for each in connections.dump_connections(link, socket.AF_INET)}
        assert found[inode][1:3] == ("127.0.0.1", "127.0.0.1")
        assert inode in connections.sockets_of(os.getpid())
        assert inode not in {each.inode for each in established()}, "both ends are on this host"


def test_links_are_what_the_ranks_have_sent_since_the_reading_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(sent: int, resent: int) -> list[Connection]:
        peers = [Connection(i, "a", f"b{i % 6}", 900, 300 + i % 6, sent, 0, 7) for i in range(12)]
        return [
            *peers,
            Connection(99, "a", "slow", 90, 80, sent, resent, 7),
            Connection(5, "a", "x", 1, 1, 10**6, 9, 7),
        ]

    monkeypatch.setattr(
        connections, "sockets_of", lambda pid: [*range(5), *range(6, 12), 99] if pid == 4 else []
    )
    sampler = LinkSampler()
    monkeypatch.setattr(connections, "established", lambda: reading(100, 3))
    assert sampler.sample_links([], 0) == ()
    assert sampler.sample_links([4], 1) is None, "not due yet"
    assert sampler.sample_links([4], PERIOD_NS) == (), "a rank's process was found after its connections"
    monkeypatch.setattr(connections, "established", lambda: reading(1100, 13))
    links = sampler.sample_links([4], 2 * PERIOD_NS)
    assert links is not None
    assert len(links) == MAX_LINKS
    assert links[0][:8] == ("a", "slow", 1, 90, 80, 1000, 10, 7)
    assert [link.peer for link in links[1:]] == ["b5", "b4", "b3"]
    assert [link.connections for link in links[1:]] == [1, 2, 2]
    usage = HostUsage(1, None, None, None, None, None, 0, None, 0, links)
    assert decode(encode(usage)) == usage


@pytest.mark.parametrize(
    ("sent", "resent", "counts"),
    [
        (4, 3, (2, 1000, 0, 1200)),
        (10, 3, (2, 1010, 3, 1200)),
        (4, 0, (1, 1000, 0, 0)),
        (10, 0, (2, 1010, 0, 0)),
    ],
)
def test_a_connection_that_was_not_answered_is_reported_and_its_few_segments_are_not_counted(
    monkeypatch: pytest.MonkeyPatch, sent: int, resent: int, counts: tuple[int, ...]
) -> None:
    """The other end may have received everything: then it was slow, and not cut off. Connection 2 is well."""
    monkeypatch.setattr(connections, "sockets_of", lambda pid: [1, 2])
    sampler = LinkSampler()
    for at, (sent_in_all, resent_in_all, silent_ms) in enumerate([(50, 0, 100), (50 + sent, resent, 1300)]):
        read = [
            Connection(1, "a", "b", 90, 80, sent_in_all, resent_in_all, 7, silent_ms),
            Connection(2, "a", "b", 90, 80, 1000 * at, 0, 7),
        ]
        monkeypatch.setattr(connections, "established", lambda read=read: read)
        links = sampler.sample_links([4], at * PERIOD_NS)
    assert links is not None
    assert [(link.connections, link.sent, link.resent, link.silent_ms) for link in links] == [counts]


@pytest.mark.parametrize(
    ("new", "counts"),
    [
        (Connection(1, "a", "b", 90, 80, 700, 5, 7, 1300), (1000, 2, 1200)),
        (Connection(1, "a", "b", 90, 80, 2**32 - 780, 3, 7, 1300), None),
        (Connection(1, "a", "b", 90, 80, 700, 5, 7, 0), None),
        (Connection(1, "a", "c", 90, 80, 700, 5, 7, 1300), None),
    ],
    ids=["after 2**32", "fewer segments", "less silence", "another host"],
)
def test_counters_start_again_at_0_and_an_inode_may_be_that_of_another_connection(
    monkeypatch: pytest.MonkeyPatch, new: Connection, counts: tuple[int, int, int] | None
) -> None:
    monkeypatch.setattr(connections, "sockets_of", lambda pid: [1])
    sampler = LinkSampler()
    for at, each in enumerate((Connection(1, "a", "b", 90, 80, 2**32 - 300, 3, 7, 100), new)):
        monkeypatch.setattr(connections, "established", lambda each=each: [each])
        links = sampler.sample_links([4], at * PERIOD_NS)
    assert links is not None
    assert [(link.sent, link.resent, link.silent_ms) for link in links] == ([counts] if counts else [])


def test_a_reading_of_an_earlier_version_has_no_silence() -> None:
    link = HostLink("10.0.0.1", "10.0.0.2", 4, 900, 100, 1000, 3, 10**9)
    usage = HostUsage(1, None, None, None, None, None, 0, None, 0, (link,))
    old = encode(replace(usage, links=(tuple(link)[:-1],)))  # type: ignore[arg-type]
    assert old != encode(usage) and decode(old) == usage
