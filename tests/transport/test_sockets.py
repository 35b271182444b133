"""A process that has no file descriptors or threads left is not ended by libzmq, nor by the rank's link."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.processes import environment, run

SCRIPT = """
import os, resource, sys
from ddptop.transport.sender import AckedSender
from ddptop.transport.sockets import new_context
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    for _ in range(int(sys.argv[1])):
        os.close(held.pop())
sender = AckedSender("ipc://nowhere", bytes)
sender.exchange_messages()
try:
    new_context()
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize("free", [0, 3])
def test_a_link_for_which_there_are_no_descriptors_is_refused(tmp_path: Path, free: int) -> None:
    done = run([sys.executable, "-c", SCRIPT, str(free)], environment(tmp_path), tmp_path)
    assert (done.returncode, done.stdout) == (0, "Too many open files\n"), done.stderr


LIMITS = """
import os, resource
from ddptop.transport.sockets import new_context
for limit in range(1, 31):
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        os.setresuid(54322, 54322, 54322)
        try:
            new_context()
        except OSError as error:
            os._exit(1 if "threads can be started" in error.strerror else 2)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end=" ")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_link_for_which_there_are_no_threads_is_refused(tmp_path: Path) -> None:
    done = run([sys.executable, "-c", LIMITS], environment(tmp_path), tmp_path)
    codes = done.stdout.split()
    assert codes == ["1"] * (len(codes) - codes.count("0")) + ["0"] * codes.count("0"), done.stderr
    assert (len(codes), codes.count("0") > 0, codes.count("1") > 2) == (30, True, True)


BEHIND = """
import sys, time, zmq
from ddptop.transport.bundle_receiver import BundleReceiver
from ddptop.transport.curve import AGENTS, Gate, KeyPair, make_client
from ddptop.transport.receiver import AckedReceiver
from ddptop.transport.sockets import connect_dealer, new_context

context, keys = new_context(), KeyPair.new()
gate = Gate(context)
gate.admit_keys(AGENTS, [keys.public])
tcp = BundleReceiver(context, "tcp://127.0.0.1:*", keys, epoch=1)
ipc = AckedReceiver(context, f"ipc://{sys.argv[1]}/ingest", epoch=1)
client = lambda socket: make_client(socket, keys.public, keys)
for endpoint, prepare in ((f"tcp://127.0.0.1:{tcp.port}", client), (f"ipc://{sys.argv[1]}/ingest", None)):
    peers = new_context()
    peer = connect_dealer(peers, endpoint, send_high=4, receive_high=4, max_bytes=999, prepare=prepare)
    while not peer.poll(20, zmq.POLLOUT):
        gate.answer_questions()
    while peer.poll(300, zmq.POLLOUT):  # until nothing is read at the other end
        peer.send(bytes(10_000))
    peer.close()
    peers.term()
time.sleep(3)  # longer than libzmq's heartbeats would be apart
while not (tcp.refused and ipc.refused):
    tcp.drain_bundles(1)
    ipc.drain_messages(1)
print("read on")
"""


@pytest.mark.slow
def test_a_receiver_that_is_behind_outlives_peers_that_close(tmp_path: Path) -> None:
    """With ZeroMQ's heartbeats libzmq 4.3.5 ends the process: `Assertion failed: !_io_error`."""
    done = run([sys.executable, "-c", BEHIND, str(tmp_path)], environment(tmp_path), tmp_path)
    assert (done.returncode, done.stdout) == (0, "read on\n"), done.stderr
