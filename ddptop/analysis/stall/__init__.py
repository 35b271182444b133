"""A stall: when a run is stalled, which ranks are missing, and why."""
