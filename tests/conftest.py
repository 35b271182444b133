"""For all tests."""

import os
import signal

os.environ["DDPTOP"] = "0"
"""A test that sets up a process group in its own process is no training to be recorded in somebody's home.
Commands that tests start have an environment of their own (`tests.processes`)."""

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # In the background of a shell without job control: what tests start would inherit it and miss Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
