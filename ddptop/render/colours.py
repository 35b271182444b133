"""The colours of every role on a dark and on a light ground, for the screen and the HTML page.

Phases differ in lightness as well as in hue, and on the screen in their glyphs. Wait has the least contrast:
work is seen first, and lost time looks empty. Red is for stalled, lost and failed alone.
"""

from __future__ import annotations

DARK = {
    # The greys are so little coloured that terminals of 256 colours find them among their greys.
    "background": "#121316", "cursor": "#26292e", "banner": "#e6b450", "text": "#c8d0da", "strong": "#f0f4f8",
    "dim": "#8c94a0", "faint": "#6f757f", "rule": "#383c43", "accent": "#7cc7ff", "good": "#7fd1a0",
    "warn": "#f2a65a", "bad": "#ff5c6c", "data": "#e8cf7a", "forward": "#79b8f2", "backward": "#3f7fc4",
    "wait": "#50555e", "transfer": "#4fd0c0", "optimizer": "#b79cf2", "other": "#8a93a0", "sync": "#c98aa8",
}  # fmt: skip

LIGHT = {
    "background": "#fbfbf8", "cursor": "#e8e9ec", "banner": "#8a5a00", "text": "#2f3337", "strong": "#0b1017",
    "dim": "#5d6875", "faint": "#747e8a", "rule": "#ccd3da", "accent": "#0b62ad", "good": "#17774a",
    "warn": "#a85208", "bad": "#c81e33", "data": "#a37b00", "forward": "#4a90d9", "backward": "#1d4f8c",
    "wait": "#b9c1ca", "transfer": "#0d8a80", "optimizer": "#7a55c7", "other": "#77808a", "sync": "#9c4d73",
}  # fmt: skip

CVD = {
    # Okabe and Ito's palette (2008), which the common kinds of colour blindness keep apart.
    "background": "#101010", "cursor": "#2a2a2a", "banner": "#f0e442", "text": "#d0d0d0", "strong": "#ffffff",
    "dim": "#9a9a9a", "faint": "#757575", "rule": "#3a3a3a", "accent": "#56b4e9", "good": "#56b4e9",
    "warn": "#f0e442", "bad": "#d55e00", "data": "#e69f00", "forward": "#56b4e9", "backward": "#0072b2",
    "wait": "#565656", "transfer": "#009e73", "optimizer": "#cc79a7", "other": "#8f8f8f", "sync": "#b3a05c",
}  # fmt: skip
