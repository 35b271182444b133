"""What a rank reports that fails before its first DDP model: an import, the dataset, `init_process_group`.

There is no session yet, and perhaps no torch. The process leaves a file in the run's folder as it exits
(`ddptop/host/early_failures.py`). Importing this module costs next to nothing.
"""

from __future__ import annotations

import atexit
import os
import sys

from ddptop.training import start_report
from ddptop.training.guard import guard


def watch_exit() -> None:
    """Have a failure of this process reported, if it is a rank's own. Called as Python starts."""
    place = _rank_place()
    # A process that a rank has started has inherited RANK, but is not the rank.
    if place and os.environ.get(start_report.RANK_PROCESS, "").startswith(f"{place} "):
        return
    if place:
        os.environ[start_report.RANK_PROCESS] = f"{place} {os.getpid()}"
    atexit.register(_report_failure, os.getpid())


def watch_spawned() -> None:
    """As `watch_exit`, for a rank that multiprocessing has started and that leaves by `os._exit`. Called when
    it makes its process group."""
    if "multiprocessing.process" in sys.modules and _is_child():
        import multiprocessing.util

        multiprocessing.util.Finalize(None, _report_failure, (os.getpid(),), exitpriority=100)


def is_ranks_own() -> bool:
    """Whether this process is the one that the launcher has started as a rank, by `watch_exit`."""
    return os.environ.get(start_report.RANK_PROCESS) == f"{_rank_place()} {os.getpid()}"


def _is_child() -> bool:
    import multiprocessing

    return multiprocessing.parent_process() is not None


def _rank_place() -> str:
    """The rank's place in its job by the launcher's variables; empty: it has none."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "DDPTOP_RUN_ID")
    return "/".join(os.environ.get(name, "") for name in names) if "RANK" in os.environ else ""


def _report_failure(pid: int) -> None:
    """Leave the file, where process `pid` fails and has not reported. Never raises."""
    try:
        session_began = "ddptop.training.session" in sys.modules
        # A session reports a failure itself, and a forked child is no rank.
        if os.getpid() == pid and not session_began and not start_report.exit_is_reported:
            _leave_failure()
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)
    except KeyboardInterrupt:  # only our own file was written
        pass


def _leave_failure() -> None:
    # Imported now: a rank that ends well needs none of it.
    from dataclasses import replace
    from pathlib import Path

    from ddptop.host.early_failures import leave_failure
    from ddptop.protocol.messages import FINISHED
    from ddptop.training.exit import exit_reason
    from ddptop.training.hello import make_hello

    reason, directory, numbers = exit_reason(), os.environ.get("DDPTOP_RUN_DIR"), _rank_numbers()
    if reason.reason == FINISHED or not directory or numbers is None:
        return
    rank, world_size, backend = numbers
    hello = replace(make_hello(rank, world_size), backend=backend)
    leave_failure(Path(directory), hello, reason.as_evidence(hello.monotonic_ns))


def _rank_numbers() -> tuple[int, int, str] | None:
    """Rank, world size and backend, by the process group or the launcher's variables; None: it is no rank."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), str(dist.get_backend())
    rank, world_size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not (rank.isdecimal() and world_size.isdecimal()) or int(rank) >= int(world_size):
        return None
    return int(rank), int(world_size), ""
