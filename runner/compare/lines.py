"""From runs to the lines of a comparison: what differs, and runs that differ only in their seed as one line."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.compare.records import RunRecord

SEED = "trainer.seed"
GROUPS = ("engine", "mesh", "layout", "model", "optimizer", "dataset", "task")
# Params that differ from run to run without making another experiment of it.
_NOT_COMPARED = ("run.command", "tracking.", "sweep.", "trainer.progress")


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
      values: what tells it from the other lines, key to value.
      metrics: results.
      records: its runs, one a seed.
    """

    values: Mapping[str, str]
    metrics: Mapping[str, Stat]
    records: tuple[RunRecord, ...]

    @property
    def status(self) -> str:
        """The status of its runs, as `FINISHED` or `FINISHED 2, FAILED 1`."""
        counts: dict[str, int] = {}
        for record in self.records:
            counts[record.status] = counts.get(record.status, 0) + 1
        return ", ".join(name if len(counts) == 1 else f"{name} {count}" for name, count in counts.items())


def make_lines(records: Sequence[RunRecord], keys: Sequence[str] | None = None, *, fold: bool = True) -> list[Line]:
    """Returns a line a config.

    Args:
      records: runs.
      keys: what the lines are told apart by; null: whatever the runs differ in.
      fold: runs that differ only in `trainer.seed` share a line.

    Returns:
      Lines in the order of their first runs. The seed is no key of a line that is folded.
    """
    told = list(keys) if keys is not None else varying(records)
    told = [key for key in told if not fold or key != SEED]
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        identity = () if fold else (record.run_id or record.name,)
        groups.setdefault((*(value(record, key) for key in told), *identity), []).append(record)
    return [
        Line(dict(zip(told, values, strict=False)), _stats(members), tuple(members))
        for values, members in groups.items()
    ]


def value(record: RunRecord, key: str) -> str:
    """Returns a run's value of a key: what its sweep varied, an option of a group, or a param."""
    varied = record.tags.get(f"varied.{key}")
    if varied is not None:
        return varied
    if key in GROUPS:
        return record.tags.get(f"runner.{key}", "")
    return record.params.get(key, "")


def varying(records: Sequence[RunRecord]) -> list[str]:
    """Returns the keys that the runs differ in.

    Where the runs' options of a group differ (mesh=single, mesh=batch8), the group stands for those of its keys that
    go with the option.
    """
    groups = [group for group in GROUPS if _differs(value(record, group) for record in records)]
    params = sorted({key for record in records for key in record.params})
    keys = [key for key in params if not key.startswith(_NOT_COMPARED)]
    keys = [key for key in keys if _differs(record.params.get(key, "") for record in records)]
    return groups + [key for key in keys if not _goes_with(records, key, groups)]


def _differs(values: Iterable[str]) -> bool:
    return len(set(values)) > 1


def _goes_with(records: Sequence[RunRecord], key: str, groups: Sequence[str]) -> bool:
    group = key.split(".")[0]
    if group not in groups:
        return False
    by_option: dict[str, set[str]] = {}
    for record in records:
        by_option.setdefault(value(record, group), set()).add(record.params.get(key, ""))
    return all(len(values) == 1 for values in by_option.values())


def _stats(records: Sequence[RunRecord]) -> dict[str, Stat]:
    names = dict.fromkeys(name for record in records for name in record.metrics)
    return {name: stat([record.metrics[name] for record in records if name in record.metrics]) for name in names}


def stat(values: Sequence[float]) -> Stat:
    """Returns mean and sample standard deviation; of values that are not all finite, their sum's mean and NaN.

    >>> stat([1.0, 3.0])
    Stat(mean=2.0, deviation=1.4142135623730951, count=2)
    """
    if not all(map(math.isfinite, values)):
        return Stat(sum(values) / len(values), math.nan, len(values))
    return Stat(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


def sort_lines(lines: Iterable[Line], by: str, *, descending: bool) -> list[Line]:
    """Returns the lines sorted by a metric or by a key; those without it, and NaN, come last."""

    def rank(line: Line) -> tuple[int, float, str]:
        text = line.values.get(by)
        if text is not None:
            number = as_number(text)
            return (0, -number if descending else number, "") if number is not None else (1, 0.0, text)
        found = line.metrics.get(by)
        if found is None or math.isnan(found.mean):
            return (2, 0.0, "")
        return (0, -found.mean if descending else found.mean, "")

    return sorted(lines, key=rank)


def as_number(text: str) -> float | None:
    """Returns the finite number that a value is, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
