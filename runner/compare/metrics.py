"""Metrics of recorded runs: those shown, the judging one, and their directions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from runner.compare.records import RunRecord
from runner.task import metrics

_TRAIN_LOSS = f"{metrics.TRAIN}loss"
_SPEED = ("throughput/examples_per_second", "throughput/step_ms", "goodput/training")
# Parts of the names of metrics that no task declares.
_LOWER_IS_BETTER = ("loss", "ms", "seconds", "bytes", "error", "mae", "mse", "rmse")
_SHORT_TITLES = {
    "throughput/step_ms": "step ms",
    "throughput/examples_per_second": "examples/s",
    "goodput/training": "goodput",
    "plan/bytes_per_device": "bytes/device",
    "plan/collective_bytes": "moved/step",
    "plan/flops_per_device": "flops/device",
}


def directions(records: Sequence[RunRecord]) -> dict[str, str]:
    """Returns the tasks' evaluation metrics with their directions, the loss first.

    A direction is `minimize` or `maximize`.

    Args:
      records: runs. Those of a release without tasks declare no metrics, so the names decide.
    """
    declared: dict[str, str] = {}
    for record in records:
        declared |= metrics.evaluated(_declared_by(record))
    # What a task declares wins; a name decides only for metrics that no task declares.
    result = {metrics.LOSS: metrics.MINIMIZE, **declared}
    for record in records:
        for name in record.metrics:
            if name.startswith(metrics.EVAL) and name not in declared:
                result[name] = _direction_by_name(name)
    return result


def _declared_by(record: RunRecord) -> Mapping[str, str]:
    try:
        content = json.loads(record.tags.get(metrics.TAG, ""))
    except ValueError:
        # A run of a release without tasks has no such tag.
        return {}
    if not isinstance(content, dict):
        return {}
    return content


def judged_by(records: Sequence[RunRecord]) -> str:
    """Returns the metric that runs are compared by unless another one is named."""
    names = {name.removeprefix(metrics.EVAL): direction for name, direction in directions(records).items()}
    return metrics.default(names)


def columns(records: Sequence[RunRecord], first: str) -> list[str]:
    """Returns the metrics that a table shows if any run has them.

    Args:
      records: runs.
      first: the metric of the first column.
    """
    # The loss is first there, and the last metric of each split here.
    loss, *evaluated = directions(records)
    evaluated.append(loss)
    tested = [metrics.TEST + name.removeprefix(metrics.EVAL) for name in evaluated]
    names = (first, *evaluated, *tested, _TRAIN_LOSS, *_SPEED)
    return list(dict.fromkeys(names))


def title(metric: str, shown: Sequence[str]) -> str:
    """Returns a column's title.

    Args:
      metric: its name.
      shown: the names of all columns. Runs without metrics of the test split evaluate on the test split; runs with
        them evaluate on a validation split.

    >>> title("eval/loss", ["eval/loss"]), title("eval/loss", ["eval/loss", "test/loss"])
    ('test loss', 'validation loss')
    """
    split, _, name = metric.partition("/")
    if f"{split}/" == metrics.EVAL:
        has_test = any(other.startswith(metrics.TEST) for other in shown)
        if has_test:
            return f"validation {name}"
        return f"test {name}"
    if f"{split}/" == metrics.TEST:
        return f"test {name}"
    return _SHORT_TITLES.get(metric, metric)


def lower_is_better(metric: str, records: Sequence[RunRecord] = ()) -> bool:
    """Returns whether lower values of a metric are better.

    Args:
      metric: its name.
      records: runs, whose tasks may declare it. Otherwise its name decides: losses, times, bytes.
    """
    split, _, name = metric.partition("/")
    declared = None
    if split:
        declared = directions(records).get(metrics.EVAL + name)
    return (declared or _direction_by_name(metric)) == metrics.MINIMIZE


def _direction_by_name(metric: str) -> str:
    name = metric.rpartition("/")[2]
    if any(part in name for part in _LOWER_IS_BETTER):
        return metrics.MINIMIZE
    return metrics.MAXIMIZE
