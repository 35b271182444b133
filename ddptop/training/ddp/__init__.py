"""The public API of a script: setup, wrap, loader, checkpoints, spawn."""
