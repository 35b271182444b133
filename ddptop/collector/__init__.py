"""The process of a run: receives and records messages, detects stalls, serves viewers. Never loads torch."""
