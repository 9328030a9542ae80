"""Names of the metrics that runs log, and which way each is better. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MAXIMIZE = "maximize"
MINIMIZE = "minimize"
DIRECTIONS = (MAXIMIZE, MINIMIZE)
# what stands before a metric's name, by what it is of
TRAIN = "train/"
EVAL = "eval/"
TEST = "test/"
EPOCH = f"{TRAIN}epoch_"  # what stands before the mean of a whole epoch's steps; those of few steps have TRAIN alone
LOSS = f"{EVAL}loss"
TAG = "runner.metrics"  # of a run: its task's metrics with their directions, as JSON
AUTO = "auto"  # stands for the metric of `default`

# Those that every run logs, whatever its task; None: neither direction is better.
_OF_EVERY_TASK: Mapping[str, str | None] = {
    "learning_rate": None,
    "throughput/examples_per_second": MAXIMIZE,
    "throughput/tokens_per_second": MAXIMIZE,
    "throughput/step_ms": MINIMIZE,
    "throughput/input_wait": MINIMIZE,
    "throughput/model_flop_utilization": MAXIMIZE,
    "plan/bytes_per_device": MINIMIZE,
    "plan/collective_bytes": MINIMIZE,
    "plan/flops_per_device": MINIMIZE,
}


def evaluated(directions: Mapping[str, str]) -> dict[str, str]:
    """Returns the metrics of an evaluation with their directions, named as they are logged.

    Args:
      directions: the task's metric names, `loss` first, with the direction in which each is better.
    """
    return {f"{EVAL}{name}": direction for name, direction in directions.items()}


def choices(directions: Mapping[str, str], steps: Sequence[str] = ()) -> dict[str, str | None]:
    """Returns every metric that a run of a task logs, with the better direction of each.

    Args:
      directions: as those of `evaluated`.
      steps: the task's metrics of a training step, beside the loss.
    """
    of_steps = {f"{what}{name}": directions.get(name) for what in (TRAIN, EPOCH) for name in ("loss", *steps)}
    return {**evaluated(directions), **of_steps, **_OF_EVERY_TASK}


def default(directions: Mapping[str, str]) -> str:
    """Returns the metric that runs are judged by where none is named.

    It is the task's first metric after the loss where more of it is better, and else the loss.

    >>> default({"loss": "minimize", "f1": "maximize"}), default({"loss": "minimize", "mae": "minimize"})
    ('eval/f1', 'eval/loss')
    """
    first = next((name for name in directions if f"{EVAL}{name}" != LOSS), None)
    return LOSS if first is None or directions[first] != MAXIMIZE else f"{EVAL}{first}"
