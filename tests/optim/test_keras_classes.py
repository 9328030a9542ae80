"""Keras's optimizers by name: Keras checks their options. `tests/parity` compares training with them."""

import pytest

from runner.cli.notebook import compose
from runner.engine.optim.keras_classes import options_checked
from runner.errors import ConfigError


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
