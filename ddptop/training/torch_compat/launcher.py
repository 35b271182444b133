"""torchrun: how ranks exited, and when the hosts have met, from the process that starts the ranks: ours.

In `torch.distributed.elastic.multiprocessing.api`, `SubprocessContext` holds each rank's `Popen` in
`subprocess_handlers[local_rank].proc`, and its `close` ends the ranks that are left when one has failed.
Hosts meet in `next_rendezvous` of the handler that `torch.distributed.elastic.rendezvous.registry` makes.
Its `_state_holder.state` has those that have come (c10d); the handler of the static rendezvous has none.
Where that is otherwise, nothing is reported and nothing else changes. Checked on torch 2.6, 2.13 and 2.15;
the rendezvous was run on the latter two.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from signal import SIGABRT
from typing import Any, TypeAlias

from ddptop.host.address_exchange import Job
from ddptop.host.meeting import OpenRendezvous
from ddptop.training.torch_compat.job_store import address_of

Report: TypeAlias = "Callable[[Sequence[tuple[int, int]]], None]"
"""Takes pids with exit codes, negative for a signal, as `subprocess` gives them."""

ReportSignal: TypeAlias = "Callable[[int], None]"


@contextmanager
def reporting_exits(
    report: Report,
    report_signal: ReportSignal = lambda number: None,
    prepare_end: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Inside the block, report how ranks exited: the first before the launcher ends the others.

    Also the number of a signal for which the launcher ends them, unless it does so already, because a rank
    has failed. `prepare_end` is called right before it ends those that run.

    Where it aborted, the others have a moment to fail themselves: gloo aborts a rank whose tensor is smaller
    than another's, and only the error of the others has the sizes.
    """
    try:
        from torch.distributed.elastic.multiprocessing.api import SubprocessContext
    except ImportError:
        yield
        return
    original = SubprocessContext.close

    @functools.wraps(original)
    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The launcher calls `close` while it handles the exception that its signal handler has raised.
        number = getattr(sys.exc_info()[1], "sigval", None)
        if isinstance(number, int) and not getattr(self, "_ddptop_closing", False):
            report_signal(number)
        self._ddptop_closing = True
        _report_exited(self, report)
        try:
            _await_others_of_aborted(self)
            if _any_runs(self):
                prepare_end()
        finally:  # also where the launcher's signal handlers raise an exception meanwhile
            try:
                closed = original(self, *args, **kwargs)
            finally:
                _report_exited(self, report)
        self._ddptop_closing = False
        return closed

    SubprocessContext.close = close
    try:
        yield
    finally:
        SubprocessContext.close = original


def _report_exited(context: Any, report: Report) -> None:
    """Report each process once. No broad `except`: the launcher's signal handlers raise exceptions."""
    try:
        # Kept with torch's object, of which each start of the ranks has one.
        reported = context.__dict__.setdefault("_ddptop_reported", set())
        processes = [handler.proc for handler in context.subprocess_handlers.values()]
        exited = [
            (process.pid, process.returncode)
            for process in processes
            if process.returncode is not None and process.pid not in reported
        ]
        if exited:
            reported.update(pid for pid, _ in exited)
            report(exited)
    except (AttributeError, TypeError, OSError):
        return


def _any_runs(context: Any) -> bool:
    try:
        return any(handler.proc.poll() is None for handler in context.subprocess_handlers.values())
    except (AttributeError, TypeError, OSError):
        return False


FAIL_S = 1.0
"""Within which a rank fails that has lost the connection to one that aborted."""


def _await_others_of_aborted(context: Any) -> None:
    """Where a rank aborted, wait until the others have exited, too, FAIL_S at most."""
    try:
        processes = [handler.proc for handler in context.subprocess_handlers.values()]
        aborted = any(process.returncode == -SIGABRT for process in processes)
        end = time.monotonic() + FAIL_S
        while aborted and time.monotonic() < end and any(process.poll() is None for process in processes):
            time.sleep(0.02)
    except (AttributeError, TypeError, OSError):
        return


