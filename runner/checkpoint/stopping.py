"""Model selection: the best evaluation, early stopping and reductions of the rate, as functions of the past.

They keep no state, so a resumed run has none to restore.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from runner.config.schema import PlateauConfig
from runner.config.schema_trainer import EarlyStoppingConfig
from runner.task.metrics import MINIMIZE, selecting

# (step, logged name -> value) of each evaluation, in order. The values are the metrics of the evaluation and the
# means of the training steps since the last one.
Measured = Sequence[tuple[int, Mapping[str, float]]]


@dataclass(frozen=True)
class Objective:
    """A metric of evaluations that selects, as it is logged, and the direction in which it is better."""

    metric: str
    direction: str

    def value(self, metrics: Mapping[str, float]) -> float:
        """Returns the metric's value; NaN if it was not measured."""
        return metrics.get(self.metric, math.nan)

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
    """Returns the objective of a metric of the task, whose directions these are; None if there is no metric."""
    return None if metric is None else Objective(metric, selecting(directions, tuple(directions))[metric])


def best(goal: Objective, measured: Measured) -> tuple[int, float] | None:
    """Returns step and value of the best evaluation, the first of equal ones; None if none is a number."""
    values = [(step, goal.value(metrics)) for step, metrics in measured]
    numbers = [(step, value) for step, value in values if not math.isnan(value)]
    choose = min if goal.direction == MINIMIZE else max
    return choose(numbers, key=itemgetter(1), default=None)


def reductions(config: PlateauConfig, goal: Objective | None, measured: Measured) -> list[tuple[int, float]]:
    """Returns the reductions of the learning rate so far, as (steps done, factor from there on); none without a goal.

    The rule and its defaults are those of Keras's `ReduceLROnPlateau`, once per evaluation.
    """
    if goal is None:
        return []
    reduction = 0.1 if config.factor is None else config.factor
    patience = config.patience or 10
    min_delta = 1e-4 if config.min_delta is None else config.min_delta
    min_factor = config.min_factor or 0.0
    reduced: list[tuple[int, float]] = []
    factor = 1.0
    best_value = goal.worst
    waited = 0
    cooling = 0
    for step, metrics in measured:
        value = goal.value(metrics)
        if cooling:
            cooling -= 1
            waited = 0
        if goal.improves(value, best_value, min_delta):
            best_value = value
            waited = 0
        elif not cooling:
            waited += 1
            if waited >= patience and factor > min_factor:
                factor = max(factor * reduction, min_factor)
                reduced.append((step, factor))
                cooling = config.cooldown or 0
                waited = 0
    return reduced


def reason(config: EarlyStoppingConfig, goal: Objective | None, measured: Measured) -> str | None:
    """Returns why training ends, in words; None if it continues."""
    if goal is None:
        return None
    patience = config.patience or 3
    min_delta = config.min_delta or 0.0
    best_step = 0
    best_value = goal.worst
    waited = 0
    for step, metrics in measured:
        value = goal.value(metrics)
        if goal.improves(value, best_value, min_delta):
            best_step = step
            best_value = value
            waited = 0
        else:
            waited += 1
        # Inside the loop: a resumed run ends where the uninterrupted run did, whatever it evaluated later.
        if waited >= patience:
            if not best_step:
                return f"early stopping: {goal.metric} was never finite in {waited} evaluations"
            best_text = f"{goal.metric} was best at step {best_step:,} ({best_value:.4f})"
            text = f"early stopping: {best_text} and did not improve"
            if min_delta:
                text += f" by more than {min_delta:g}"
            if waited == 1:
                return f"{text} in the last evaluation"
            return f"{text} in the last {waited} evaluations"
    return None
