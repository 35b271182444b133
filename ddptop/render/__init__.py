"""Figures as lines of coloured text: shared by screen, command line and report. Nothing of Textual here."""
