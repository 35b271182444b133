"""What a rank reports at a stall or at its end: stacks, process groups, the flight recorder."""
