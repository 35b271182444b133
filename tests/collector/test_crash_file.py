"""A crash file is text that anybody's process wrote: it becomes evidence that fits, or nothing."""

from __future__ import annotations

import os
import subprocess
import sys

from ddptop.host.exits import MAX_MESSAGE_BYTES, crash_evidence, crash_file, take_crash
from ddptop.protocol.codec import encode
from ddptop.protocol.limits import MAX_DEPTH, MAX_STACKS, MAX_TEXT
from ddptop.protocol.messages import Phase
from tests.made_up_run import progress

CRASH = """
import faulthandler, os, sys, threading, time

up = threading.Event()

def idle():
    up.set()
    time.sleep(60)

def load():
    os.abort()

faulthandler.enable(open(sys.argv[1], "w"))
threading.Thread(target=idle, daemon=True).start()
up.wait()
if sys.argv[2] == "main":
    load()
thread = threading.Thread(target=load)
thread.start()
thread.join()
"""


def crashed(tmp_path, where):
    script = tmp_path / "crash.py"
    script.write_text(CRASH)
    path = crash_file(tmp_path, 7)
    subprocess.run([sys.executable, script, path, where], check=False, timeout=120)
    evidence = crash_evidence(take_crash(path), 5, 12, None)
    assert not path.exists()
    return evidence


def test_what_the_interpreter_wrote_at_an_abort_is_evidence(tmp_path):
    evidence = crashed(tmp_path, "main")
    assert (evidence.reason, evidence.number, evidence.step) == ("Fatal Python error: Aborted", 0, 12)
    main, other = evidence.stacks
    assert (main.thread, main.main, other.main) == ("MainThread", True, False)
    assert [frame.function for frame in main.frames] == ["load", "<module>"]
    assert main.frames[0][:2] == (str(tmp_path / "crash.py"), 11)
    assert main.frames[0].code == "os.abort()"
    assert "idle" in [frame.function for frame in other.frames]


def test_the_thread_that_crashed_comes_right_after_the_main_one(tmp_path):
    evidence = crashed(tmp_path, "thread")
    assert [stack.main for stack in evidence.stacks] == [True, False, False]
    assert evidence.stacks[1].frames[0].function == "load"
    assert "idle" in [frame.function for frame in evidence.stacks[2].frames]


def test_where_the_rank_was_comes_from_its_last_heartbeat():
    beat = progress(1, 40, bucket=3)
    evidence = crash_evidence("Fatal Python error: Segmentation fault\n", 5, 41, beat)
    assert (evidence.step, evidence.phase, evidence.bucket) == (41, Phase.BACKWARD, 3)
    assert (evidence.reason, evidence.stacks) == ("Fatal Python error: Segmentation fault", ())


def test_a_thread_without_python_calls_and_newer_headings_are_understood():
    text = """Fatal Python error: Aborted

Current thread 0x1 [pt_autograd_0] (most recent call first):
  <no Python frame>

Thread 0x2 [MainThread] (most recent call first):
  Garbage-collecting
  File "/nowhere/a.py", line ??? in f
  File "/nowhere/a.py", line 9 in <module>
  ...

Extension modules: numpy (total: 1)
"""
    (stack,) = crash_evidence(text, 5, 0, None).stacks
    assert [frame[:3] for frame in stack.frames] == [
        ("/nowhere/a.py", 0, "f"),
        ("/nowhere/a.py", 9, "<module>"),
    ]


def test_nothing_said_is_no_evidence(tmp_path):
    assert crash_evidence("", 5, 0, None) is None
    assert crash_evidence("all is well\n  File unknown\n", 5, 0, None) is None
    assert take_crash(tmp_path / "none") == ""


def test_hostile_text_is_cut_to_what_a_message_holds_and_shows():
    call = f'  File "{"x" * 5000}", line 999999999 in \x1b[31m{"y" * 5000}\n'
    thread = "Thread 0x1 (most recent call first):\n" + call * 150 + "\n"
    evidence = crash_evidence("Fatal Python error: \x07" + "z" * 5000 + "\n" + thread * 2, 5, 0, None)
    assert len(encode(evidence)) <= MAX_MESSAGE_BYTES
    assert 1 <= len(evidence.stacks) <= MAX_STACKS
    assert 1 <= len(evidence.stacks[0].frames) <= MAX_DEPTH
    frame = evidence.stacks[0].frames[0]
    assert (len(frame.file), frame.line, frame.code) == (MAX_TEXT, 999999999, "")
    assert evidence.reason.isprintable()
    assert frame.function.isprintable()


def test_only_a_plain_file_is_read_and_only_sources_are_quoted(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("Fatal Python error: Aborted\n")
    link = crash_file(tmp_path, 1)
    link.symlink_to(secret)
    assert take_crash(link) == ""
    fifo = crash_file(tmp_path, 2)
    os.mkfifo(fifo)
    assert take_crash(fifo) == ""
    text = f'Stack (most recent call first):\n  File "{fifo}", line 1 in f\n  File "/dev/zero", line 1 in g\n'
    (stack,) = crash_evidence(text, 5, 0, None).stacks
    assert [frame.code for frame in stack.frames] == ["", ""]


def test_many_threads_are_as_many_as_a_message_holds():
    thread = 'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n\n'
    assert len(crash_evidence(thread * 100, 5, 0, None).stacks) == MAX_STACKS
