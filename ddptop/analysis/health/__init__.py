"""Conditions of the run beside its speed: exits, alerts, replicas, the spread of the loss."""
