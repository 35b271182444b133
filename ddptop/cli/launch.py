"""The `ddptop-run` command: torchrun, with the recorder around it.

It *is* torchrun: torch's own argument parser and `torch.distributed.run`, in this process. ddptop adds a
collector process beside it and an import hook in every Python that it starts. Where ddptop cannot work it
reports that in one line, and training runs as under torchrun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, TypeAlias

from ddptop.cli.errors import Exit, note
from ddptop.cli.launch_options import (
    USAGE,
    LaunchOptions,
    UsageError,
    abbreviate_others_only,
    add_options,
    help_text,
    own_script,
    refuse_misspelt,
    run_name,
    split_exec,
)
from ddptop.host.folders import read_only_root, run_roots
from ddptop.host.processes import fill_standard_streams
from ddptop.host.runs import starting_run
from ddptop.protocol.outlets import print_text

if TYPE_CHECKING:
    from ddptop.cli.run_over_hosts import RunOverHosts
    from ddptop.cli.watched_run import SharedRun, WatchedRun

    Run: TypeAlias = WatchedRun | SharedRun | RunOverHosts
    _Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | signal.Handlers

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


def hide_our_frames(error: BaseException) -> None:
    """Remove frames of this package from the tracebacks of an error and of its causes."""
    chain: list[BaseException | None] = [error]
    for link in chain:
        if link is None:
            continue
        link.__traceback__ = _without_ours(link.__traceback__)
        # Each once: an exception may be in its own context.
        chain += [before for before in (link.__cause__, link.__context__) if before not in chain]


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            entries.append(traceback)
        traceback = traceback.tb_next
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        entry.tb_next = following
    return entries[0] if entries else None


def main(argv: Sequence[str] | None = None) -> int:
    """Launch and return the exit code of the training."""
    # Before anything is opened: see there.
    fill_standard_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with starting_run() as starting:
            parts = split_exec(arguments)
            if parts is None:
                return _run_torchrun(arguments, starting)
            options, command = parts
            return _launch_watched(
                options, command, lambda run: _execute_command(command, run), starting, _begin_exec
            )
    except UsageError as mistake:
        note(str(mistake))
        return Exit.USAGE
    except KeyboardInterrupt as interrupt:
        hide_our_frames(interrupt)
        raise


@contextlib.contextmanager
def _ending_at_interrupt(starting: contextlib.ExitStack) -> Iterator[None]:
    """While torch is imported, Ctrl-C ends this process at once and without a traceback.

    Modules that torch imports catch a KeyboardInterrupt: the training then started all the same. The process
    ends as one that does not handle SIGINT, which a shell reports as 130.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # ignored, as of a job in the background
        return

    def end(number: int, _frame: FrameType | None) -> None:
        starting.close()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _run_torchrun(arguments: list[str], starting: contextlib.ExitStack) -> int:
    with _ending_at_interrupt(starting):
        from ddptop.training.torch_compat import why_unusable
        from ddptop.training.torch_compat.launcher import reporting_exits, reporting_rendezvous

        try:
            import torch
            import torch.distributed.run as torchrun
        except ModuleNotFoundError as error:
            # Something within torch is missing: not ours to explain.
            if error.name != "torch":
                raise
            if arguments[:1] in (["--help"], ["-h"]):
                print_text(help_text(None), end="")
            note(str(why_unusable("ddptop-run", None)))
            return Exit.FAILED
    # torch's own parser, so that every option of torchrun is there, also later ones.
    parser = torchrun.get_args_parser()
    parser.prog, parser.usage = "ddptop-run", USAGE
    parser.format_help = lambda: help_text(torchrun.get_args_parser())
    add_options(parser)
    abbreviate_others_only(parser)
    parsed, unknown = parser.parse_known_args(arguments)
    refuse_misspelt(unknown)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    problem = None if parsed.ddptop_off else why_unusable("ddptop-run", torch.__version__)
    if problem is not None:
        note(problem)
        return Exit.FAILED
    script = [parsed.training_script, *parsed.training_script_args]
    named = own_script(script) if parsed.no_python else script

    def launch(run: Run | None) -> int:
        # Not every kind of run takes all of these, and none is there if the run is not recorded.
        note_exits, note_signal = getattr(run, "note_exits", None), getattr(run, "note_signal", None)
        prepare_end = getattr(run, "prepare_end", None)
        note_rendezvous, note_meeting = (
            getattr(run, name, None) for name in ("note_rendezvous", "note_meeting")
        )
        try:
            with contextlib.ExitStack() as reporting:
                if note_exits is not None and note_signal is not None and prepare_end is not None:
                    reporting.enter_context(reporting_exits(note_exits, note_signal, prepare_end))
                if note_rendezvous is not None and note_meeting is not None:
                    reporting.enter_context(reporting_rendezvous(note_rendezvous, note_meeting))
                # Its own `main`, so that a traceback has its frames; the options have been parsed.
                torchrun.parse_args = lambda _: parsed
                torchrun.main()
        except Exception as error:  # noqa: BLE001 - printed as by torchrun, then the run is ended
            hide_our_frames(error)
            sys.excepthook(type(error), error, error.__traceback__)
            return 1
        return 0

    return _launch_watched(LaunchOptions.from_parsed(parsed), named, launch, starting, begin_torchrun)


