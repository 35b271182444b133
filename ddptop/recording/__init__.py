"""The recording: a crash-safe framed file of the same messages that were on the wire."""
