"""Optimizers of Optax, as `optimizer._target_` makes them: checks, and the function that calls the user's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from runner.config.schema import OptimizerConfig
from runner.config.values import check_finite
from runner.errors import ConfigError, invalid
from runner.host import import_path

_KEY = "optimizer._target_"
_PACKAGE = "optax"
# If the function has this parameter, it gets 1: updates are multiplied by the schedule's rate afterwards.
_RATE = "learning_rate"


def check(config: OptimizerConfig) -> None:
    """Checks the function and its arguments without importing it.

    Args:
      config: the config of the optimizer `optax`.

    Raises:
      ConfigError: the first problem.
    """
    if importlib.util.find_spec(_PACKAGE) is None:
        problem = "needs optax, which is not installed"
        raise invalid("optimizer", config.name, problem=problem, fix="pip install -e '.[optax]'")
    check_finite(config.options, "optimizer")
    import_path.check(_KEY, config.target)
    for index, group in enumerate(config.groups):
        if group.freeze_steps:
            raise invalid(
                f"optimizer.groups[{index}].freeze_steps",
                group.freeze_steps,
                problem="optimizer=optax has step counts of its own, which freezing does not stop",
                fix="freeze them in the function, by optax.masked or optax.multi_transform",
            )


def loaded(config: OptimizerConfig) -> Callable[..., Any]:
    """Returns the user's function.

    Raises:
      ConfigError: it can't be imported, or does not take the options.
    """
    function = import_path.load(config.target, _KEY)
    import_path.check_options("optimizer", config.target, function, config.options, (_RATE,))
    return function


def make(config: OptimizerConfig) -> Any:
    """Calls the user's function and returns its transformation.

    Raises:
      ConfigError: the function raises, or returns something else.
    """
    function = loaded(config)
    options = dict(config.options)
    if _RATE in import_path.parameters(function):
        options[_RATE] = 1.0
    try:
        transformation = function(**options)
    except Exception as error:  # A user's function may raise anything.
        raise ConfigError(f"{_KEY}={config.target}: raised {type(error).__name__}: {error}") from error
    if not callable(getattr(transformation, "init", None)) or not callable(getattr(transformation, "update", None)):
        raise invalid(
            _KEY,
            config.target,
            problem=f"returned {type(transformation).__name__}",
            fix="return an optax.GradientTransformation",
        )
    return transformation
