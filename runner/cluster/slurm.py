"""The Slurm job of this process, which Slurm may start again: sbatch(1) under `--requeue` and SLURM_RESTART_COUNT."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """A Slurm job: its cluster and number, which stay when it starts again, and how often it has been requeued."""

    id: str
    restarts: int

    def note(self) -> dict[str, Any]:
        """Returns the note about this job in a run's record."""
        return asdict(self)

    def has_ended(self, note: Mapping[str, Any] | None) -> bool:
        """Returns whether a note is of an earlier start of this job, whose processes have all ended."""
        return note is not None and note["id"] == self.id and int(note["restarts"]) < self.restarts


def job(environ: Mapping[str, str] = os.environ) -> Job | None:
    """Returns the Slurm job that this process runs in; None: it runs in none."""
    number = environ.get("SLURM_JOB_ID", "")
    if not number.isdigit():
        return None
    # The last task of an array has the array's own number.
    array = environ.get("SLURM_ARRAY_JOB_ID")
    task = environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        number = f"{array}_{task}"
    cluster = environ.get("SLURM_CLUSTER_NAME", "")
    restarts = environ.get("SLURM_RESTART_COUNT", "")
    return Job(f"{cluster}:{number}", int(restarts) if restarts.isdigit() else 0)
