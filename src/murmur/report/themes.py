"""Colours of the page, light and dark, as CSS variables. Text has a contrast of 4.5 on every background."""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "ground": "#f6f5f2",
    "panel": "#ffffff",
    "ink": "#1b1b1b",
    "muted": "#55585c",
    "line": "#b4b4b0",
    "grid": "#e6e5e1",
    "link": "#00588a",
    "sub": "#9a3d00",
    "ins": "#00588a",
    "del": "#8a2f6c",
    "alert": "#8a3d00",
    "c0": "#0072b2",
    "c1": "#d55e00",
    "c2": "#00805d",
    "c3": "#b9548b",
    "c4": "#b57d00",
    "c5": "#3a9bd0",
    "c6": "#1b1b1b",
}
DARK: Mapping[str, str] = {
    "ground": "#121518",
    "panel": "#1b1f23",
    "ink": "#e9e7e3",
    "muted": "#a8adb3",
    "line": "#565d64",
    "grid": "#2c3238",
    "link": "#7cc4f0",
    "sub": "#ffab70",
    "ins": "#7cc4f0",
    "del": "#efa3d0",
    "alert": "#ffb27a",
    "c0": "#4fa8e0",
    "c1": "#ff8a3d",
    "c2": "#2fc79b",
    "c3": "#e59cc4",
    "c4": "#e8b53a",
    "c5": "#9bd6f8",
    "c6": "#f5f4f1",
}


def variables(theme: Mapping[str, str]) -> str:
    """CSS declarations."""
    return "; ".join(f"--{name}: {colour}" for name, colour in theme.items())
