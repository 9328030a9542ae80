"""The groups of devices that a collective over some of a mesh's axes runs in."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np


def device_groups(axes: Mapping[str, int]) -> dict[tuple[str, ...], set[frozenset[int]]]:
    """Returns, for every choice of axes, the groups of devices that differ in those axes only.

    Args:
      axes: mesh axis to size; devices are numbered row-major.
    """
    real = [name for name, size in axes.items() if size > 1]
    ids = np.arange(math.prod(axes.values())).reshape([axes[name] for name in real])
    found = {}
    for count in range(len(real) + 1):
        for chosen in itertools.combinations(range(len(real)), count):
            outer = [i for i in range(len(real)) if i not in chosen]
            width = math.prod(ids.shape[i] for i in chosen)
            rows = ids.transpose([*outer, *chosen]).reshape(-1, width)
            found[tuple(real[i] for i in chosen)] = {frozenset(row) for row in rows.tolist()}
    return found
