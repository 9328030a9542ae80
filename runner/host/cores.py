"""How many processor cores this run may use."""

from __future__ import annotations

import os

VARIABLE = "RUNNER_CORES"  # set for jobs that run beside others


def available() -> int:
    """Returns the run's share of the cores: what its sweep gave it, else all of the machine's."""
    given = os.environ.get(VARIABLE, "")
    return int(given) if given.isdigit() and int(given) else os.cpu_count() or 1
