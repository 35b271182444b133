"""Timing on the GPU's own time line: CUDA events, and their offset to the host's clock."""
