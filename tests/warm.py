"""Python processes that begin with torch imported: forked from a template instead of started anew.

`import torch` takes 1.3 s of CPU time and the first DDP model another 1.2 s (torch imports its compiler
then), in the launcher and in each rank: most of what the tests would take. `WarmPopen` starts `python
SCRIPT` and `python -m MODULE` as forks of a process that has imported both once and runs no thread. All else
is as after an exec: process id, parent, session, environment, descriptors, `sys.path`, `sitecustomize`,
`__main__`, exit code. A launcher forks its ranks in the same way. What the template has imported is not freed
at the end of a fork, which would take 1.3 s of CPU time. Triton would print what is not freed: the template
goes without, and a fork that imports it frees all. What needs a true start or end passes `cold=True`; what
cannot be imitated (other variables of Python or torch, options, `preexec_fn`) starts cold by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import itertools
import os
import pickle
import platform
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

MODULES = ("torch.distributed.run", "ddptop.cli.launch", "ddptop.cli.demo", "ddptop.training.demo")
"""Those that are worth it: they import torch, or start processes that do."""

OURS = ("ddptop.collector", "ddptop.agent", "ddptop.cli.main", "ddptop.cli.launch")
"""Those whose own modules take long to import: their forks begin with these, all other forks without."""

IN_HASTE = str(Path(__file__).with_name("in_haste.py"))
"""A program that runs one of these."""

THEIR_MODULES = (
    "ddptop.collector.service",
    "ddptop.agent.service",
    "ddptop.cli.show",
    "ddptop.cli.main",
    "ddptop.cli.watched_run",
    "encodings.idna",
)

OPTIONS = ("-u", "-B")
HANDLED = (
    *("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "PYTHONWARNINGS", "PYTHONIOENCODING"),
    "PYTHONDONTWRITEBYTECODE",
)
SET_BY_OTHERS = (
    *("TORCHELASTIC_", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_FR_BUFFER_SIZE"),
    "TORCHINDUCTOR_CACHE_DIR",
)
"""By launchers, and by a compiler in the process of a test: nothing of it is read when torch is loaded."""
AT_START = ("PYTHON", "TORCH", "LC_", "LANG", "LD_", "MALLOC_", "KMP_", "MKL_", "CUDA_")
"""Variables that Python or torch read only once, when they are loaded."""

NAMESPACES = ("net", "uts", "pid", "time", "mnt")
"""Those of a host of the tests (`tests/hosts/namespaces.py`)."""

CLONE_PARENT = 0x8000
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
LARGEST_REQUEST = 1 << 20
ABOVE_ALL_TARGETS = 500
FREED = {"torch.distributed.distributed_c10d"}
"""Modules that the template has imported and a fork frees at its end: process groups are in this one."""

ROOM = 1 << 14
"""Bytes for what `/proc` shows of a fork's command line, and of its environment."""


class Template:
    """A process that forks on request; the forks are children of the process that requests them."""

    def __init__(self, connection: socket.socket, started_with: Mapping[str, str]) -> None:
        self._connection = connection
        self._started_with = _read_at_start(started_with)
        self._lock = threading.Lock()

    def start(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        fds: Mapping[int, int],
        session: bool,
        inside: int = 0,
    ) -> int | None:
        """The process id of the new process; None where it cannot be imitated, and is to be started cold.

        `fds`: descriptors of this process by the numbers that they are to have in the new one. `inside`: the
        process whose namespaces it is to have, as by `nsenter`; 0: those of the template.
        """
        if not _worth_it(args, cwd) or _read_at_start(env) != self._started_with:
            return None
        request = pickle.dumps((list(args), dict(env), cwd, list(fds), session, inside))
        try:
            # A launcher starts its collector in a thread: no thread is to read the answer for another one.
            with self._lock:
                socket.send_fds(self._connection, [request], list(fds.values()))
                return int(self._connection.recv(64)) or None
        except (OSError, ValueError):
            return None


def _worth_it(args: Sequence[str], cwd: str) -> bool:
    if CLONE is None or args[0] != sys.executable:
        return False
    words = _without_options(args)
    if words[:1] == ["-m"]:
        return words[1] in MODULES + OURS or words[1].partition(".")[0] not in ("ddptop", "torch")
    if words[:1] == ["-c"]:
        return "multiprocessing.spawn" in words[1]
    return bool(words) and words[0].endswith(".py") and (Path(cwd) / words[0]).is_file()


def _without_options(args: Sequence[str]) -> list[str]:
    """What follows `python` and those options that are imitated."""
    return list(itertools.dropwhile(lambda word: word in OPTIONS, args[1:]))


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if name.startswith(AT_START) and name not in HANDLED and not name.startswith(SET_BY_OTHERS)
    }


