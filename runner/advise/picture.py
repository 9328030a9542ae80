"""The picture of advice: memory per device against step time, with the front that no candidate beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.advise import ranking
from runner.layout import mesh
from runner.report import figures, palette

_GIB = 1 << 30
# Behind a name, so that points below it don't cover it.
_PLATE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
_MARKERS = {ranking.FITS: "o", ranking.MAY_FIT: "^", ranking.TOO_LARGE: "x"}


def draw(path: Path, entries: Sequence[ranking.Planned], capacity_bytes: int, title: str) -> None:
    """Draws all planned candidates.

    Args:
      path: PNG to write.
      entries: ranked, the best first.
      capacity_bytes: of one device's memory; 0: not known.
      title: of the picture.
    """
    figure, axes = figures.subplots(1, 1, (8.6, 5.2))
    layouts = sorted({entry.candidate.layout for entry in entries})
    for index, layout in enumerate(layouts):
        color = palette.SERIES[index % len(palette.SERIES)]
        for verdict, marker in _MARKERS.items():
            points = []
            for entry in entries:
                if entry.candidate.layout == layout and entry.verdict == verdict:
                    points.append((entry.peak_bytes / _GIB, 1000 * entry.seconds))
            if points:
                memory, times = zip(*points, strict=True)
                axes.scatter(memory, times, color=color, marker=marker, alpha=0.75, label=f"{layout}, {verdict}", s=30)
    front = ranking.front([entry for entry in entries if entry.verdict != ranking.TOO_LARGE])
    if front:
        across = [entry.peak_bytes / _GIB for entry in front]
        up = [1000 * entry.seconds for entry in front]
        label = "no candidate beats these"
        # In steps: with less memory than the next candidate needs, only the one before it can be used.
        axes.plot(across, up, color=palette.OTHER, zorder=0, drawstyle="steps-post", label=label)
    best = entries[0]
    place = (best.peak_bytes / _GIB, 1000 * best.seconds)
    name = f"1: {mesh.describe(best.candidate.sizes)}, {best.candidate.layout}"
    axes.annotate(name, place, xytext=(10, 6), textcoords="offset points", fontweight="bold", bbox=_PLATE)
    axes.scatter(place[0], place[1], s=150, facecolors="none", edgecolors="black")
    if capacity_bytes:
        axes.axvline(capacity_bytes / _GIB, color="black", linestyle="--", linewidth=1, label="memory that a program can use")
    axes.set_xlim(left=0)
    figures.log_axis(axes)
    axes.set_xlabel("memory of one device at the peak of a step, GiB")
    axes.set_ylabel("step time, ms (middle of the range)")
    axes.set_title(title)
    axes.grid(alpha=0.25, which="both")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figures.save(figure, path)
