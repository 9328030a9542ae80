"""Jobs with what they recorded, and how well they scale: the rate on n devices beside n times the rate on one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.compare.lines import Line, Stat
from runner.compare.records import RunRecord
from runner.sweep.jobs import Job, Outcome

EFFICIENCY = "sweep/scaling_efficiency"
_RATE = "throughput/examples_per_second"
_WITHOUT = (("mesh",), ("mesh", "layout"))


@dataclass(frozen=True)
class Entry:
    """A job with how it ended and what it recorded."""

    job: Job
    outcome: Outcome
    record: RunRecord | None

    def line(self) -> Line:
        """Returns it as a line of a comparison."""
        metrics = self.record.metrics if self.record else {}
        records = (self.record,) if self.record else ()
        return Line(dict(self.job.varied), {key: Stat(one) for key, one in metrics.items()}, records)


def with_efficiency(entries: Sequence[Entry]) -> list[Entry]:
    """Adds the scaling efficiency to the jobs of a sweep over meshes that has jobs on one device.

    Efficiency is examples a second divided by devices and by the mean examples a second of those one-device jobs that
    differ from the job in the mesh alone; where there is none, in mesh and layout alone. Virtual devices share the
    processor, so it falls as one over n there.

    Args:
      entries: of the sweep.

    Returns:
      The entries, with the metric where it can be told.
    """
    if not any(key.split(".")[0] == "mesh" for entry in entries for key in entry.job.varied):
        return list(entries)
    alone: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for entry in entries:
        if entry.record is not None and devices(entry.record) == 1 and _RATE in entry.record.metrics:
            for without in _WITHOUT:
                alone.setdefault(_rest(entry.job, without), []).append(entry.record.metrics[_RATE])
    found = [[alone.get(_rest(entry.job, without), []) for without in _WITHOUT] for entry in entries]
    return [_with_one(entry, near or far) for entry, (near, far) in zip(entries, found, strict=True)]


def devices(record: RunRecord) -> int:
    """Returns how many devices a run's mesh has."""
    return math.prod(int(size) for key, size in record.params.items() if key.startswith("mesh.axes."))


def _with_one(entry: Entry, alone: Sequence[float]) -> Entry:
    if entry.record is None or not alone or _RATE not in entry.record.metrics:
        return entry
    ideal = devices(entry.record) * sum(alone) / len(alone)
    metrics = {**entry.record.metrics, EFFICIENCY: entry.record.metrics[_RATE] / ideal}
    return replace(entry, record=replace(entry.record, metrics=metrics))


def _rest(job: Job, without: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Returns what varies besides some groups, with those groups' names, so that the two keys stay apart."""
    return ((str(without), ""), *(pair for pair in job.varied.items() if pair[0].split(".")[0] not in without))
