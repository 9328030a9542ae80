"""Optimizers of Optax: their checks, and that their state on a mesh equals that on one device."""

from __future__ import annotations

import pytest

from runner.cli.notebook import compose
from runner.errors import ConfigError
from runner.layout.paths import (
    is_slot,
    owner_of,
    slot_path,
)
from tests.optim.keras_runs import work
from tests.optim.test_keras_classes import off

_OPTAX = ("engine=jax", "optimizer=optax")
RUNS = [
    {
        "name": "lion",
        "optimizer": {"name": "optax", "_target_": "optax.lion", "b1": 0.8, "learning_rate": 0.001},
        "keys": {"optimizer.clip.global_norm": 0.5, "optimizer.ema.decay": 0.9},
    },
    {
        "name": "adafactor",
        "optimizer": {
            "name": "optax",
            "_target_": "optax.adafactor",
            "min_dim_size_to_factor": 8,
            "learning_rate": 0.01,
            "groups": [{"match": "d1/.*", "rate": 0.5}],
        },
    },
]


def test_arguments_of_the_function_are_written_next_to_it() -> None:
    config = compose(*_OPTAX, "optimizer._target_=optax.lion", "+optimizer.b1=0.8").optimizer
    assert (config.target, config.options) == ("optax.lion", {"b1": 0.8})


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ([], ["optimizer._target_", "required"]),
        (["optimizer._target_=lion"], ["optimizer._target_=lion", "import path"]),
        (["optimizer._target_=optax.lion", "engine=keras_dtensor"], ["optimizer=optax", "set engine=jax"]),
        (["optimizer._target_=optax.lion", "+optimizer.b1=nan"], ["optimizer.b1=nan", "finite"]),
        (
            ["optimizer._target_=optax.lion", "optimizer.groups=[{match: '.*', freeze_steps: 5}]"],
            ["optimizer.groups[0].freeze_steps=5", "optax.masked"],
        ),
        (["optimizer=adam", "+optimizer._target_=optax.lion"], ["optimizer._target_=optax.lion", "optimizer=optax"]),
    ],
)
def test_invalid_functions_and_arguments_are_rejected_in_one_line(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        compose(*_OPTAX, *overrides)
    for part in parts:
        assert part in str(error.value)


def test_state_of_the_whole_optimizer_has_a_path_and_no_owner() -> None:
    path = slot_path("0.count", "")
    assert path == "optimizer/0.count"
    assert is_slot(path)
    assert owner_of(path) == ""
    assert owner_of(slot_path("0.mu", "d1/kernel")) == "d1/kernel"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_transformation_on_a_mesh_equals_the_same_on_one_device() -> None:
    found = work(RUNS, steps=8)
    assert off(found) == {}
    for result in found.values():
        assert result["resumed"] == []
        assert {path for path, sizes in result["bytes"].items() if len(set(sizes)) > 1} == set()
    specs = found["adafactor"]["specs"]
    assert specs["optimizer/0.v_row/d1/kernel"] == ["model"], "optax keeps the smaller dim's means as rows"
    assert specs["optimizer/0.v_col/d1/kernel"] == ["batch"]
    assert found["adafactor"]["slots"]["optimizer/0.count"] == []
