"""A run of two hosts, shown on a third one over ssh and over TCP, and on the host that has only an agent."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.hosts.jobs import (
    PORT,
    enough,
    hosts_of,
    in_repository,
    launch,
    launched,
    nothing_left,
    shows,
    snapshot,
)
from tests.hosts.namespaces import Host, hosts
from tests.processes import DDPTOP, until
from tests.sshd import Sshd, needs_sshd


@pytest.mark.slow
@needs_sshd
def test_a_run_is_shown_on_hosts_that_do_not_collect_it(tmp_path: Path) -> None:
    options = ("--ddptop-name", "run", "--ddptop-listen", "node-a:7077")
    with hosts(3, tmp_path) as (a, b, c), launched((a, b), "steps=0", options=options) as job:
        (tmp_path / "sshd").mkdir()
        sshd = Sshd(tmp_path / "sshd", a.env, address=a.address, entering=a.entering)
        near = in_repository(c) | {"PATH": f"{sshd.programs}:{os.environ['PATH']}"}
        sshd.start()
        try:
            shows(a, 2)
            over_ssh = c.run([*DDPTOP, "--connect", "far/run", "--json"], near)
            assert over_ssh.returncode == 0, over_ssh.stderr
            assert hosts_of(json.loads(over_ssh.stdout)) == ["node-a", "node-b"]

            assert a.run([*DDPTOP, "key", "new", "c.key"], in_repository(a)).returncode == 0
            shutil.move(a.folder / "c.key", c.folder / "c.key")
            over_tcp = c.run([*DDPTOP, "--connect", "node-a:7077", "--key", "c.key", "--json"], near)
            assert over_tcp.returncode == 0, over_tcp.stderr
            assert hosts_of(json.loads(over_tcp.stdout)) == ["node-a", "node-b"]

            only_agent = b.run([*DDPTOP, "--once"], in_repository(b))
            where = "run run is collected on node-a: ddptop --connect node-a/run"
            assert (only_agent.returncode, only_agent.stderr) == (1, f"ddptop: {where}\n")
            assert "collected on node-a" in b.run([*DDPTOP, "ls"], in_repository(b)).stdout
            b.cut()

            def own_part() -> bool:
                part = snapshot(b)
                return (
                    part is not None
                    and part["source"] == "replay"
                    and [rank["host"] for rank in part["ranks"][1:]] == ["node-b"]
                )

            until(own_part, "what the agent of node-b records itself")
            b.mend()
        finally:
            sshd.stop()
        enough((a, b))
        assert job.wait() == [0, 0], job.err
        nothing_left((a, b, c))


@pytest.mark.slow
def test_each_host_says_who_has_come_until_all_have(tmp_path: Path) -> None:
    with hosts(2, tmp_path) as pair, contextlib.ExitStack() as ends:
        a, b = pair

        def says(host: Host, sentence: str) -> None:
            def said() -> bool:
                return host.run([*DDPTOP, "ls"], in_repository(host)).stderr == f"ddptop: {sentence}\n"

            until(said, f"{sentence} on {host.name}")

        alone = launch(b, pair, "steps=0", backend="c10d")
        ends.callback(alone.kill_all)
        says(b, f"run run waits for its 2 hosts: node-a:{PORT}, where they meet, does not answer")
        alone.kill_all()
        ends.callback(launch(a, pair, "steps=0", backend="c10d").kill_all)
        says(a, "run run waits for its hosts: 1 of 2 has come: node-a")
        ends.callback(launch(b, pair, "steps=0", backend="c10d").kill_all)
        shows(a, 2)
        assert "waits" not in a.run([*DDPTOP, "ls"], in_repository(a)).stderr
        enough(pair)
