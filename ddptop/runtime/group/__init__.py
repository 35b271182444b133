"""The explicit road: everything that a DDP script asks of its process group, one idea to a file."""
