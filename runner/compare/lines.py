"""Lines of a comparison: the keys that differ, runs of all seeds in one line."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.compare.records import RunRecord

SEED = "trainer.seed"
GROUPS = ("engine", "mesh", "layout", "model", "optimizer", "dataset", "task")
# Params that differ between runs of the same experiment.
_NOT_COMPARED = ("run.command", "tracking.", "sweep.", "trainer.progress", "cluster.restart")


@dataclass(frozen=True)
class Stat:
    """A metric over the runs of a line.

    Attributes:
      mean: over the runs that have it.
      deviation: sample standard deviation; 0 for one run.
      count: runs that have it.
    """

    mean: float
    deviation: float = 0.0
    count: int = 1


@dataclass(frozen=True)
class Line:
    """One config with its results.

    Attributes:
      values: the keys in which the lines differ, with the values of this line.
      metrics: results.
      records: its runs, one per seed.
    """

    values: Mapping[str, str]
    metrics: Mapping[str, Stat]
    records: tuple[RunRecord, ...]

    @property
    def status(self) -> str:
        """The status of its runs, such as `FINISHED` or `FINISHED 2, FAILED 1`."""
        counts = Counter(record.status for record in self.records)
        if len(counts) == 1:
            return next(iter(counts))
        return ", ".join(f"{status} {count}" for status, count in counts.items())


def make_lines(records: Sequence[RunRecord], keys: Sequence[str] | None = None) -> list[Line]:
    """Returns one line per config; runs that differ only in `trainer.seed` share one.

    Args:
      records: runs.
      keys: keys that distinguish the lines; null: every key in which the runs differ.

    Returns:
      Lines in the order of their first runs. The seed is none of their keys.
    """
    if keys is None:
        keys = varying(records)
    keys = [key for key in keys if key != SEED]
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        groups.setdefault(tuple(value(record, key) for key in keys), []).append(record)
    lines = []
    for members in groups.values():
        values = {key: value(members[0], key) for key in keys}
        lines.append(Line(values, _stats(members), tuple(members)))
    return lines


def keys_of(lines: Iterable[Line]) -> list[str]:
    """Returns the keys of some lines, each once, in order."""
    keys: dict[str, None] = {}
    for line in lines:
        keys.update(dict.fromkeys(line.values))
    return list(keys)


def value(record: RunRecord, key: str) -> str:
    """Returns a run's value of a key: a sweep's, a group's option, or a param."""
    varied = record.tags.get(f"varied.{key}")
    if varied is not None:
        return varied
    if key in GROUPS:
        return record.tags.get(f"runner.{key}", "")
    return record.params.get(key, "")


def varying(records: Sequence[RunRecord]) -> list[str]:
    """Returns the keys in which the runs differ.

    If the runs use different options of a group (mesh=single, mesh=batch8), the group is listed in place of those of
    its keys whose values follow from the option.
    """
    groups = [group for group in GROUPS if _differs(value(record, group) for record in records)]
    params: set[str] = set()
    for record in records:
        params.update(record.params)
    keys = list(groups)
    for key in sorted(params):
        if key.startswith(_NOT_COMPARED):
            continue
        if _differs(record.params.get(key, "") for record in records) and not _follows_group(records, key, groups):
            keys.append(key)
    return keys


def _differs(values: Iterable[str]) -> bool:
    return len(set(values)) > 1


def _follows_group(records: Sequence[RunRecord], key: str, groups: Sequence[str]) -> bool:
    """Returns whether a key has one value per option of its group."""
    group = key.split(".")[0]
    if group not in groups:
        return False
    values_by_option: dict[str, set[str]] = {}
    for record in records:
        values_by_option.setdefault(value(record, group), set()).add(record.params.get(key, ""))
    return all(len(values) == 1 for values in values_by_option.values())


def _stats(records: Sequence[RunRecord]) -> dict[str, Stat]:
    values: dict[str, list[float]] = {}
    for record in records:
        for name, number in record.metrics.items():
            values.setdefault(name, []).append(number)
    return {name: stat(numbers) for name, numbers in values.items()}


def stat(values: Sequence[float]) -> Stat:
    """Returns mean and sample standard deviation.

    If a value is not finite, the deviation is NaN.

    >>> stat([1.0, 3.0])
    Stat(mean=2.0, deviation=1.4142135623730951, count=2)
    """
    count = len(values)
    if not all(map(math.isfinite, values)):
        return Stat(sum(values) / count, math.nan, count)
    deviation = 0.0
    if count > 1:
        deviation = statistics.stdev(values)
    return Stat(statistics.fmean(values), deviation, count)


def sort_lines(lines: Iterable[Line], metric: str, *, descending: bool) -> list[Line]:
    """Returns the lines sorted by a metric; those without it, or with NaN, are last."""
    sign = -1.0 if descending else 1.0

    def rank(line: Line) -> tuple[bool, float]:
        stat = line.metrics.get(metric)
        if stat is None or math.isnan(stat.mean):
            return (True, 0.0)
        return (False, sign * stat.mean)

    return sorted(lines, key=rank)
