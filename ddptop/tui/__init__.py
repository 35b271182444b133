"""The Textual dashboard: it draws frames, in the same way live and from a recording."""
