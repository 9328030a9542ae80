"""Which metrics of recorded runs are shown, by which one they are judged, and which way each is better."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from runner.compare.records import RunRecord
from runner.task import metrics

_TRAIN_LOSS = f"{metrics.TRAIN}loss"
_SPEED = ("throughput/examples_per_second", "throughput/step_ms")
_LESS_IS_BETTER = ("loss", "ms", "seconds", "bytes", "error", "mae", "mse", "rmse")  # in names that no task tells of

_SHORT = {
    "throughput/step_ms": "step ms",
    "throughput/examples_per_second": "examples/s",
    "plan/bytes_per_device": "bytes/device",
    "plan/collective_bytes": "moved/step",
    "plan/flops_per_device": "flops/device",
    "sweep/scaling_efficiency": "efficiency",
}


def directions(records: Sequence[RunRecord]) -> dict[str, str]:
    """Returns the metrics of evaluations that the runs' tasks have, with their better directions, the loss first.

    Args:
      records: of runs; one that a release without tasks recorded tells by the names of its metrics alone.
    """
    found: dict[str, str] = {}
    for record in records:
        found |= metrics.evaluated(_recorded(record.tags.get(metrics.TAG, "")))
    names = dict.fromkeys(name for record in records for name in record.metrics if name.startswith(metrics.EVAL))
    return {metrics.LOSS: metrics.MINIMIZE, **found, **{name: _by_name(name) for name in names if name not in found}}


def _recorded(text: str) -> Mapping[str, str]:
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def judged_by(records: Sequence[RunRecord]) -> str:
    """Returns the metric that runs are compared by where none is named."""
    names = {name.removeprefix(metrics.EVAL): better for name, better in directions(records).items()}
    return metrics.default(names)


def columns(records: Sequence[RunRecord], first: str) -> list[str]:
    """Returns the metrics that a table shows, where any run has them.

    Args:
      records: of runs.
      first: the metric of the first column.
    """
    own = [name for name in directions(records) if name != metrics.LOSS]
    tested = [metrics.TEST + name.removeprefix(metrics.EVAL) for name in (*own, metrics.LOSS)]
    return list(dict.fromkeys((first, *own, metrics.LOSS, *tested, _TRAIN_LOSS, *_SPEED)))


def title(metric: str, shown: Sequence[str]) -> str:
    """Returns a column's title.

    Args:
      metric: its name.
      shown: the names of all columns; evaluations are of a validation split where there are some of the test split
        besides, and of the test split else.

    >>> title("eval/loss", ["eval/loss"]), title("eval/loss", ["eval/loss", "test/loss"])
    ('test loss', 'validation loss')
    """
    split, _, name = metric.partition("/")
    if f"{split}/" == metrics.EVAL:
        return f"{'validation' if any(one.startswith(metrics.TEST) for one in shown) else 'test'} {name}"
    if f"{split}/" == metrics.TEST:
        return f"test {name}"
    return _SHORT.get(metric, metric)


def lower_is_better(metric: str, records: Sequence[RunRecord] = ()) -> bool:
    """Returns whether less of a metric is better.

    Args:
      metric: its name.
      records: of runs, whose tasks may tell; where they don't, its name does: losses, times, bytes.
    """
    split, _, name = metric.partition("/")
    known = directions(records).get(metrics.EVAL + name) if split else None
    return (known or _by_name(metric)) == metrics.MINIMIZE


def _by_name(metric: str) -> str:
    word = metric.rpartition("/")[2]
    return metrics.MINIMIZE if any(part in word for part in _LESS_IS_BETTER) else metrics.MAXIMIZE
