"""What selects: the best evaluation, and early stopping, as functions of the evaluations so far.

So a run that goes on has no state of them to restore.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.config.schema_trainer import EarlyStoppingConfig
from runner.task.base import Evaluation
from runner.task.metrics import EVAL, MINIMIZE, evaluated

Evaluations = Sequence[tuple[int, Evaluation]]  # (step, metrics) in order


@dataclass(frozen=True)
class Objective:
    """A metric of evaluations that something is selected by.

    Attributes:
      metric: as it is logged, `eval/loss`.
      direction: in which it is better.
    """

    metric: str
    direction: str

    def value(self, evaluation: Evaluation) -> float:
        """Returns the metric's value of an evaluation."""
        return evaluation.metrics[self.metric.removeprefix(EVAL)]

    def improves(self, value: float, than: float, by: float = 0.0) -> bool:
        """Tells whether a value is better than another by more than so much; NaN never is."""
        return value < than - by if self.direction == MINIMIZE else value > than + by

    @property
    def worst(self) -> float:
        """A value that every number is better than."""
        return math.inf if self.direction == MINIMIZE else -math.inf


def objective(metric: str | None, directions: Mapping[str, str]) -> Objective | None:
    """Returns what selects by a metric; None where nothing does.

    Args:
      metric: one of the task's, as `eval/loss`.
      directions: the task's.
    """
    return None if metric is None else Objective(metric, evaluated(directions)[metric])


def best(goal: Objective, evaluations: Evaluations) -> tuple[int, Evaluation] | None:
    """Returns the best evaluation, the first of those that are alike; None where none is a number."""
    found: tuple[int, Evaluation] | None = None
    for step, evaluation in evaluations:
        value = goal.value(evaluation)
        if not math.isnan(value) and (found is None or goal.improves(value, goal.value(found[1]))):
            found = step, evaluation
    return found


def reason(config: EarlyStoppingConfig, goal: Objective | None, evaluations: Evaluations) -> str | None:
    """Returns why training ends, in words; None where it goes on.

    Args:
      config: patience and what counts as an improvement.
      goal: what early stopping goes by; None: nothing ends a run early.
      evaluations: so far.
    """
    if goal is None:
        return None
    best_step = 0
    best_value = goal.worst
    waited = 0
    for step, evaluation in evaluations:
        value = goal.value(evaluation)
        if goal.improves(value, best_value, config.min_delta):
            best_step = step
            best_value = value
            waited = 0
        else:
            waited += 1
        if waited >= config.patience:
            amount = f" by more than {config.min_delta:g}" if config.min_delta else ""
            found = f"{best_value:.4f} at step {best_step:,}" if best_step else "that never was a number"
            count = "the last evaluation" if waited == 1 else f"the last {waited} evaluations"
            return f"early stopping: {goal.metric} was best with {found}, and {count} did not improve on it{amount}"
    return None