_template: Template | None = None


class WarmPopen(subprocess.Popen[str]):
    """`subprocess.Popen` that forks the template of this process where that is as good."""

    def _execute_child(self, *of_popen: Any) -> None:
        if not _start_warm(self, of_popen):
            super()._execute_child(*of_popen)  # type: ignore[misc]


class WarmInside(subprocess.Popen[str]):
    """A command in the namespaces of a process: `nsenter` in that of `cold`, the whole command line."""

    def __init__(self, command: Sequence[str], inside: int, cold: Sequence[str], **options: Any) -> None:
        self._warm = ([os.fspath(word) for word in command], inside)
        super().__init__(cold, **options)

    def _execute_child(self, *of_popen: Any) -> None:
        command, inside = self._warm
        if not _start_warm(self, (command, *of_popen[1:]), inside):
            super()._execute_child(*of_popen)  # type: ignore[misc]


def _start_warm(popen: Any, of_popen: Sequence[Any], inside: int = 0) -> bool:
    """Whether it could be; `of_popen`: what `Popen._execute_child` is called with, in its order."""
    args, executable, preexec_fn, _, pass_fds, cwd, env, _, _, shell = of_popen[:10]
    if _template is None or executable or preexec_fn or shell or isinstance(args, (str, bytes)):
        return False
    pipes = of_popen[10:16]
    ours = (pipes[0], pipes[3], pipes[5])
    fds = {number: fd if fd >= 0 else number for number, fd in enumerate(ours)}
    fds |= {fd: fd for fd in pass_fds}
    session = bool(of_popen[21])
    words = [os.fspath(word) for word in args]
    pid = _template.start(
        words, os.environ if env is None else env, os.fspath(cwd or Path.cwd()), fds, session, inside
    )
    if pid is None:
        return False
    popen.pid = pid
    popen._child_created = True
    popen._close_pipe_fds(*pipes)
    return True


def begin() -> None:
    """Start the template of this process; it ends with this process."""
    global _template
    if CLONE is None or _template is not None:
        return
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # OpenBLAS starts a thread per core when numpy is imported; all tests run with one thread.
    env = {name: value for name, value in os.environ.items() if name not in HANDLED}
    env |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with its:
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                TEMPLATE,
                str(Path(__file__).parent.parent),
                str(its.fileno()),
                " " * ROOM,
            ],
            env=env | {"ROOM": " " * ROOM},
            pass_fds=[its.fileno()],
            start_new_session=True,
        )
    _template = Template(ours, env)


TEMPLATE = """
import sys
root, connection = sys.argv[1:3]
sys.path[:] = sys.path[1:]
sys.path.append(root)
from tests import warm
del sys.path[len(sys.path) - 1 - sys.path[::-1].index(root)]  # an editable install has it there too
warm.serve(int(connection))
"""


def serve(fd: int) -> NoReturn:
    """Import what takes long, then fork on request; forks leave by SystemExit."""
    before = set(sys.modules)
    imported: dict[str, object] = {}
    atexit.register(_keep_imported, imported)  # before torch's own: the last to be called
    sys.modules["triton"] = None  # type: ignore[assignment]  # not found: only a GPU needs it
    # The last is imported by the first DDP model.
    for name in (*THEIR_MODULES, "torch.distributed.run", "torch._dynamo"):
        importlib.import_module(name)
    del sys.modules["triton"]
    _name_methods_quickly()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ddptop", "tests")]:
        _of_ours[name] = sys.modules.pop(name)
    imported |= {name: module for name, module in sys.modules.items() if name not in before | FREED}
    one_thread = len(list(Path("/proc/self/task").iterdir())) == 1
    connection = socket.socket(fileno=fd)
    _wait_and_fork(connection if one_thread else _refuse(connection))


def _name_methods_quickly() -> None:
    """For the name of a caller, torch's rendezvous reads the source of all: most of what a launcher takes."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    dynamic_rendezvous.get_method_name = method_name


def method_name(depth: int = 2) -> str:
    """The name of the function that called the caller, as torch's `get_method_name` has it."""
    return sys._getframe(depth).f_code.co_name


_of_ours: dict[str, ModuleType] = {}
"""Modules of ddptop that the template has imported."""


def _keep_imported(imported: dict[str, object]) -> None:
    """At the end of a fork: Python is not to take these modules apart, nor to free them."""
    if _has_triton():
        gc.unfreeze()
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(imported))
    for name, module in imported.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


