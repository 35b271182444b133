"""Faults of known rank, place and size in real training, and the verdicts: `python -m tests.truth`.

`script.py` trains and stamps its own delays, `rows.py` has a line for each fault, `judge.py` compares the
verdicts with the stamps, window by window, and `table.py` prints them. `traces.py` packs a run into a small
file; those in `data/` are replayed with the other tests.

A new row is a line in `rows.py`; `python -m tests.truth --rows NAME --pack tests/truth/data` records its
trace.
"""
