"""The Textual dashboard: draws frames, and cannot tell a live run from a recording."""
