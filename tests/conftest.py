"""For all tests."""

import os

os.environ["DDPTOP"] = "0"
"""A test that sets up a process group in its own process is no training to be recorded in somebody's home.
Commands that tests start have an environment of their own (`tests.processes`)."""