def begin_torchrun(options: LaunchOptions, script: Sequence[str]) -> Run:
    if options.may_span_hosts:
        from ddptop.cli.run_over_hosts import RunOverHosts

        return RunOverHosts.begin_run(options, run_name(options, script), script)
    from ddptop.cli.watched_run import WatchedRun

    return WatchedRun.begin_run(options, run_name(options, script), script)


def _begin_exec(options: LaunchOptions, command: Sequence[str]) -> Run:
    """Begin a run of this launcher, or one that it shares with other launchers of this host."""
    from ddptop.cli.watched_run import SharedRun
    from ddptop.host.job_environment import shared_run_id

    shared, script = shared_run_id(), own_script(command)
    if shared is None:
        if is_torchrun_over_hosts(command):
            note("each host is recorded by itself; `ddptop-run` in place of torchrun makes one run of them")
        return begin_torchrun(options, script)
    return SharedRun.begin_run(shared, options, run_name(options, script), script)


def is_torchrun_over_hosts(command: Sequence[str]) -> bool:
    """Whether a command is torchrun's, for several hosts."""
    if not any(Path(word).name in ("torchrun", "torch.distributed.run") for word in command[:4]):
        return False
    # `--nnodes=2` and `--nnodes 2` alike.
    words = [part for word in command for part in word.split("=", 1)]
    numbers = [number for word, number in pairwise(words) if word == "--nnodes"]
    return numbers[-1:] not in ([], ["1"], ["1:1"])


def begin_if_possible(options: LaunchOptions, script: Sequence[str], begin: Callable[..., Run]) -> Run | None:
    """Begin the run. If that fails for any reason, print a line and return None: training runs without
    ddptop."""
    if options.off:
        # The ranks read it: their hook then does nothing.
        os.environ["DDPTOP"] = "0"
        return None
    # What `begin` sets for the ranks must not be left behind where it fails.
    before = dict(os.environ)
    try:
        read_only, root = read_only_root(), run_roots()[0]
        run = begin(options, script)
    except Exception as error:  # noqa: BLE001 - the training must start
        os.environ.clear()
        os.environ.update(before)
        os.environ["DDPTOP"] = "0"
        is_expected = isinstance(error, OSError) or type(error).__name__ == "RunDirectoryError"
        kind = "" if is_expected else f"{type(error).__name__}: "
        note(f"cannot record: {kind}{error}; running without it".replace("\n", " "))
        return None
    if read_only:
        note(f"{read_only} cannot be written: the run's folder is in {root}".replace("\n", " "))
    return run


