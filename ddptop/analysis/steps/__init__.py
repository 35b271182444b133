"""Complete steps: rows of single ranks paired, their buckets, their windows and medians."""
