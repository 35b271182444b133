"""A process forked from the template is to a script what a started one is."""

from __future__ import annotations

import pickle
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.processes import DEADLINE_S, environment, run
from tests.warm import LARGEST_REQUEST, Template, method_name

SCRIPT = """
import os, signal, sys, warnings
from pathlib import Path
if __name__ == "__main__":
    # torch puts a temporary folder for code that it generates on the path: tmp and eight characters.
    path = [entry for entry in sys.path if not Path(entry).name.startswith("tmp")]
    print(__file__, sys.argv, path, sys.executable, sys.warnoptions)
    print(os.getcwd(), os.getpgrp() == os.getpid())
    print(sorted(os.environ.items()), sorted(vars()))
    print([signal.getsignal(number) for number in range(1, 32) if number not in (9, 19)])
    print(sorted(int(name) for name in os.listdir("/proc/self/fd"))[:3], sys.stdout.write_through)
    in_proc = [Path("/proc/self", name).read_text() for name in ("cmdline", "environ")]
    print([text.rstrip("\\0").split("\\0") for text in in_proc])
    print([name for name in sys.modules if name.startswith(("tests", "ddptop"))])
    print(sys.stdin.read(), file=sys.stderr)
    how = sys.argv[1]
    if how == "exit":
        sys.exit(3)
    if how == "raise":
        raise ValueError("of the script")
    if how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        import time
        time.sleep(30)
"""


@pytest.mark.parametrize(
    ("how", "code"), [("end", 0), ("exit", 3), ("raise", 1), pytest.param("interrupt", -2, id="interrupt")]
)
def test_a_script_sees_no_difference(tmp_path: Path, how: str, code: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['SITE'] = 'customized'")
    env = environment(tmp_path) | {"PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-u", "script.py", how, "second"]
    warm, cold = (run(command, env, tmp_path, cold=cold) for cold in (False, True))
    assert warm.returncode == cold.returncode == code
    assert warm.stdout.splitlines() == cold.stdout.splitlines()
    assert _own(warm.stderr) == _own(cold.stderr)
    assert "customized" in warm.stdout


def test_a_method_has_the_name_that_torch_gives_it() -> None:
    torchs = pytest.importorskip("torch.distributed.elastic.rendezvous.dynamic_rendezvous").get_method_name

    def record(name: Any) -> str:
        return str(name())

    def rendezvous() -> tuple[str, str]:
        return record(method_name), record(torchs)

    assert rendezvous() == ("rendezvous", "rendezvous")


def _own(stderr: str) -> list[str]:
    """Without what Python 3.10 says at its end of the temporary folder that torch has made."""
    return [line for line in stderr.splitlines() if "ResourceWarning" not in line]


def test_threads_that_start_processes_at_once_get_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher has its ranks and its collector started by two threads."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = environment(tmp_path)
    template = Template(ours, env)
    send, first_has_sent = socket.send_fds, threading.Event()

    def send_and_pause(*words: Any) -> None:
        send(*words)
        if not first_has_sent.is_set():
            first_has_sent.set()
            time.sleep(0.05)  # another thread, were it let in, sends and reads this one's answer

    def serve() -> None:
        for _ in range(2):
            (_, script), *_ = pickle.loads(its.recv(LARGEST_REQUEST))
            its.send(script.removesuffix(".py").encode())

    def start(number: int) -> int | None:
        if number == 2:
            assert first_has_sent.wait(DEADLINE_S)
        (tmp_path / f"{number}.py").touch()
        return template.start([sys.executable, f"{number}.py"], env, str(tmp_path), {}, False)

    monkeypatch.setattr(socket, "send_fds", send_and_pause)
    with ours, its, ThreadPoolExecutor(3) as pool:
        served = pool.submit(serve)
        assert list(pool.map(start, (1, 2))) == [1, 2]
        served.result(DEADLINE_S)


def test_what_a_compiler_leaves_in_the_environment_makes_no_start_cold(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; print('torch' in sys.modules)")
    env = environment(tmp_path) | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    assert run([sys.executable, "script.py"], env, tmp_path).stdout == "True\n"
