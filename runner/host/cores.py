"""Number of processor cores that this run may use."""

from __future__ import annotations

import os

# Set for the jobs of a sweep and the processes of a cluster that share a machine.
VARIABLE = "RUNNER_CORES"


def available() -> int:
    """Returns the run's share of the cores: set by its sweep or launcher, else all that the process may run on."""
    share = os.environ.get(VARIABLE, "")
    if share.isdigit() and int(share):
        return int(share)
    return len(os.sched_getaffinity(0))
