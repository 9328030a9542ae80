"""Optimizers of Optax: their checks. `tests/verify` compares them on a mesh with one device."""

import pytest

from runner.cli.notebook import compose
from runner.errors import ConfigError
from runner.layout.paths import is_slot, owner_of, slot_path

_OPTAX = ("engine=jax", "optimizer=optax")


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
