"""Timing on the GPU's own time line: events, how they stand to the host's clock, what is read from them."""
