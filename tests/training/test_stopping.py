import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.checkpoint.stopping import best, objective, reason, reductions
from runner.config.schema import EarlyStoppingConfig, PlateauConfig
from tests.engine.jax_runs import answer

NAN = float("nan")


DIRECTIONS = {"loss": "minimize", "accuracy": "maximize", "mae": "minimize"}


def evaluations(values: list[float]) -> list[tuple[int, dict[str, float]]]:
    """Returns evaluations every ten steps, whose metrics are all the value."""
    names = [f"eval/{name}" for name in DIRECTIONS] + ["train/epoch_loss"]
    return [(10 * (i + 1), dict.fromkeys(names, v)) for i, v in enumerate(values)]


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
        ("train/epoch_loss", 1, 0.0, [0.5, 0.4], False),
        ("train/epoch_loss", 1, 0.0, [0.5, 0.6], True),
    ],
)
def test_a_run_ends_after_patience_evaluations_without_improvement(
    metric: str | None, patience: int, delta: float, values: list[float], stops: bool
) -> None:
    config = EarlyStoppingConfig(metric, patience, delta)
    assert (ends(config, values) is not None) is stops


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


def reduced(config: PlateauConfig, values: list[float]) -> list[tuple[int, float]]:
    goal = objective(config.metric, DIRECTIONS)
    assert goal is not None
    return reductions(config, goal, evaluations(values))


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(1, 3))
def test_the_reductions_of_a_longer_run_begin_with_those_of_a_shorter_one(values: list[float], patience: int) -> None:
    # So a resumed run has the reductions of the run that was not interrupted.
    config = PlateauConfig("eval/accuracy", patience=patience)
    whole = reduced(config, values)
    for count in range(len(values)):
        part = reduced(config, values[:count])
        assert part == whole[: len(part)]


PLATEAU_OF_KERAS = """
import json, os, sys
from types import SimpleNamespace
os.environ["JAX_PLATFORMS"], os.environ["KERAS_BACKEND"] = "cpu", "jax"
import keras
values, cases = map(json.loads, sys.argv[1:])
rates = []
for arguments in cases:
    callback = keras.callbacks.ReduceLROnPlateau("loss", **arguments)
    optimizer = keras.optimizers.SGD(1.0)
    callback.set_model(SimpleNamespace(optimizer=optimizer))
    callback.on_train_begin()
    of_case = []
    for epoch, value in enumerate(values):
        callback.on_epoch_end(epoch, {"loss": value})
        of_case.append(float(optimizer.learning_rate))
    rates.append(of_case)
print(json.dumps(rates))
"""


@pytest.mark.slow
def test_plateaus_are_those_of_keras() -> None:
    draw = random.Random(4)
    values = [draw.choice([1.0, 0.9, 0.89995, 0.8, 0.7]) - 0.002 * number for number in range(120)]
    cases = [
        {"factor": 0.5, "patience": patience, "min_delta": delta, "cooldown": cooldown}
        for patience, delta, cooldown in [(1, 0.0, 0), (3, 1e-4, 0), (2, 0.01, 2), (5, 0.1, 1), (2, 0.0, 7)]
    ]
    expected = answer(PLATEAU_OF_KERAS, values, [case | {"min_lr": 1e-3} for case in cases])
    for case, rates in zip(cases, expected, strict=True):
        changes = dict(reduced(PlateauConfig("eval/loss", **case, min_factor=1e-3), values))
        factor, found = 1.0, []
        for number in range(len(values)):
            factor = changes.get(10 * (number + 1), factor)
            found.append(factor)
        # Keras multiplies a float32 rate again and again.
        assert found == pytest.approx(rates, rel=1e-6), case
        assert len(set(found)) > 2, "the case reduces more than once"
