"""The table of Keras's optimizers is that of the installed Keras, and our rules are its formulas."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config.schema_keras_optimizers import OPTIONS
from runner.errors import ConfigError
from runner.notebook.composing import compose
from runner.optim.keras_classes import CLASSES
from tests.engine.jax_runs import answers
from tests.optim.keras_runs import ELEMENTWISE, RUNS, named, work

# Float32 sums of the same terms in another order stay within this after four steps, relative to an array's largest
# number. A moment that is one step stale is off by 1e-2.
NEAR = 1e-5

SIGNATURES = """
import inspect, json
import keras

bases = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
common = {"self", "learning_rate", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum",
          "ema_overwrite_frequency", "loss_scale_factor", "gradient_accumulation_steps", "name", "kwargs"}
found = {}
for name, kind in vars(keras.optimizers).items():
    if isinstance(kind, type) and issubclass(kind, keras.Optimizer) and name not in bases:
        parameters = inspect.signature(kind.__init__).parameters
        found[name] = {key: one.default for key, one in parameters.items() if key not in common}
print(json.dumps(found))
"""
signatures = answers(SIGNATURES)


def test_every_class_of_keras_has_its_options_with_keras_defaults(signatures: Any) -> None:
    ours = {name: vars(kind()) for name, kind in OPTIONS.items()}
    assert ours == signatures


def test_every_class_has_an_entry_for_its_state() -> None:
    assert set(CLASSES) == set(OPTIONS)
    for name, known in CLASSES.items():
        assert set(known.rule_keys) <= set(vars(OPTIONS[name]()))
        assert (known.rule is None) == bool(known.why_no_rule)


def test_options_of_a_class_are_written_next_to_its_name() -> None:
    config = compose("engine=jax", "optimizer=keras", "optimizer.class_name=Lion", "+optimizer.beta_1=0.95").optimizer
    assert (config.class_name, config.beta_1) == ("Lion", None)
    assert config.options == {"beta_1": 0.95, "beta_2": 0.99, "weight_decay": None}


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["optimizer.class_name=Lyon"], ["optimizer.class_name=Lyon", "did you mean", "Lion"]),
        (["optimizer.class_name=Lion", "+optimizer.rho=0.9"], ["optimizer.rho", "class_name=Lion", "beta_1"]),
        (["optimizer.class_name=Lion", "+optimizer.beta_1=2"], ["optimizer.beta_1=2.0", "at most 1"]),
        (["optimizer.class_name=Adagrad", "+optimizer.epsilon=fast"], ["optimizer.epsilon=fast", "a number"]),
        (["optimizer.class_name=Lion", "+optimizer.clipnorm=1"], ["optimizer.clipnorm=1", "optimizer.clip.norm=1"]),
        (["optimizer.class_name=AdamW", "+optimizer.use_ema=true"], ["optimizer.use_ema", "optimizer.ema.decay"]),
        (
            ["optimizer.class_name=Muon", "engine=keras_dtensor"],
            ["class_name=Muon", "matrix products of a whole variable", "set engine=jax"],
        ),
        (
            ["optimizer.class_name=ScheduleFreeAdamW", "engine=keras_dtensor"],
            ["class_name=ScheduleFreeAdamW", "its state begins as a copy of the weights", "set engine=jax"],
        ),
        (
            ["optimizer.class_name=Adam", "+optimizer.amsgrad=true", "engine=core_dtensor", "model=mlp_core"],
            ["optimizer.amsgrad=true", "update rule of Adam has no amsgrad", "set engine=jax, or remove"],
        ),
        (["optimizer.class_name=SGD", "+optimizer.nesterov=true"], ["optimizer.nesterov", "momentum=0.9"]),
        (["optimizer.class_name=Lamb", "+optimizer.weight_decay=2000"], ["optimizer.weight_decay=2000", "below 1000"]),
        (["optimizer.class_name=null"], ["optimizer.class_name=null", "optimizer.class_name=AdamW"]),
        (["optimizer=adam", "+optimizer.class_name=Lion"], ["optimizer.class_name=Lion"]),
    ],
)
def test_invalid_classes_and_options_are_rejected_in_one_line(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        compose("engine=jax", "optimizer=keras", *overrides)
    for part in parts:
        assert part in str(error.value)


def off(found: Any) -> dict[str, float]:
    """Returns what is further from stock Keras than rounding: `<run>:<path>` -> relative difference."""
    beyond = {}
    for name, result in found.items():
        assert result["missing"] == []
        assert result["learned"] > 0, name
        for path, difference in result["off"].items():
            if not difference <= NEAR:
                beyond[f"{name}:{path}"] = difference
    return beyond


@pytest.mark.nightly
def test_a_factored_and_a_whole_state_on_a_mesh_equal_stock_keras() -> None:
    chosen = [run for run in RUNS if named(run) in ("Adafactor", "Lion")]
    found = work("batch4_model2", chosen, steps=4)
    assert off(found) == {}
    for result in found.values():
        assert result["resumed"] == []
        assert {path for path, sizes in result["bytes"].items() if len(set(sizes)) > 1} == set()
    specs = found["Adafactor"]["specs"]
    assert specs["optimizer/v/d1/kernel"] == ["batch", "model"]
    assert specs["optimizer/r/d1/kernel"] == ["batch"], "means over columns are sharded as the rows"
    assert specs["optimizer/c/d1/kernel"] == ["model"], "means over rows are sharded as the columns"
    assert "optimizer/r/d1/bias" not in specs, "a vector has no factored state"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_rule_of_ours_on_dtensor_equals_stock_keras() -> None:
    chosen = [run for run in RUNS if named(run) in ("Ftrl", "Nadam")]
    found = work("batch4_model2", chosen, steps=4, engine="keras_dtensor")
    assert set(found) <= set(ELEMENTWISE)
    assert off(found) == {}
    assert found["Ftrl"]["begun"]["optimizer/accumulator/d1/kernel"] == pytest.approx([0.1, 0.1])