def _skip_static_destructors() -> None:
    """At the end of a fork, past Python's own end: C++ is not to take its static objects apart."""
    libc = ctypes.PyDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)  # called before the former, as fflush(NULL)


def _keep_operators() -> None:
    """Torch's own, some 170 libraries, are not to be taken apart one by one: a third of the end of a fork.

    Not in a rank: without this pause, torch aborts more often while a process group of the script ends.
    """
    for library in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        library.atexit = False


class _End:
    """Ends a fork once `sys` is taken apart, the last module.

    Python's own end then writes to every interned string, and so copies much of what a fork shares with its
    template. `exit` still flushes what C has buffered.
    """

    def __init__(self, code: int) -> None:
        self._code, self._exit, self._streams = code, ctypes.PyDLL(None).exit, (sys.stdout, sys.stderr)

    def __del__(self) -> None:
        for stream in self._streams:
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):  # closed, or full: Python's exit code says so
                return
        self._exit(self._code)


def _end_with(code: object) -> None:
    """Once Python ends with this code of `sys.exit`; one that is no number is left to Python."""
    if not _has_triton() and (code is None or isinstance(code, int)):
        sys.of_the_template = _End(code or 0)  # type: ignore[attr-defined]


def _has_triton() -> bool:
    """Triton prints what is not freed at the end."""
    return any(name.startswith("triton._C") for name in sys.modules)


def _refuse(connection: socket.socket) -> NoReturn:
    while connection.recv(LARGEST_REQUEST):
        connection.send(b"0")
    os._exit(0)


def _wait_and_fork(connection: socket.socket) -> NoReturn:
    """Until the process that requests forks is gone."""
    gc.collect()
    gc.freeze()
    while True:
        data, fds, *_ = socket.recv_fds(connection, LARGEST_REQUEST, 64)
        if not data:
            os._exit(0)
        pid = _clone()
        if pid == 0:
            connection.close()
            args, env, cwd, targets, session, inside = pickle.loads(data)
            if inside:
                _enter(inside)
            _become(args, env, cwd, dict(zip(targets, fds, strict=True)), session)
        for fd in fds:
            os.close(fd)
        connection.send(str(pid).encode())


def _clone() -> int:
    """`os.fork` of a child of this process's parent."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None)
    libc.pthread_self.restype = ctypes.c_void_p
    own = libc.pthread_self()
    cached = next(
        (
            field
            for at in range(0, 2048, 4)
            if (field := ctypes.c_int.from_address(own + at)).value == os.getpid()
        ),
        None,
    )
    python.PyOS_BeforeFork()
    pid = int(libc.syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid:
        python.PyOS_AfterFork_Parent()
        return pid
    if cached is not None:
        cached.value = os.getpid()  # as glibc's own fork does: the thread id that its mutexes keep
    python.PyOS_AfterFork_Child()
    return 0


def _enter(inside: int) -> None:
    """Return in a fork that has these namespaces; this process exits as that one does, as `nsenter`."""
    libc = ctypes.CDLL(None, use_errno=True)
    for fd in [os.open(f"/proc/{inside}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]:
        if libc.setns(fd, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(fd)
    pid = os.fork()  # process ids and the clock are those of children
    if pid == 0:
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


_inherited = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
"""What a process started here would do with them: `nohup` has it ignore SIGHUP."""


def _become(args: list[str], env: dict[str, str], cwd: str, fds: dict[int, int], session: bool) -> NoReturn:
    """Turn this fork into what an exec of `args` would be, and run it to its end."""
    _skip_static_destructors()
    if session:
        os.setsid()
    _arrange(fds)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    _show_in_proc(args, env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, inherited in _inherited.items():
        signal.signal(number, inherited)
    words = _without_options(args)
    _open_streams(unbuffered="-u" in args[: len(args) - len(words)] or bool(env.get("PYTHONUNBUFFERED")))
    _draw_anew()
    sys.orig_argv = args
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    if "RANK" not in env:
        _keep_a_template(env)
    _as_site_does(env)
    _run(words)


def _arrange(wanted: dict[int, int]) -> None:
    """Give descriptors their numbers and close all others."""
    moved = {to: fcntl.fcntl(fd, fcntl.F_DUPFD, ABOVE_ALL_TARGETS) for to, fd in wanted.items()}
    for to, fd in moved.items():
        os.dup2(fd, to, inheritable=to <= 2)
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd not in wanted:
            with contextlib.suppress(OSError):  # that of the folder itself
                os.close(fd)


def _show_in_proc(args: Sequence[str], env: Mapping[str, str]) -> None:
    """Overwrite the words that the template was started with: Python and libc have copies of them."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    places = [int(number) for number in stat[45:49]]
    lists = (args, [f"{name}={value}" for name, value in env.items()])
    for start, end, words in zip(places[::2], places[1::2], lists, strict=True):
        text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


