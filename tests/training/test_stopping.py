from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.schema import EarlyStoppingConfig
from runner.engine.base import EvalMetrics
from runner.training.stopping import reason

NAN = float("nan")


def evaluations(values: list[float]) -> list[tuple[int, EvalMetrics]]:
    """Returns evaluations every ten steps, whose loss and accuracy are both the value."""
    empty = np.zeros((0, 0), np.int64)
    return [(10 * (i + 1), EvalMetrics(value, value, 1, empty)) for i, value in enumerate(values)]


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
    ],
)
def test_a_run_ends_after_patience_evaluations_that_are_no_better(
    metric: str | None, patience: int, delta: float, values: list[float], stops: bool
) -> None:
    config = EarlyStoppingConfig(metric, patience, delta)
    assert (reason(config, evaluations(values)) is not None) is stops


def test_the_reason_names_the_best_value_and_its_step() -> None:
    config = EarlyStoppingConfig("eval/accuracy", 2, 0.001)
    assert reason(config, evaluations([0.5, 0.9123, 0.9, 0.9])) == (
        "early stopping: eval/accuracy was best with 0.9123 at step 20, and the last 2 evaluations did not improve on "
        "it by more than 0.001"
    )


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(1, 4))
def test_a_run_that_went_on_is_not_ended_by_what_came_before(values: list[float], patience: int) -> None:
    config = EarlyStoppingConfig("eval/loss", patience)
    ended = [reason(config, evaluations(values[:count])) is not None for count in range(len(values) + 1)]
    assert ended == sorted(ended), "once it has ended, more evaluations don't make it go on"
