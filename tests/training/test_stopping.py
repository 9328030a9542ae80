from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.schema import EarlyStoppingConfig
from runner.task.base import Evaluation
from runner.training.stopping import best, objective, reason

NAN = float("nan")


DIRECTIONS = {"loss": "minimize", "accuracy": "maximize", "mae": "minimize"}


def evaluations(values: list[float]) -> list[tuple[int, Evaluation]]:
    """Returns evaluations every ten steps, whose metrics are all the value."""
    none = np.zeros(0, np.float32)
    return [(10 * (i + 1), Evaluation(dict.fromkeys(DIRECTIONS, v), 1, {}, none)) for i, v in enumerate(values)]


def ends(config: EarlyStoppingConfig, values: list[float]) -> str | None:
    return reason(config, objective(config.metric, DIRECTIONS), evaluations(values))


@pytest.mark.parametrize(
    ("metric", "patience", "delta", "values", "stops"),
    [
        (None, 1, 0.0, [1.0, 1.0, 1.0], False),
        ("eval/accuracy", 2, 0.0, [], False),
        ("eval/accuracy", 2, 0.0, [0.5, 0.4], False),
        ("eval/accuracy", 2, 0.0, [0.5, 0.4, 0.5], True),
        ("eval/accuracy", 2, 0.0, [0.5, 0.4, 0.6, 0.6], False),
        ("eval/accuracy", 2, 0.1, [0.5, 0.55, 0.59], True),
        ("eval/accuracy", 2, 0.1, [0.5, 0.55, 0.61], False),
        ("eval/loss", 1, 0.0, [0.5, 0.4], False),
        ("eval/loss", 1, 0.0, [0.5, 0.6], True),
        ("eval/loss", 2, 0.0, [NAN, NAN], True),
        ("eval/loss", 2, 0.0, [0.5, NAN, 0.4], False),
        ("eval/mae", 1, 0.0, [5.0, 4.0], False),
        ("eval/mae", 1, 0.0, [4.0, 5.0], True),
    ],
)
def test_a_run_ends_after_patience_evaluations_without_improvement(
    metric: str | None, patience: int, delta: float, values: list[float], stops: bool
) -> None:
    config = EarlyStoppingConfig(metric, patience, delta)
    assert (ends(config, values) is not None) is stops


def test_the_reason_names_the_best_value_and_its_step() -> None:
    config = EarlyStoppingConfig("eval/accuracy", 2, 0.001)
    assert ends(config, [0.5, 0.9123, 0.9, 0.9]) == (
        "early stopping: eval/accuracy was best at step 20 (0.9123) and did not improve by more than 0.001 in the "
        "last 2 evaluations"
    )


def test_a_metric_that_was_never_finite_ends_the_run_too() -> None:
    config = EarlyStoppingConfig("eval/accuracy", 2)
    assert ends(config, [math.nan, math.nan]) == "early stopping: eval/accuracy was never finite in 2 evaluations"


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(1, 4))
def test_a_run_that_continued_is_not_ended_by_earlier_evaluations(values: list[float], patience: int) -> None:
    config = EarlyStoppingConfig("eval/loss", patience)
    ended = [ends(config, values[:count]) is not None for count in range(len(values) + 1)]
    assert ended == sorted(ended), "once it has ended, more evaluations don't make it go on"


@pytest.mark.parametrize(("metric", "step"), [("eval/accuracy", 20), ("eval/mae", 10)])
def test_the_best_evaluation_is_the_first_of_equal_ones_in_the_direction_of_the_metric(metric: str, step: int) -> None:
    goal = objective(metric, DIRECTIONS)
    assert goal is not None
    found = best(goal, evaluations([0.1, 0.9, NAN, 0.9, 0.1]))
    assert found is not None
    assert found[0] == step
    assert best(goal, evaluations([NAN])) is None
