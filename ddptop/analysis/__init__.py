"""Group state from messages, and the pure functions of the metrics. No input or output here."""
