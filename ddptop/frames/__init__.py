"""What a viewer receives: the group now, its history, detail on request; their bytes; the JSON snapshot."""
