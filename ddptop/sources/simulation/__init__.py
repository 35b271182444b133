"""A made-up training run of many ranks: real messages over the real link, and no training."""