def _launch_watched(
    options: LaunchOptions,
    script: Sequence[str],
    launch: Callable[[Run | None], int],
    starting: contextlib.ExitStack,
    begin: Callable[[LaunchOptions, Sequence[str]], Run],
) -> int:
    """Run `launch` with a collector beside it, where one can be started.

    `starting` is closed once viewers need not wait for the run's folder any more.
    """
    run = begin_if_possible(options, script, begin)
    # A run over hosts can be watched only after its launchers have met.
    close_when_started = getattr(run, "close_when_started", None)
    if close_when_started is None:
        starting.close()
    else:
        close_when_started(starting)
    # Where `launch` raises, the run has failed.
    code = 1
    try:
        code = launch(run)
    except SystemExit as exit:
        # As Python itself turns it into an exit code: a text is 1.
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        raise
    except KeyboardInterrupt:  # where torchrun has no handlers of its own yet
        if run is not None:
            run.note_signal(signal.SIGINT)
        raise
    finally:
        if run is not None:
            _end_run(run, code)
    return code


def _end_run(run: Run, code: int) -> None:
    try:
        with _first_signal_waits():
            run.end_run(code)
    except Exception as error:  # noqa: BLE001 - the exit code is the training's, whatever fails in ddptop
        note(f"the recording could not be ended: {error}")


@contextlib.contextmanager
def _first_signal_waits() -> Iterator[None]:
    """While a run is ended, which takes seconds at most, the first signal changes nothing: all has ended, and
    the recording shall say so. The second one is handled as before."""

    def pass_over(_number: int, _frame: FrameType | None) -> None:
        _set_handlers(before)

    before = _handlers_of(ENDING)
    _set_handlers({number: pass_over for number, handler in before.items() if handler != signal.SIG_IGN})
    try:
        yield
    finally:
        _set_handlers(before)


def _handlers_of(numbers: Iterable[int]) -> dict[int, _Handler]:
    """The handlers of these signals that were set from Python: no others can be set again."""
    handlers = ((number, signal.getsignal(number)) for number in numbers)
    return {number: handler for number, handler in handlers if handler is not None}


def _set_handlers(handlers: Mapping[int, _Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


SI_KERNEL = 0x80
"""`si_code` of a signal that the kernel sent, as for a key: it went to the terminal's foreground group."""

KEYS = (signal.SIGINT, signal.SIGQUIT)
"""Ctrl-C and the key that quits."""

ENDING = (*KEYS, signal.SIGTERM, signal.SIGHUP)

FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)

CHECK_S = 1.0
"""How often the command is looked for where its end was not told: another thread may take a signal."""


def _execute_command(command: Sequence[str], run: Run | None) -> int:
    """Run a command as a shell would: it gets its signals itself. Returns its exit code.

    A key reaches the command directly; what is sent to this process alone is handed on.
    """
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []
    """Signals that came before the command had begun."""

    def forward(number: int, *, has_it: bool) -> None:
        if process is None:
            early.append(number)
            return
        if run is not None and number in ENDING:
            run.note_signal(number)
            if not has_it:
                run.prepare_end()
        if not has_it:
            with contextlib.suppress(PermissionError):  # of another user, as of sudo
                process.send_signal(number)

    def on_signal(number: int, _frame: FrameType | None) -> None:  # another thread got it: by whom is unknown
        forward(number, has_it=number in KEYS and _in_foreground())

    before = _handlers_of(FORWARDED)
    # What is ignored the command shall inherit.
    _set_handlers({number: on_signal for number, handler in before.items() if handler != signal.SIG_IGN})
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        _set_handlers(before)
        note(f"{command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126
    _set_handlers(dict.fromkeys(before, on_signal))
    for early_number in early:
        forward(early_number, has_it=False)
    # Unlike a handler, waiting for signals tells who sent one.
    awaited = (*FORWARDED, signal.SIGCHLD)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        while process.poll() is None:
            received = signal.sigtimedwait(awaited, CHECK_S)
            if received is not None and received.si_signo != signal.SIGCHLD:
                is_key = received.si_signo in KEYS and received.si_code == SI_KERNEL
                forward(received.si_signo, has_it=is_key)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # Signals that come from now on are for this process: the command has ended.
        _set_handlers(before)
    # As a shell: 128 and the number of the signal that ended it.
    code = process.wait()
    return 128 - code if code < 0 else code


def _in_foreground() -> bool:
    """Whether a key pressed in the terminal reaches this process and its children alike."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # no terminal
        return False


if __name__ == "__main__":
    sys.exit(main())
