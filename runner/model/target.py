"""The builder `model._target_`: its path is checked with the config, its options once it is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

from runner.config import import_path
from runner.config.build import check_type
from runner.config.schema import ModelConfig
from runner.errors import invalid

# Arguments that a builder is called with if it has a parameter of that name.
_DATA_ARGUMENTS = ("keras", "inputs", "outputs", "input_shape", "num_classes", "tokens")
LAYOUTS = "layouts"
_KEY = "model._target_"


def check(config: ModelConfig) -> None:
    """Checks the path of the builder, and the options of one of this package's, whose import takes no library."""
    import_path.check(_KEY, config.target)
    if config.target.partition(".")[0] in sys.stdlib_module_names:
        # A call of it might do anything, and it builds no model.
        fix = "write def build(keras, inputs, outputs, ...) in a module of your own"
        raise invalid(_KEY, config.target, problem="is a function of Python's own, which builds no model", fix=fix)
    if is_own(config):
        check_options(config)
        _check_values(config)


def check_options(config: ModelConfig) -> None:
    """Imports the builder and checks that it takes the options of the config. Raises ConfigError if not."""
    builder = load(config.target)
    kinds = [(base.__module__.partition(".")[0], base.__name__) for base in type(builder).__mro__]
    if ("keras", "Model") in kinds or ("tf_keras", "Model") in kinds:
        # A run and its verification need models of their own, with the run's seed.
        module, _, name = config.target.rpartition(".")
        problem = f"{name} is a model that is built already, but a run builds its own"
        fix = f"write def build() in {module}, which creates and returns it, and set {_KEY}={module}.build"
        raise invalid(_KEY, config.target, problem=problem, fix=fix)
    import_path.check_options("model", config.target, builder, config.options, (*_DATA_ARGUMENTS, LAYOUTS))


def _check_values(config: ModelConfig) -> None:
    """Checks the types of the options of a builder of this package, and that no layer has a size below 1."""
    kinds = get_type_hints(load(config.target))
    for name in config.options.keys() & kinds.keys():
        value = config.options[name]
        check_type(kinds[name], value, f"model.{name}")
        # A list of integers is a list of sizes in every builder.
        if get_args(kinds[name]) == (int,) and any(size < 1 for size in value):
            raise invalid(f"model.{name}", value, problem="sizes must be at least 1", fix=f"set model.{name}=[128]")


def is_own(config: ModelConfig) -> bool:
    """Returns whether a builder is one of this package's, not a user's."""
    return config.target.startswith("runner.")


def load(path: str) -> Callable[..., Any]:
    """Imports a builder; see `runner.config.import_path.load`."""
    return import_path.load(path, _KEY)
