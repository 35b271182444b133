"""`ddptop --connect`: what is meant by a target, and the run there on this screen."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ddptop.cli.errors import CliError, Exit, note
from ddptop.protocol.outlets import print_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.cli.show import Mode
    from ddptop.sources.live import RemoteSource
    from ddptop.sources.remote import Remote

SSH = ("ssh", "-T", "-x", "-a", "-oClearAllForwardings=yes", "-oRemoteCommand=none")
"""No terminal, X or agent at the far end, as scp has it. Everything else is as the user's ssh config says."""

SRUN = ("srun", "--overlap", "--ntasks=1", "--nodes=1", "--quiet")

_SSH = re.compile(r"(ssh://)?([^\s/@-][^\s/@]*@)?[^\s/@-][^\s/@]*")
_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/@:]+):(\d{1,5})")
_JOB = re.compile(r"\d+([+_]\d+)?")

TCP_S = 10.0
"""How long a connection over TCP may take."""

REACH_S = 2.0
"""How long is tried, after that, why there is none."""

WAIT_S = 2.0
"""Time between two attempts while `--wait` waits for the run to start."""


class Target(NamedTuple):
    """Where a run is, and which of the runs there is meant (None: the only live one)."""

    remote: Remote
    run: str | None
    job: str | None = None
    """Slurm's job id."""


