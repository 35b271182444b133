"""All rows of the table."""

from tests.faults import files, hangs, made_up_runs, over_hosts, real_runs

ROWS = (*made_up_runs.ROWS, *real_runs.ROWS, *hangs.ROWS, *files.ROWS, *over_hosts.ROWS)
