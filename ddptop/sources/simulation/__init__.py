"""A simulated training run of many ranks: real messages over the real link, without training."""