def split_command(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """`--connect -- COMMAND...` at the end of a command line: the words before it, and COMMAND."""
    for place in range(len(words) - 1):
        if words[place] == "--connect" and words[place + 1] == "--":
            return list(words[:place]), list(words[place + 2 :])
        # A plain `--` before it ends the options: a run may be called `--connect`.
        if words[place] == "--":
            break
    return list(words), None


def target_of(options: argparse.Namespace) -> Target:
    """What the options mean. Raises CliError (2)."""
    from ddptop.sources.remote import Remote

    program = options.remote_command or os.environ.get("DDPTOP_REMOTE") or "ddptop"
    if options.command is not None:
        if not options.command:
            raise CliError("--connect -- needs a command: --connect -- kubectl exec -i POD --", Exit.USAGE)
        command = tuple(options.command)
        remote = Remote(where=_shorten_command(command), first=command, again=command, program=program)
        return Target(remote, options.run)
    begin = "ssh://" if options.connect.startswith("ssh://") else ""
    # A host name has no slash, so that the first one begins the run's name.
    place, slash, run = options.connect.removeprefix(begin).partition("/")
    if slash and options.run is not None:
        raise CliError(f"two runs are named: {run} and {options.run}", Exit.USAGE)
    run = run or options.run
    if place.startswith("slurm:"):
        job = place.removeprefix("slurm:")
        if not _JOB.fullmatch(job):
            raise CliError(f"--connect {options.connect}: slurm:JOBID, as squeue shows it", Exit.USAGE)
        command = (*SRUN, f"--jobid={job}")
        return Target(Remote(where=f"job {job}", first=command, again=command, program=program), run, job)
    # HOST:PORT means TCP, and ssh takes the port in another way.
    if not begin and _PORT.fullmatch(place):
        raise CliError(
            f"--connect {place} needs --key FILE; for ssh on another port: --connect ssh://{place}",
            Exit.REFUSED,
        )
    if not _SSH.fullmatch(place):
        raise CliError(
            f"--connect {options.connect!r}: give [user@]host[/RUN], slurm:JOBID, or -- COMMAND", Exit.USAGE
        )
    host = f"{begin}{place}"
    remote = Remote(
        where=place,
        first=(*SSH, "--", host),
        # A later connection is made under the screen, where nobody can answer a question.
        again=(*SSH, "-oBatchMode=yes", "--", host),
        program=program,
        shell=True,
    )
    return Target(remote, run)


def _shorten_command(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) <= 40 else f"{text[:37]}..."


def show_remote(options: argparse.Namespace, mode: Mode) -> int:
    """Connect and show the run until it ends or the user quits. Raises CliError where that cannot be."""
    from ddptop.cli.settings import load_settings
    from ddptop.cli.show import show_source

    settings = load_settings(vars(options)).settings  # wrong ones are refused before anything is started
    if options.key is not None:
        return show_source(_over_tcp(options), mode, settings)
    return show_source(_connect_source(target_of(options), options.wait or 0.0), mode, settings)


def _over_tcp(options: argparse.Namespace) -> RemoteSource:
    """The run of the collector that listens there. Raises CliError: 4 where the key is not admitted."""
    import zmq

    from ddptop.host.folders import RunDirectoryError
    from ddptop.sources.live import RemoteSource, TcpLink
    from ddptop.transport.curve import ViewerKey

    where = options.connect or ""
    if not _PORT.fullmatch(where) or options.run is not None:
        raise CliError("--key goes with --connect HOST:PORT, where one run listens", Exit.USAGE)
    try:
        key = ViewerKey.read_file(Path(options.key))
        link = TcpLink(where, key)
    except (RunDirectoryError, ValueError) as error:
        raise CliError(
            f"{options.key}: {error}".removeprefix(f"{options.key}: {options.key}"), Exit.REFUSED
        ) from None
    except zmq.ZMQError as error:
        raise CliError(f"{where}: {error}") from None
    # At least TCP_S: a first connection over a slow line takes some seconds.
    deadline = time.monotonic() + max(TCP_S, options.wait or 0.0)
    while (trouble := link.why_broken()) is not None:
        late = time.monotonic() > deadline
        # A wrong key is refused at once, whatever --wait says.
        if link.is_refused or late:
            link.close()
            if link.is_refused:
                raise CliError(trouble, Exit.REFUSED)
            reason = why_not_reached(where)
            hint = "was the run started with --ddptop-listen?"
            raise CliError(f"{trouble} in {TCP_S:g} s: {reason}; {hint}" if reason else f"{trouble}; {hint}")
        link.wait_for_frame(50)
    return RemoteSource(where, where, link, partial(TcpLink, where, key))


def why_not_reached(where: str) -> str | None:
    """Why no connection to HOST:PORT is possible, as the system says; None: one is. libzmq does not tell."""
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _connect_source(target: Target, wait_s: float) -> RemoteSource:
    """The source, connected; waits so long for the run to start."""
    from ddptop.sources.live import RemoteSource
    from ddptop.sources.remote import RemoteError, RemoteLink

    deadline, announced = time.monotonic() + wait_s, False
    # A link of its own for each attempt: a connection that failed is not used again.
    while True:
        link = RemoteLink(target.remote, target.run)
        try:
            hello = link.connect_first(write_errors if sys.stderr.isatty() else None)
            # By its id from now on: a later run may have the same name.
            again = partial(RemoteLink, target.remote, hello.run_id)
            return RemoteSource(hello.name, target.remote.where, link, again)
        except RemoteError as error:
            link.close()
            # srun has started on any node of the job: the far end knows on which one the collector is.
            # Only once: the node is in the command then.
            if target.job is not None and error.host and error.host not in " ".join(target.remote.first):
                target = _on_node(target, error.host)
                continue
            # Only a run that is not there yet is waited for; anything else stays as it is.
            if error.code != Exit.NOT_FOUND or time.monotonic() >= deadline:
                raise CliError(str(error), _exit_for(error.code)) from None
            if not announced:
                note(f"waiting: {error}")
                announced = True
            time.sleep(WAIT_S)
        except BaseException:
            link.close()
            raise


def _on_node(target: Target, host: str) -> Target:
    """The target on the node where the collector of the job runs."""
    command = (*target.remote.first, f"--nodelist={host}")
    return target._replace(remote=replace(target.remote, first=command, again=command))


def _exit_for(code: int) -> Exit:
    return Exit(code) if code in (Exit.USAGE, Exit.NOT_FOUND, Exit.REFUSED) else Exit.FAILED


def write_errors(data: bytes) -> None:
    """What ssh prints while it asks the user."""
    text = data.decode(errors="replace").replace("\r", "")
    print_text(text, file=sys.stderr, end="", flush=True)
