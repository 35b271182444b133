"""How messages travel: the acked link to the collector, the credit link to viewers, run discovery."""
