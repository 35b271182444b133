"""Timing on the GPU's own time line: CUDA events, their offset to the host's clock, what is read from them."""
