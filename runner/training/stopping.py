"""Model selection: the best evaluation, and early stopping, as functions of the evaluations so far.

They keep no state, so a resumed run has none to restore.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.config.schema_trainer import EarlyStoppingConfig
from runner.task.base import Evaluation
from runner.task.metrics import EVAL, MINIMIZE, evaluated

# (step, metrics), in order.
Evaluations = Sequence[tuple[int, Evaluation]]


@dataclass(frozen=True)
class Objective:
    """A metric of evaluations that selects.

    Attributes:
      metric: as it is logged, such as `eval/loss`.
      direction: in which it is better, `minimize` or `maximize`.
    """

    metric: str
    direction: str

    def value(self, evaluation: Evaluation) -> float:
        """Returns the metric's value in an evaluation."""
        return evaluation.metrics[self.metric.removeprefix(EVAL)]

    def improves(self, value: float, than: float, by: float = 0.0) -> bool:
        """Returns whether a value is better than another by more than `by`; NaN never is."""
        if self.direction == MINIMIZE:
            return value < than - by
        return value > than + by

    @property
    def worst(self) -> float:
        """A value that every finite number is better than."""
        return math.inf if self.direction == MINIMIZE else -math.inf


def objective(metric: str | None, directions: Mapping[str, str]) -> Objective | None:
    """Returns the objective of a metric; None if there is no metric.

    Args:
      metric: one of the task's, such as `eval/loss`.
      directions: the task's.
    """
    return None if metric is None else Objective(metric, evaluated(directions)[metric])


def best(goal: Objective, evaluations: Evaluations) -> tuple[int, Evaluation] | None:
    """Returns the best evaluation, the first of equal ones; None if none is a number."""
    best_so_far: tuple[int, Evaluation] | None = None
    for step, evaluation in evaluations:
        value = goal.value(evaluation)
        if math.isnan(value):
            continue
        if best_so_far is None or goal.improves(value, goal.value(best_so_far[1])):
            best_so_far = step, evaluation
    return best_so_far


def reason(config: EarlyStoppingConfig, goal: Objective | None, evaluations: Evaluations) -> str | None:
    """Returns why training ends, in words; None if it continues.

    Args:
      config: patience, and what counts as an improvement.
      goal: the metric of early stopping; None: nothing ends a run early.
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
        # Inside the loop: a resumed run ends where the uninterrupted run did, whatever it evaluated later.
        if waited >= config.patience:
            if not best_step:
                return f"early stopping: {goal.metric} was never finite in {waited} evaluations"
            amount = f" by more than {config.min_delta:g}" if config.min_delta else ""
            count = "evaluation" if waited == 1 else f"{waited} evaluations"
            return (
                f"early stopping: {goal.metric} was best at step {best_step:,} ({best_value:.4f}) and did not improve"
                f"{amount} in the last {count}"
            )
    return None
