"""The recording of a run: one crash-safe, indexed file of the same messages as on the wire."""
