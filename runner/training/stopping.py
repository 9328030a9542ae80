"""Early stopping: a function of the evaluations so far, so that a run that goes on has no state of it to restore."""

from __future__ import annotations

from collections.abc import Sequence

from runner.config.schema_trainer import EarlyStoppingConfig
from runner.engine.base import EvalMetrics


def value_of(metric: str, metrics: EvalMetrics) -> float:
    """Returns `eval/loss` or `eval/accuracy` of an evaluation."""
    return {"eval/loss": metrics.loss, "eval/accuracy": metrics.accuracy}[metric]


def better(metric: str, value: float, than: float, by: float = 0.0) -> bool:
    """Tells whether a value of a metric is better than another by more than so much; NaN never is."""
    return value < than - by if metric == "eval/loss" else value > than + by


def reason(config: EarlyStoppingConfig, evaluations: Sequence[tuple[int, EvalMetrics]]) -> str | None:
    """Returns why training ends, in words; None where it goes on.

    Args:
      config: metric, patience and what counts as an improvement.
      evaluations: (step, metrics) in order.
    """
    metric = config.metric
    if metric is None:
        return None
    best_step, best, waited = 0, float("inf") if metric == "eval/loss" else float("-inf"), 0
    for step, metrics in evaluations:
        value = value_of(metric, metrics)
        if better(metric, value, best, config.min_delta):
            best_step, best, waited = step, value, 0
        else:
            waited += 1
        if waited >= config.patience:
            amount = f" by more than {config.min_delta:g}" if config.min_delta else ""
            found = f"{best:.4f} at step {best_step:,}" if best_step else "that never was a number"
            count = "the last evaluation" if waited == 1 else f"the last {waited} evaluations"
            return f"early stopping: {metric} was best with {found}, and {count} did not improve on it{amount}"
    return None


def best(metric: str, evaluations: Sequence[tuple[int, EvalMetrics]]) -> tuple[int, EvalMetrics] | None:
    """Returns the best evaluation, the first of those that are alike; None where none is a number."""
    found: tuple[int, EvalMetrics] | None = None
    for step, metrics in evaluations:
        value = value_of(metric, metrics)
        if value == value and (found is None or better(metric, value, value_of(metric, found[1]))):
            found = step, metrics
    return found
