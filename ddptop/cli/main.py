"""The `ddptop` command: find the subcommand, run it, turn every failure into a line and an exit code."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from ddptop.cli import first_picture
from ddptop.cli.commands import COMMANDS, LOOK, Command
from ddptop.cli.commands.base import VALUE_OPTIONS
from ddptop.cli.commands.completion import ASKED, answer_shell
from ddptop.cli.errors import CliError, Exit, note
from ddptop.cli.find import OTHER_WORDS
from ddptop.host.processes import fill_standard_streams
from ddptop.sources.threads import ENDING_SIGNALS, leave_process


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ddptop` with these arguments (by default the process's own) and return the exit code."""
    fill_standard_streams()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed when Python started
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    # One thread works at a time; OpenBLAS would start one for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        # A name that the terminal's encoding cannot show must not end the command.
        reconfigure(errors="backslashreplace")
    if "TEXTUAL_DRIVER" in os.environ:
        from ddptop.cli.web import end_with_server, in_browser

        if in_browser():
            end_with_server()
    if ASKED in os.environ:
        answer_shell(choose_command, COMMANDS)
    try:
        with _ended_by_signals():
            code = _run_words(list(sys.argv[1:] if argv is None else argv))
    except SystemExit as end:
        if argv is None:
            _discard_unwritten()
            gc.freeze()
            if isinstance(end.code, int):
                leave_process(end.code)
        raise
    if argv is None:  # the process ends: it need not look for cycles in all that a report has read
        _discard_unwritten()
        gc.freeze()
        leave_process(code)
    return code


def _discard_unwritten() -> None:
    """Let Python end with our exit code also where a stream cannot be written any more: a terminal that is
    gone. It would end with 120 otherwise."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except ValueError:  # it is closed
            pass
        except OSError:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run_words(argv: list[str]) -> int:
    try:
        command, words = choose_command(argv)
        try:
            code = command.run(command.parse(words))
        finally:
            first_picture.remove_first_page()
        sys.stdout.flush()
        return code
    except CliError as error:
        return _note_error(str(error), error.code)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) is done. Python flushes again at exit: not into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except PermissionError as error:
        return _note_error(f"{_failed_file(error)}: permission denied", Exit.REFUSED)
    except OSError as error:
        return _note_error(f"{_failed_file(error)}: {error.strerror or error}", Exit.FAILED)
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        return _note_error("no thread can be started (ulimit -u, or a container's limit)", Exit.FAILED)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """In the block, ENDING_SIGNALS end the command with 128 + their number, and what it has started too.

    The next one is ignored, so that the end is not interrupted, as is one that was ignored before (nohup).
    SIGINT raises KeyboardInterrupt, as before, and also ends the command where an import makes another error
    of it.
    """
    # Python handles signals on the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    # None is a handler of C: Python could not put it back.
    handled = [number for number in before if before[number] not in (signal.SIG_IGN, None)]
    hook_before = sys.unraisablehook
    received: list[int] = []

    def leave(number: int, _frame: FrameType | None) -> None:
        for handled_number in handled:
            signal.signal(handled_number, signal.SIG_IGN)
        received.append(number)
        raise SystemExit(128 + number)

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.default_int_handler(number, frame)

    def handle() -> None:
        for number in handled:
            signal.signal(number, leave)

    def note_dropped(dropped: sys.UnraisableHookArgs) -> None:
        """Python drops what a handler raises within a destructor or a callback of a weak reference, such as
        those of an import: the signal is sent once more, when that is over."""
        error = dropped.exc_value
        if isinstance(error, KeyboardInterrupt):
            _raise_soon(signal.SIGINT)
        elif isinstance(error, SystemExit) and isinstance(error.code, int):
            handle()
            _raise_soon(error.code - 128)
        else:
            hook_before(dropped)

    handle()
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:
        signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = note_dropped
    try:
        yield
    except Exception:
        if received:  # numpy's import makes an ImportError of what a handler raises
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        sys.unraisablehook = hook_before
        for number in handled:
            signal.signal(number, before[number])
        if is_interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise_soon(number: int) -> None:
    def raise_signal() -> None:
        time.sleep(0.01)
        os.kill(os.getpid(), number)

    # A `threading.Thread` is waited for until it runs: on a busy machine the signal would come in this wait,
    # and be dropped again.
    _thread.start_new_thread(raise_signal, ())


_WITHOUT_FILE = "it shows live runs; run the command there (ssh HOST ddptop ...), or copy the recording"


def choose_command(words: list[str]) -> tuple[Command, list[str]]:
    """The subcommand and its arguments: the first word that is no option nor the value of one.

    Any other first word is the name of a run; after `--` it is one even if it is called like a subcommand.
    """
    words = _join_sort_orders(words)
    named = {command.name: command for command in COMMANDS}
    value_follows = False
    for place, word in enumerate(words):
        if word == "--":
            break
        if word.startswith("-"):
            value_follows = word in VALUE_OPTIONS
        elif value_follows:
            value_follows = False
        elif word in OTHER_WORDS and len(words) > place + 1 and not words[place + 1].startswith("-"):
            raise CliError(f"there is no command {word}: {OTHER_WORDS[word]}", Exit.USAGE)
        elif word in named:
            if "--connect" in words:
                raise CliError(f"{word} does not work over --connect: {_WITHOUT_FILE}", Exit.USAGE)
            return named[word], words[:place] + words[place + 1 :]
        else:
            break
    return LOOK, words


def _join_sort_orders(words: list[str]) -> list[str]:
    """`--sort -late` as `--sort=-late`: argparse takes a word with a dash for an option of its own."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == "--sort" and word.startswith("-") and not word.startswith("--"):
            joined[-1] = f"--sort={word}"
        else:
            joined.append(word)
    return joined


def _note_error(line: str, code: Exit) -> int:
    note(line)
    return code


def _failed_file(error: OSError) -> str:
    return str(error.filename) if error.filename else "cannot go on"


if __name__ == "__main__":
    sys.exit(main())