@contextmanager
def reporting_rendezvous(
    report: Callable[[Job], None], report_waiting: Callable[[OpenRendezvous], None] = lambda meeting: None
) -> Iterator[None]:
    """Inside the block, report each rendezvous that this launcher has completed. `report` returns at once.

    `report_waiting` is called once a second, in a thread, as long as the first one is not complete.
    """
    try:
        from torch.distributed.elastic.rendezvous import registry

        original = registry.get_rendezvous_handler
    except (ImportError, AttributeError):
        yield
        return

    @functools.wraps(original)
    def get_rendezvous_handler(*args: Any, **kwargs: Any) -> Any:
        # Already this waits where the host of the endpoint does not answer.
        watch = _MeetingWatch((*args, *kwargs.values())[0], report_waiting)
        try:
            handler = watch.handler = original(*args, **kwargs)
        except BaseException:
            watch.end()
            raise
        next_rendezvous = handler.next_rendezvous

        @functools.wraps(next_rendezvous)
        def reporting(*args: Any, **kwargs: Any) -> Any:
            try:
                info = next_rendezvous(*args, **kwargs)
            finally:
                watch.end()
            _count_rendezvous(handler)
            job = _job_of(handler, info)
            if job is not None:
                report(job)
            return info

        handler.next_rendezvous = reporting
        return handler

    registry.get_rendezvous_handler = get_rendezvous_handler
    try:
        yield
    finally:
        registry.get_rendezvous_handler = original


LOOK_S = 1.0
"""Time between two looks at who has come. Hosts that are started together have met before the first one."""

CONNECT_S = 2.0
"""Longest attempt to connect to the endpoint."""


class _MeetingWatch:
    """A thread that reports which hosts have come, until it is ended."""

    def __init__(self, parameters: Any, report: Callable[[OpenRendezvous], None]) -> None:
        """`parameters`: torch's `RendezvousParameters`."""
        self.handler: Any = None
        """torch's handler of the rendezvous, once it is made."""
        self._parameters = parameters
        self._report = report
        self._reached = False
        self._ended = threading.Event()
        with suppress(RuntimeError):  # no thread can be started: nothing is reported
            threading.Thread(target=self._run_watch, name="ddptop-meeting", daemon=True).start()

    def end(self) -> None:
        """Report nothing from now on, unless a report is being made. Returns at once."""
        self._ended.set()

    def _run_watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            # Its state may change while it is read; a backend of someone else's may have none.
            with suppress(
                ImportError, AttributeError, KeyError, TypeError, ValueError, RuntimeError, OSError
            ):
                meeting = self._look()
                if not self._ended.is_set():
                    self._report(meeting)

    def _look(self) -> OpenRendezvous:
        parameters, handler = self._parameters, self.handler
        state = None if handler is None else getattr(getattr(handler, "_state_holder", None), "state", None)
        come = () if state is None else sorted(node.addr for node in {*state.participants, *state.wait_list})
        self._reached = self._reached or bool(come) or _answers(parameters.endpoint)
        return OpenRendezvous(
            str(parameters.endpoint),
            int(parameters.min_nodes),
            int(parameters.max_nodes),
            self._reached,
            tuple(map(str, come)),
        )


def _answers(endpoint: str) -> bool:
    """Whether a connection to HOST:PORT is possible."""
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    try:
        # The port of the c10d rendezvous where none is given.
        socket.create_connection(parse_rendezvous_endpoint(endpoint, 29400), CONNECT_S).close()
    except OSError:
        return False
    return True


def _count_rendezvous(handler: Any) -> None:
    """Give the ranks that start now the number of the rendezvous, which is the same on all hosts.

    torchrun counts only the restarts that failures on its own host caused, so that its number differs from
    host to host where a host leaves or comes, or the ranks of one fail.
    """
    try:
        number = handler._state_holder.state.round
    except AttributeError:  # the static rendezvous: hosts neither leave nor come
        return
    if isinstance(number, int) and number >= 0:
        os.environ["DDPTOP_RENDEZVOUS"] = str(number)


def _job_of(handler: Any, info: Any) -> Job | None:
    """The job by the address of the rendezvous' store, which elastic restarts keep; by that of the ranks'
    store where the first is no TCPStore. None: it cannot be read."""
    try:
        bootstrap = info.bootstrap_store_info
        host, port = address_of(info.store) or (bootstrap.master_addr, bootstrap.master_port)
        return Job(str(handler.get_run_id()), str(host), int(port), first=info.rank == 0)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None
