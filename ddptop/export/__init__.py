"""For other tools: a recording as tables or a trace for Perfetto, a live run's figures for Prometheus."""
