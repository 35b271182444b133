"""`ddptop.spawn()`: ranks as processes of this script, as `torch.multiprocessing.spawn` starts them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from ddptop.training.ddp import teardown
from ddptop.training.ddp.placement import Placement, refuse_while_importing

GRACE_S = 5.0
"""After the first failure the other ranks have this long to end by themselves, before they are terminated."""


class SpawnedRanks:
    """The processes that `spawn(join=False)` has started."""

    def __init__(self, context: Any, reserved: contextlib.ExitStack, failures: Path) -> None:
        self._context = context
        self._reserved = reserved
        self._failures = failures

    def pids(self) -> list[int]:
        """Their process ids, in rank order."""
        return [int(pid) for pid in self._context.pids()]

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the ranks, at most `timeout` seconds for the next one to end; True when all have ended.

        Raises:
            ProcessRaisedException: torch's, with the traceback of the rank that failed first.
            ProcessExitedException: torch's, for a rank that was killed or has exited.
        """
        try:
            done = bool(self._context.join(timeout, GRACE_S))
        except mp.ProcessRaisedException as error:
            # Of several failures the one that torch reports need not be the first.
            first = self._killed_rank_error() or self._failed_first()
            self._reserved.close()
            raise first or error from None
        except mp.ProcessExitedException:
            self._reserved.close()
            raise
        if done:
            self._reserved.close()
        return done

    def _killed_rank_error(self) -> Exception | None:
        """The error of a rank ended by a signal, other than the SIGTERM that ends the remaining ranks."""
        for rank, process in enumerate(self._context.processes):
            code = process.exitcode
            if code is not None and code < 0 and code != -signal.SIGTERM:
                name = signal.Signals(-code).name
                killed: Exception = mp.ProcessExitedException(
                    f"process {rank} terminated with signal {name}", rank, process.pid, code, name
                )
                return killed
        return None

    def _failed_first(self) -> Exception | None:
        """The error of the rank that failed first, by the times of their failures."""
        failures = [
            (teardown.read_failure(self._failures / str(rank)), rank) for rank in range(len(self.pids()))
        ]
        failed = [(failure, rank) for failure, rank in failures if failure is not None]
        if not failed:
            return None
        # A failure begins with its moment, so that the least is the first one.
        failure, rank = min(failed)
        if failure.exit_code is not None:
            message = f"process {rank} terminated with exit code {failure.exit_code}"
            exited: Exception = mp.ProcessExitedException(message, rank, self.pids()[rank], failure.exit_code)
            return exited
        message = f"\n\n-- Process {rank} terminated with the following error:\n{failure.traceback}"
        raised: Exception = mp.ProcessRaisedException(message, rank, self.pids()[rank])
        return raised


def spawn(
    fn: Callable[..., object],
    world_size: int,
    args: tuple[Any, ...] = (),
    *,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> SpawnedRanks | None:
    """Run `fn(rank, *args)` in `world_size` processes on this machine, and wait for them.

    Each has the environment that torchrun would give it, on a port that is free, so that `ddptop.setup()`
    needs no arguments in `fn`. A script that spawns must do so below `if __name__ == "__main__":`. Unless
    OMP_NUM_THREADS is set, the machine's cores are divided among the ranks.

    Args:
        fn: a function at the top level of a module; called with the rank first.
        world_size: number of ranks.
        args: what follows the rank.
        join: False: return at once, with something to `join()` later.
        daemon: end the ranks with this process.
        start_method: `spawn`, `fork` or `forkserver`; a fork is not safe once CUDA is in use.

    Raises:
        RuntimeError: under a torchrun of several processes, each of which would spawn; in a script that
            spawns while one of its ranks imports it.
        ProcessRaisedException: torch's, where a rank has raised, with its traceback; of several, the one that
            failed first. The others are ended.
        ProcessExitedException: torch's, for a rank that was killed or has exited.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, not {world_size}")
    refuse_while_importing("ddptop.spawn()")
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise RuntimeError(
            f"torchrun has started {os.environ['WORLD_SIZE']} processes of this script, and each would spawn "
            f"{world_size} ranks of its own. Start it by `python`, or by `ddptop-run --ddptop-exec python`"
        )
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(contextlib.closing(_reserve_port())).getsockname()[1]
        failures = Path(tempfile.mkdtemp(prefix="ddptop-spawn-"))
        stack.callback(shutil.rmtree, failures, ignore_errors=True)
        # The port stays reserved until all ranks have ended: no other job gets it between two of them.
        context = mp.start_processes(
            _run_rank,
            args=(fn, world_size, port, failures, args),
            nprocs=world_size,
            join=False,
            daemon=daemon,
            start_method=start_method,
        )
        ranks = SpawnedRanks(context, stack.pop_all(), failures)
    if not join:
        return ranks
    while not ranks.join():
        pass
    return None


def _run_rank(
    rank: int, fn: Callable[..., object], world_size: int, port: int, failures: Path, args: tuple[Any, ...]
) -> None:
    """In the child."""
    # Of a launcher above this process: its store is not for this group.
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    placement = Placement(rank, world_size, rank, world_size, "127.0.0.1", port, "torchrun")
    os.environ.update(placement.launcher_variables())
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(max(1, torch.get_num_threads() // world_size))
    teardown.write_failure_to(failures / str(rank))
    try:
        fn(rank, *args)
    except (Exception, SystemExit) as error:
        teardown.note_failure(error)
        raise


def _reserve_port() -> socket.socket:
    """A bound socket that does not listen: no other process gets its port, and rank 0 can still serve on it.

    Linux lets two sockets with SO_REUSEADDR bind to one port as long as only one of them listens.
    """
    reserved = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved
