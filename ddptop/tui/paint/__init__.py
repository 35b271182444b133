"""Painting helpers: pure functions from figures to lines of coloured text, without Textual."""
