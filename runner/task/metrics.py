"""Names of the metrics that runs log, and the better direction of each. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

Value = TypeVar("Value")

MAXIMIZE = "maximize"
MINIMIZE = "minimize"
# The loss among the metrics of a task; logged metrics have one of the following prefixes.
LOSS_NAME = "loss"
TRAIN = "train/"
EVAL = "eval/"
TEST = "test/"
# Prefix of a mean over all steps of an epoch; a mean over the steps since the last log has `TRAIN` only.
EPOCH = f"{TRAIN}epoch_"
LOSS = f"{EVAL}{LOSS_NAME}"
# Tag of a run with the metrics of its task and their directions, as JSON.
TAG = "mlflow.runner.metrics"
# Value of `sweep.metric` and similar keys that selects the metric of `default`.
AUTO = "auto"

# Metrics that every run logs, whatever its task; None: neither direction is better.
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


def prefixed(prefix: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Returns values by name with a prefix before each name, such as `eval/`."""
    return {f"{prefix}{name}": value for name, value in values.items()}


def evaluated(directions: Mapping[str, str]) -> dict[str, str]:
    """Returns the metrics of an evaluation by the names that they are logged under, with their directions."""
    return prefixed(EVAL, directions)


def selecting(directions: Mapping[str, str], steps: Sequence[str] = ()) -> dict[str, str]:
    """Returns the metrics that can end a run, reduce its rate or select its best checkpoint, with their directions.

    They are known at every evaluation: those of the evaluation, and the means of the training steps before it.
    """
    of_steps = {}
    for name in (LOSS_NAME, *steps):
        if name in directions:
            of_steps[f"{EPOCH}{name}"] = directions[name]
    return {**evaluated(directions), **of_steps}


def choices(directions: Mapping[str, str], steps: Sequence[str] = ()) -> dict[str, str | None]:
    """Returns every metric that a run of a task logs, with its better direction."""
    step_directions = {}
    for prefix in (TRAIN, EPOCH):
        for name in (LOSS_NAME, *steps):
            step_directions[f"{prefix}{name}"] = directions.get(name)
    return {**evaluated(directions), **step_directions, **_OF_EVERY_TASK}


def default(directions: Mapping[str, str]) -> str:
    """Returns the metric that runs are compared by if the config names none.

    It is the first metric after the loss if more of it is better, else the loss.

    >>> default({"loss": "minimize", "f1": "maximize"}), default({"loss": "minimize", "mae": "minimize"})
    ('eval/f1', 'eval/loss')
    """
    names = [name for name in directions if name != LOSS_NAME]
    if names and directions[names[0]] == MAXIMIZE:
        return f"{EVAL}{names[0]}"
    return LOSS
