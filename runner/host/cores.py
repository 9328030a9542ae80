"""How many processor cores this run may use."""

from __future__ import annotations

import os

VARIABLE = "RUNNER_CORES"  # set for jobs and processes that run beside others


def available() -> int:
    """Returns the run's share of the cores: what its sweep or launcher gave it, else all that it may run on."""
    given = os.environ.get(VARIABLE, "")
    if given.isdigit() and int(given):
        return int(given)
    return len(own()) or os.cpu_count() or 1


def own() -> list[int]:
    """Returns the numbers of the cores that this process may run on; none where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
