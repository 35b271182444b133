"""The colours of every role in each theme of ours, for the screen and the HTML page.

Neighbouring phases differ in lightness by at least 3:1, so that they are told apart without hue, and every
phase differs from the ground by 3:1. Waiting has the tint of a warning: it is what the screen is for. Red is
for stalled, lost and failed alone. `tests/tui/test_themes.py` measures all of this.
"""

from __future__ import annotations

DARK = {
    # The greys are so little coloured that terminals of 256 colours find them among their greys.
    "background": "#121316", "cursor": "#26292e", "word": "#2f363f", "banner": "#e6b450", "text": "#c8d0da",
    "strong": "#f0f4f8", "dim": "#8c94a0", "faint": "#7a808a", "rule": "#4a505a", "accent": "#7cc7ff",
    "good": "#7fd1a0", "warn": "#f2a65a", "bad": "#ff5c6c", "data": "#7a6426", "forward": "#8cc6f6",
    "backward": "#3168a8", "wait": "#fbb066", "transfer": "#1d7267", "optimizer": "#ceb4f9",
    "other": "#61676f", "sync": "#ffa6bd", "torch": "#b7cf72", "work": "#3168a8",
    "area": "#2b4662", "edge": "#a2b1c2",
    "heat0": "#1f2a38", "heat1": "#35598a", "heat2": "#5f97d6", "heat3": "#e8cf7a",
}  # fmt: skip

LIGHT = {
    # Dark phases here are bright ones on a dark ground, so that waiting stays orange.
    "background": "#fbfbf8", "cursor": "#e8e9ec", "word": "#dde3ea", "banner": "#8a5a00", "text": "#2f3337",
    "strong": "#0b1017", "dim": "#566170", "faint": "#69727e", "rule": "#a9b2bc", "accent": "#0b62ad",
    "good": "#136b42", "warn": "#9e4c06", "bad": "#c01c30", "data": "#573c05", "forward": "#2e91e1",
    "backward": "#114177", "wait": "#d96f06", "transfer": "#044a40", "optimizer": "#9f78e2",
    "other": "#3b414b", "sync": "#ce6b9d", "torch": "#6f9a2c", "work": "#114177",
    "area": "#d4e2ef", "edge": "#4c5b6b",
    "heat0": "#e3ebf2", "heat1": "#9cc3e6", "heat2": "#4a90d9", "heat3": "#8a6d00",
}  # fmt: skip

CVD = {
    # After Okabe and Ito's palette (2008), whose hues the common kinds of colour blindness keep apart.
    "background": "#101010", "cursor": "#262626", "word": "#333333", "banner": "#f0e442", "text": "#d0d0d0",
    "strong": "#ffffff", "dim": "#9a9a9a", "faint": "#7e7e7e", "rule": "#4b4b4b", "accent": "#56b4e9",
    "good": "#56b4e9", "warn": "#f0e442", "bad": "#ff7a1a", "data": "#786226", "forward": "#88c4f5",
    "backward": "#0069a6", "wait": "#f0b030", "transfer": "#007354", "optimizer": "#e0b0cc",
    "other": "#60656e", "sync": "#d8cba0", "torch": "#c6ccd2", "work": "#0069a6",
    "area": "#24425c", "edge": "#a9b5c0",
    "heat0": "#1c2a36", "heat1": "#1f5d86", "heat2": "#56b4e9", "heat3": "#e69f00",
}  # fmt: skip

CONTRAST = {
    # Text at 7:1 and more, also what is faint.
    "background": "#000000", "cursor": "#303030", "word": "#404040", "banner": "#ffd75f", "text": "#f0f0f0",
    "strong": "#ffffff", "dim": "#c8c8c8", "faint": "#a8a8a8", "rule": "#6e6e6e", "accent": "#9ad5ff",
    "good": "#8ff0b4", "warn": "#ffb86b", "bad": "#ff8a94", "data": "#856d2c", "forward": "#a5d6ff",
    "backward": "#3570b8", "wait": "#ffbe7d", "transfer": "#207c70", "optimizer": "#dac8ff",
    "other": "#6a7079", "sync": "#ffb6c6", "torch": "#cfe39a", "work": "#3570b8",
    "area": "#25486d", "edge": "#c3cedb",
    "heat0": "#16222f", "heat1": "#35609a", "heat2": "#6fb0f0", "heat3": "#ffe08a",
}  # fmt: skip

THEMES_OF_ROLES = {
    "ddptop-dark": DARK,
    "ddptop-light": LIGHT,
    "ddptop-contrast": CONTRAST,
    "ddptop-cvd": CVD,
}
"""The table of roles by the theme's name."""
