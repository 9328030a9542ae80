"""Optimizers of Optax, as `optimizer._target_` makes them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from runner.config import import_path
from runner.config.schema import OptimizerConfig
from runner.config.values import check_finite
from runner.errors import ConfigError, invalid

_KEY = "optimizer._target_"
_PACKAGE = "optax"
# If the function has this parameter, it gets 1: updates are multiplied by the schedule's rate afterwards.
_RATE = "learning_rate"
# If it has this one, a schedule of its own can depend on the epoch.
_EPOCH = "steps_per_epoch"


def check(config: OptimizerConfig) -> None:
    """Checks the function and its arguments without importing it."""
    if importlib.util.find_spec(_PACKAGE) is None:
        problem = "needs optax, which is not installed"
        raise invalid("optimizer", config.name, problem=problem, fix="pip install -e '.[optax]'")
    check_finite(config.options, "optimizer")
    import_path.check(_KEY, config.target)


def with_epoch(config: OptimizerConfig, steps: int) -> OptimizerConfig:
    """Returns the config with the steps of an epoch as an argument of a function that has such a parameter."""
    if not config.target or _EPOCH not in import_path.parameters(import_path.load(config.target, _KEY)):
        return config
    return replace(config, options={_EPOCH: steps, **config.options})


def loaded(config: OptimizerConfig) -> Callable[..., Any]:
    """Returns the user's function; a ConfigError if it can't be imported, or does not take the options."""
    function = import_path.load(config.target, _KEY)
    given = {_RATE, _EPOCH}.difference(config.options)
    import_path.check_options("optimizer", config.target, function, config.options, given)
    return function


def make(config: OptimizerConfig) -> Any:
    """Calls the user's function and returns its transformation."""
    function = loaded(config)
    options = dict(config.options)
    parameters = import_path.parameters(function)
    if _EPOCH in parameters:
        # `with_epoch` gives it to a training. Otherwise no step is computed, and the state has the same shapes.
        options.setdefault(_EPOCH, 1)
    if _RATE in parameters:
        options[_RATE] = 1.0
    try:
        transformation = function(**options)
    except Exception as error:  # A user's function may raise anything.
        raise ConfigError(f"{_KEY}={config.target}: raised {import_path.raised(error)}") from error
    if not callable(getattr(transformation, "init", None)) or not callable(getattr(transformation, "update", None)):
        problem = f"returned {type(transformation).__name__}"
        raise invalid(_KEY, config.target, problem=problem, fix="return an optax.GradientTransformation")
    return transformation
