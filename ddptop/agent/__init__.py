"""One process per host of a run: receives its ranks, watches their processes, reports to the collector."""
