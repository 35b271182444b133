"""What ranks say of themselves that differs, or is shared, and should not be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddptop.frames.remedies import next_action, remedy_of_alert
from ddptop.frames.verdict import verdict
from ddptop.protocol.messages import Card
from tests.analysis.test_start import Way, replace_message

GPU = {"torch": "2.13.0", "gpu.name": "NVIDIA H100", "gpu.bus_id": "00000000:3B:00.0"}


def way_with(make_world: Any, *cards: dict[str, Any], hosts: tuple[str, ...] = ()) -> Way:
    """Ranks that have their process group, with their cards."""
    way = Way(make_world(len(cards)))
    for rank, card in enumerate(cards):
        hello = way.world.hello(rank)
        early = replace(hello.message, timing_path="", backend="", device="", host=(*hosts, "node0")[rank])
        way.feed(replace_message(hello, early))
        way.reach(rank, "torch")
        way.say(rank, Card(card))
    way.wait(2)
    return way


@pytest.mark.parametrize(
    ("cards", "hosts", "sentence", "remedy"),
    [
        (
            (GPU, GPU),
            ("node0", "node0"),
            "2 ranks share one GPU (00000000:3B:00.0)",
            "Give each rank a GPU of its own",
        ),
        (
            (GPU | {"gpu.visible": 8}, GPU | {"gpu.visible": 8}),
            ("node0", "node0"),
            "2 ranks share one GPU (00000000:3B:00.0) of 8: no device was set",
            "Call torch.cuda.set_device(",
        ),
        (
            ({"torch": "2.13.0"}, {"torch": "2.13.0"}, {"torch": "2.6.0"}),
            ("node0", "node0", "node1"),
            "rank 2 on node1 has torch 2.6.0, ranks 0 and 1 torch 2.13.0",
            "Install the same torch",
        ),
        (
            ({"mtu": 9000}, {"mtu": 1500}, {"mtu": 9000}),
            ("node0", "node1", "node2"),
            "the network of rank 1 on node1 has MTU 1500, of ranks 0 and 2 MTU 9000",
            "Give the interfaces of all hosts one MTU",
        ),
        (
            ({"interface": "eth0"}, {"interface": "ib0"}),
            ("node0", "node1"),
            "the network of rank 1 on node1 has interface ib0, of rank 0 interface eth0",
            "Set NCCL_SOCKET_IFNAME",
        ),
    ],
)
def test_what_should_be_equal_or_apart_is_said(
    make_world: Any, cards: Any, hosts: Any, sentence: str, remedy: str
) -> None:
    frame = way_with(make_world, *cards, hosts=hosts).frame()
    (alert,) = [alert for alert in frame.alerts if alert.kind == "preflight"]
    assert alert.message == sentence
    assert remedy_of_alert(alert).startswith(remedy)
    assert verdict(frame).detail == sentence  # beside how far the ranks are
    assert next_action(frame) == ""


@pytest.mark.parametrize(
    ("cards", "hosts"),
    [
        ((GPU, GPU), ("node0", "node1")),  # equal bus ids of two hosts
        ((GPU | {"gpu.name": "NVIDIA A100 MIG 1g.5gb"},) * 2, ("node0", "node0")),
        (({"mtu": 9000}, {"mtu": 1500}), ("node0", "node0")),
        (({"torch": "2.13.0"}, {}), ("node0", "node1")),  # nothing is known of the other
    ],
)
def test_what_may_be_so_is_not(make_world: Any, cards: Any, hosts: Any) -> None:
    frame = way_with(make_world, *cards, hosts=hosts).frame()
    assert [alert for alert in frame.alerts if alert.kind == "preflight"] == []
