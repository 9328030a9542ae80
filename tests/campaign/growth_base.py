"""What a dimension of growth is: a size that may grow, its cost, and the exponent that the cost must stay within.

A cost is CPU seconds or a count, never wall time: a machine that does something else at the same time must not decide.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# CPU seconds, or counts, below which a cost is taken as this: the clock and a first import are not what grows.
NOISE_FLOOR = 0.1


@dataclass(frozen=True)
class Dimension:
    """A size that may grow, and what its cost may be.

    Attributes:
      name: what grows, in words, as the campaign prints it.
      sizes: rising, 1x, 10x and 100x where the machine allows it.
      exponent: the cost at most grows as size ** exponent, between any two sizes; somewhat above the one that is
        meant, for the noise of a machine that does something else at the same time.
      measure: size -> CPU seconds (see `cpu_seconds`) or a count; it makes its own scratch data, outside the measure.
    """

    name: str
    sizes: tuple[int, ...]
    exponent: float
    measure: Callable[[int], float]


def fitted(costs: Mapping[int, float], floor: float = NOISE_FLOOR) -> float:
    """Returns the largest exponent between neighboring sizes.

    >>> round(fitted({10: 1.0, 100: 10.0, 1000: 1000.0}), 2)
    2.0

    Args:
      costs: size -> cost, sizes rising.
      floor: a cost below it counts as this much.
    """
    sizes = list(costs)
    exponents = []
    for small, large in itertools.pairwise(sizes):
        ratio = max(costs[large], floor) / max(costs[small], floor)
        exponents.append(math.log(ratio) / math.log(large / small))
    return max(exponents)


def cpu_seconds(call: Callable[[], object]) -> float:
    """Returns the CPU seconds that a call takes, of all threads of this process."""
    began = time.process_time()
    call()
    return time.process_time() - began


def calls(call: Callable[[], object]) -> int:
    """Returns how many functions a call runs, Python's and those in C, in the threads that it starts too.

    The same on every machine, so the sizes may be small.
    """
    count = itertools.count()

    def note(_frame: object, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            next(count)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return next(count)
