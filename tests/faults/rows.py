"""All rows of the table."""

from tests.faults import files, made_up_runs, real_runs

ROWS = (*made_up_runs.ROWS, *real_runs.ROWS, *files.ROWS)
