"""Faults done to ddptop on purpose, and what they cost: `python -m tests.faults`."""
