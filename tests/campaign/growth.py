"""What costs how much more, where something is 10 and 100 times as large: no cost may grow faster than is stated.

A dimension is what may be large: recorded runs, points, images, rows, variables, layers. Its cost is CPU seconds or a
count, so what else the machine does hardly matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.campaign import growth_layouts, growth_records
from tests.campaign.base import Case
from tests.campaign.growth_base import Dimension, fitted

DIMENSIONS: tuple[Dimension, ...] = (*growth_records.DIMENSIONS, *growth_layouts.DIMENSIONS)
CASES = len(DIMENSIONS)


def run(cases: int, seed: int, folder: Path) -> Iterator[Case]:
    """Measures a dimension per case; see `tests.campaign.base.Campaign`. The seed and the folder decide nothing."""
    del seed, folder
    for dimension in DIMENSIONS[:cases]:
        yield tried(dimension)


def tried(dimension: Dimension) -> Case:
    """Returns whether a cost stays within its exponent."""
    costs = {size: dimension.measure(size) for size in dimension.sizes}
    exponent = fitted(costs)
    told = ", ".join(f"{size:,}: {cost:,.2f}".removesuffix(".00") for size, cost in costs.items())
    note = f"{told}; exponent {exponent:.2f}, at most {dimension.exponent:.2f}"
    return Case(dimension.name, exponent <= dimension.exponent, note)
