"""Figures, drawn without a display."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def subplots(rows: int, columns: int, figsize: tuple[float, float]) -> tuple[Figure, Any]:
    """Returns a figure and its axes; `figsize` is in inches."""
    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG."""
    figure.savefig(path, dpi=110, bbox_inches="tight", pad_inches=0.12)  # else a square plot's label is cut
