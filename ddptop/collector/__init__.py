"""The run's own process: ingest, recorder, and the serving of viewers. Never loads torch."""
