"""The builder `model._target_`: its path is checked with the config, its options once it is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

from runner.config import import_path
from runner.config.build import check_type
from runner.config.fields import Constraint
from runner.config.schema import ModelConfig
from runner.config.values import check_value
from runner.errors import invalid

# Arguments that a builder is called with if it has a parameter of that name.
_DATA_ARGUMENTS = ("keras", "inputs", "outputs", "input_shape", "num_classes", "tokens")
LAYOUTS = "layouts"
_KEY = "model._target_"
# Keras's activations by name, and those of Keras 3 alone without `threshold`, which needs arguments; a test compares
# them with both libraries.
ACTIVATIONS = (
    *("elu", "exponential", "gelu", "hard_sigmoid", "leaky_relu", "linear", "log_softmax", "mish", "relu", "relu6"),
    *("selu", "sigmoid", "silu", "softmax", "softplus", "softsign", "swish", "tanh"),
)
OF_KERAS_3 = (
    *("celu", "glu", "hard_shrink", "hard_silu", "hard_swish", "hard_tanh", "log_sigmoid", "soft_shrink"),
    *("sparse_plus", "sparse_sigmoid", "sparsemax", "squareplus", "tanh_shrink"),
)


def check(config: ModelConfig, *, on_jax: bool = True) -> None:
    """Checks the path of the builder, and the options of one of this package's, whose import takes no library."""
    import_path.check(_KEY, config.target)
    if config.target.partition(".")[0] in sys.stdlib_module_names:
        # A call of it might do anything, and it builds no model.
        fix = "write def build(keras, inputs, outputs, ...) in a module of your own"
        raise invalid(_KEY, config.target, problem="is a function of Python's own, which builds no model", fix=fix)
    if is_own(config):
        check_options(config)
        _check_values(config)
        # The decoder has choices of its own.
        if config.target.startswith(("runner.model.mlp", "runner.model.resnet")):
            name = config.options.get("activation")
            if name in OF_KERAS_3 and not on_jax:
                raise invalid("model.activation", name, problem="is of Keras 3 alone", fix="set engine=jax")
            check_value("model.activation", name, Constraint(choices=ACTIVATIONS + OF_KERAS_3))


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
    """Checks types and ranges of the options of a builder of this package, whose integers are sizes of layers."""
    kinds = get_type_hints(load(config.target))
    for name in config.options.keys() & kinds.keys():
        value = config.options[name]
        check_type(kinds[name], value, f"model.{name}")
        # A list of integers is a list of sizes in every builder.
        if get_args(kinds[name]) == (int,) and any(size < 1 for size in value):
            raise invalid(f"model.{name}", value, problem="sizes must be at least 1", fix=f"set model.{name}=[128]")
        if kinds[name] is int:
            check_value(f"model.{name}", value, Constraint(at_least=1))
        if name == "dropout":
            check_value(f"model.{name}", value, Constraint(at_least=0.0, below=1.0, example=0.1))


def is_own(config: ModelConfig) -> bool:
    """Returns whether a builder is one of this package's, not a user's."""
    return config.target.startswith("runner.")


def load(path: str) -> Callable[..., Any]:
    """Imports a builder; see `runner.config.import_path.load`."""
    return import_path.load(path, _KEY)
