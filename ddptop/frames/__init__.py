"""What a viewer receives: the group as it is now, its history, what it asked for in detail; their bytes; the JSON snapshot."""