_streams: list[object] = []
"""Those of the template: kept, for handlers of its loggers write to them."""


def _open_streams(unbuffered: bool) -> None:
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        _streams.append(old)
        raw = unbuffered and fd > 0
        file = open(fd, "wb" if fd else "rb", 0 if raw else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            file,
            encoding or old.encoding,
            errors or old.errors,
            line_buffering=fd == 2 or (fd == 1 and os.isatty(1)),
            write_through=raw,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    import logging

    for logger in [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and handler.stream in _streams:
                handler.setStream(sys.stderr if handler.stream is _streams[2] else sys.stdout)


def _draw_anew() -> None:
    """Random numbers and the folder of temporary files are this process's own, as after a start."""
    import random
    import tempfile

    random.seed()
    tempfile.tempdir = None
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed()


def _keep_a_template(env: Mapping[str, str]) -> None:
    """A second fork, of which this process's own children are forked."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _show_in_proc([], {})  # it is no process of the test's
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _wait_and_fork(its)
    its.close()
    global _template
    _template = Template(ours, env)
    _start_children_warm()
    spawn_warm()


def _start_children_warm() -> None:
    cold: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute_child(self: Any, *of_popen: Any) -> None:
        if not _start_warm(self, of_popen):
            cold(self, *of_popen)

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


def spawn_warm() -> None:
    """From now on, fork the template for what `multiprocessing` of this process spawns."""
    from multiprocessing import util

    spawn_cold = util.spawnv_passfds

    def spawnv_passfds(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
        words = [os.fsdecode(word) for word in args]
        fds = {fd: fd for fd in (0, 1, 2, *passfds)}
        pid = _template.start(words, os.environ, str(Path.cwd()), fds, False) if _template else None
        return pid if pid is not None else spawn_cold(path, args, passfds)

    util.spawnv_passfds = spawnv_passfds


def _as_site_does(env: Mapping[str, str]) -> None:
    """PYTHONPATH, PYTHONWARNINGS and sitecustomize."""
    sys.path[:0] = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if env.get("PYTHONWARNINGS"):
        import warnings

        sys.warnoptions[:] = env["PYTHONWARNINGS"].split(",")
        warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
    sys.path_importer_cache.clear()
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


def _run(words: list[str]) -> NoReturn:
    _streams.append(sys.modules["__main__"])
    main = type(sys)("__main__")
    vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    folders = [] if os.environ.get("PYTHONSAFEPATH") and sys.version_info >= (3, 11) else sys.path
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        folders.insert(0, "")
        sys.exit(_exec(lambda: exec(words[1], vars(main))))
    if words[0] == "-m":
        import runpy

        if words[1] in OURS and words[2:3] != ["demo"]:
            sys.modules |= _of_ours
        if words[1] in MODULES + OURS and "RANK" not in os.environ:
            _keep_operators()
        if not hasattr(sys.modules.get(words[1]), "__path__"):
            sys.modules.pop(words[1], None)
        sys.argv = ["-m", *words[2:]]
        folders.insert(0, str(Path.cwd()))
        sys.exit(_exec(lambda: runpy._run_module_as_main(words[1])))  # type: ignore[attr-defined]
    if words[0] == IN_HASTE:
        sys.modules |= _of_ours
    sys.argv = list(words)
    path = Path(words[0]).absolute()
    folders.insert(0, str(path.resolve().parent))
    libc = ctypes.PyDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    run_file = ctypes.pythonapi.PyRun_SimpleFileExFlags
    run_file.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    failed = run_file(libc.fopen(os.fsencode(path), b"rb"), os.fsencode(path), 1, None)
    if failed and getattr(sys, "last_type", None) is KeyboardInterrupt:
        sys.excepthook = lambda *_: None  # it has been printed; Python then ends by SIGINT
        raise KeyboardInterrupt
    code = 1 if failed else 0
    _end_with(code)
    sys.exit(code)


def _exec(call: Callable[[], object]) -> int:
    """Exceptions are shown without the frames of this file."""
    try:
        call()
    except SystemExit as end:
        _end_with(end.code)
        raise
    except Exception as error:
        below = error.__traceback__
        while below is not None and below.tb_frame.f_code.co_filename == __file__:
            below = below.tb_next
        sys.excepthook(type(error), error.with_traceback(below), below)
        _end_with(1)
        return 1
    _end_with(0)
    return 0
