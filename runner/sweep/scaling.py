"""Scaling efficiency of a sweep over meshes: throughput on n devices over n times that on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.compare.lines import Line, Stat
from runner.compare.records import RunRecord
from runner.sweep.jobs import Job, Outcome

EFFICIENCY = "sweep/scaling_efficiency"
_THROUGHPUT = "throughput/examples_per_second"
# What a one-device job may differ in from the job that it is the reference of: the nearest first.
_IGNORED_GROUPS = (("mesh",), ("mesh", "layout"))
_Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Entry:
    """A job with its outcome and what it recorded."""

    job: Job
    outcome: Outcome
    record: RunRecord | None

    def line(self) -> Line:
        """Returns it as a line of a comparison."""
        if self.record is None:
            return Line(dict(self.job.varied), {}, ())
        stats = {name: Stat(value) for name, value in self.record.metrics.items()}
        return Line(dict(self.job.varied), stats, (self.record,))


def with_efficiency(entries: Sequence[Entry]) -> list[Entry]:
    """Adds the scaling efficiency to the jobs of a sweep over meshes that has jobs on one device.

    Efficiency is examples per second divided by the number of devices and by the mean examples per second of those
    one-device jobs that differ from the job in the mesh alone; where there is none, in mesh and layout alone. Virtual
    devices share the processor, so it falls as 1 / n there.

    Args:
      entries: the entries of the sweep.

    Returns:
      The entries, with the metric where it can be computed.
    """
    varies_mesh = any(key.split(".")[0] == "mesh" for entry in entries for key in entry.job.varied)
    if not varies_mesh:
        return list(entries)
    references: dict[_Key, list[float]] = {}
    for entry in entries:
        throughput = _throughput(entry)
        if entry.record is not None and throughput is not None and devices(entry.record) == 1:
            for groups in _IGNORED_GROUPS:
                references.setdefault(_key(entry.job, groups), []).append(throughput)
    return [_with_reference(entry, references) for entry in entries]


def devices(record: RunRecord) -> int:
    """Returns how many devices a run's mesh has."""
    count = 1
    for key, size in record.params.items():
        if key.startswith("mesh.axes."):
            count *= int(size)
    return count


def _throughput(entry: Entry) -> float | None:
    if entry.record is None:
        return None
    return entry.record.metrics.get(_THROUGHPUT)


def _with_reference(entry: Entry, references: dict[_Key, list[float]]) -> Entry:
    throughput = _throughput(entry)
    if entry.record is None or throughput is None:
        return entry
    for groups in _IGNORED_GROUPS:
        on_one_device = references.get(_key(entry.job, groups))
        if on_one_device:
            ideal = devices(entry.record) * sum(on_one_device) / len(on_one_device)
            metrics = {**entry.record.metrics, EFFICIENCY: throughput / ideal}
            return replace(entry, record=replace(entry.record, metrics=metrics))
    return entry


def _key(job: Job, ignored_groups: tuple[str, ...]) -> _Key:
    """Returns what a job varies in other groups; the ignored ones are part of it, so that their keys stay apart."""
    pairs = [(str(ignored_groups), "")]
    for key, value in job.varied.items():
        if key.split(".")[0] not in ignored_groups:
            pairs.append((key, value))
    return tuple(pairs)
