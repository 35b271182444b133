"""The commands `ddptop` and `ddptop-run`."""
