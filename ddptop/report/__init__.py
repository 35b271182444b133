"""The report: what happened over a whole run, from its messages alone."""
