"""Advice as text: the ranked table and the reasons."""

from __future__ import annotations

from collections.abc import Sequence

from runner.console import size
from runner.layout import mesh
from runner.plan import base, rows
from runner.plan.advise import ranking

# Candidates that the table shows.
SHOWN = 10
# Columns that a narrow terminal drops, the largest number first.
DROP = {"bound": 2, "step time": 1}


def table(entries: Sequence[ranking.Planned]) -> rows.Rows:
    """Returns the best candidates with memory, step time and what bounds it."""
    lines: list[tuple[str, ...]] = []
    for number, entry in enumerate(entries[:SHOWN], 1):
        cells = [str(number), mesh.describe(entry.candidate.sizes), _options(entry)]
        cells += [entry.bound, entry.verdict, size(entry.peak_bytes)]
        fastest, slowest = map(rows.duration, entry.step_seconds)
        unit = slowest.partition(" ")[2]
        cells.append(f"{fastest.removesuffix(f' {unit}')} to {slowest}")
        lines.append(tuple(cells))
    columns = ("", "mesh", "layout, also", "bound", "verdict", "memory", "step time")
    return rows.Rows("Candidates, the best first; memory per device", columns, 2, tuple(lines))


def _options(entry: ranking.Planned) -> str:
    """Returns the layout, and the other options beside the mesh, in short."""
    candidate = entry.candidate
    words = [candidate.layout]
    if candidate.remat not in (None, "none"):
        words.append(f"remat={candidate.remat}")
    if candidate.accumulate > 1:
        words.append(f"accumulate={candidate.accumulate}")
    if candidate.state != "float32":
        words.append(f"state={candidate.state}")
    return " ".join(words)


def why(best: ranking.Planned) -> str:
    """Returns the times and the memory of the best candidate, and what it costs."""
    times = ", ".join(f"{name} {rows.duration(seconds)}" for name, seconds in best.parts if seconds)
    largest = max(best.memory, key=lambda part: part[1])
    line = f"bound by {best.bound}: {times}; its largest part of memory is {largest[0]}, {size(largest[1])}"
    # bfloat16 has 8 significant bits, so its numbers are 1/128 to 1/256 of their size apart. A change of less than
    # half of the smaller distance is always rounded away.
    if best.candidate.state == "bfloat16":
        line += "; engine.state=bfloat16 costs precision: no update smaller than 1/512 of a weight has an effect"
    return line


def left_out(planned: Sequence[ranking.Planned], dropped: Sequence[ranking.Dropped]) -> list[str]:
    """Returns how many candidates there were, of which `planned` are ranked, and why others are not in the table."""
    total = len(planned) + len(dropped)
    verdicts = [entry.verdict for entry in planned]
    lines = [f"{total} candidates: {len(planned)} planned, of which {verdicts.count(base.FITS)} fit"]
    if planned[0].verdict == base.MAY_FIT:
        lines.append("  estimates of memory decide: python -m runner.plan with plan.compiler=target tells which fit")
    too_large = verdicts.count(base.TOO_LARGE)
    if too_large:
        # The smallest of them is ranked first.
        least = size(planned[verdicts.index(base.TOO_LARGE)].peak_bytes)
        lines.append(f"  {too_large} do not fit; the smallest of them needs {least} per device")
    for reason, count, detail in ranking.reasons(dropped):
        lines.append(f"  {count} {reason}, such as: {detail}")
    return lines
