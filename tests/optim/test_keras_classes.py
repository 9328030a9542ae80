"""Keras's optimizers by name: Keras checks their options, and each on a mesh equals stock Keras on one device."""

from __future__ import annotations

from typing import Any

import pytest

from runner.cli.notebook import compose
from runner.engine.optim.keras_classes import options_checked
from runner.errors import ConfigError
from tests.optim.keras_runs import RUNS, named, work

# Float32 sums of the same terms in another order stay within this after a few steps, relative to an array's largest
# number. A moment that is one step stale is off by 1e-2.
NEAR = 1e-5


def test_options_of_a_class_are_written_next_to_its_name() -> None:
    config = compose("engine=jax", "optimizer=keras", "optimizer.class_name=Lion", "+optimizer.beta_1=0.95").optimizer
    assert (config.class_name, config.beta_1, config.options) == ("Lion", None, {"beta_1": 0.95})


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["optimizer.class_name=Lyon"], ["optimizer.class_name=Lyon", "did you mean", "Lion"]),
        (["+optimizer.clipnorm=1"], ["optimizer.clipnorm=1", "set optimizer.clip.norm"]),
        (["+optimizer.use_ema=true"], ["optimizer.use_ema", "set optimizer.ema.decay"]),
        (["+optimizer.loss_scale_factor=2"], ["optimizer.loss_scale_factor=2", "remove it"]),
        (["engine=keras_dtensor"], ["optimizer=keras: needs an engine that computes with JAX; set engine=jax"]),
        (["engine=core_dtensor", "model=mlp_core"], ["optimizer=keras", "set engine=jax"]),
        (["optimizer.class_name=null"], ["optimizer.class_name=null", "optimizer.class_name=AdamW"]),
        (["optimizer=adam", "+optimizer.class_name=Lion"], ["optimizer.class_name=Lion"]),
    ],
)
def test_invalid_classes_and_options_are_rejected_in_one_line(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        compose("engine=jax", "optimizer=keras", *overrides)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("Argument(s) not recognized:\n {'rho': 0.9}", "optimizer.rho=0.9: Keras rejects it: Argument(s) not "),
        ("not a number", "optimizer.beta_1=0.95, optimizer.rho=0.9: Keras rejects it: not a number"),
    ],
)
def test_an_error_of_keras_is_one_line_that_names_the_option(said: str, line: str) -> None:
    options = ("+optimizer.beta_1=0.95", "+optimizer.rho=0.9")
    config = compose("engine=jax", "optimizer=keras", "optimizer.class_name=Lion", *options).optimizer
    with pytest.raises(ConfigError) as error, options_checked(config):
        raise ValueError(said)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


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


@pytest.fixture(scope="module")
def trained() -> Any:
    """Every run on a mesh of two axes, all in one process."""
    return work(RUNS, steps=8)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", [named(run) for run in RUNS])
def test_a_class_on_a_mesh_equals_stock_keras_resumes_exactly_and_has_the_planned_bytes(
    trained: Any, name: str
) -> None:
    result = trained[name]
    assert off({name: result}) == {}
    assert result["resumed"] == []
    assert any(path.startswith("optimizer/") for path in result["bytes"])
    assert {path for path, sizes in result["bytes"].items() if len(set(sizes)) > 1} == set()
    if name == "Adafactor":
        specs = result["specs"]
        assert specs["optimizer/v/d1/kernel"] == ["batch", "model"]
        assert specs["optimizer/r/d1/kernel"] == ["batch"], "means over columns are sharded as the rows"
        assert specs["optimizer/c/d1/kernel"] == ["model"], "means over rows are sharded as the columns"
        assert "optimizer/r/d1/bias" not in specs, "a vector has no factored state"
