"""How messages travel: the acked link to the collector and the credit link to viewers."""
