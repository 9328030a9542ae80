"""The builder `model._target_`: its path is checked with the config, its options once it is imported."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from runner.config.schema import ModelConfig
from runner.errors import invalid
from runner.host import import_path

# Arguments that a builder is called with if it has a parameter of that name.
_DATA_ARGUMENTS = ("keras", "inputs", "outputs", "input_shape", "num_classes", "tokens")
LAYOUTS = "layouts"
_KEY = "model._target_"

_SCALARS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
# Beginnings of annotations of lists, which end with `]`.
_LIST_PREFIXES = ("list[", "Sequence[", "tuple[")


def check(config: ModelConfig) -> None:
    """Checks the path of the builder, and the options of one of this package's, whose import takes no library."""
    import_path.check(_KEY, config.target)
    if config.target.partition(".")[0] in sys.stdlib_module_names:
        # A call of it might do anything, and it builds no model.
        fix = "write def build(keras, inputs, outputs, ...) in a module of your own"
        raise invalid(_KEY, config.target, problem="is a function of Python's own, which builds no model", fix=fix)
    if is_own(config):
        check_options(config)


def check_options(config: ModelConfig) -> None:
    """Imports the builder and checks that it takes the options of the config. Raises ConfigError if not."""
    builder = load(config.target)
    import_path.check_options("model", config.target, builder, config.options, (*_DATA_ARGUMENTS, LAYOUTS))
    for name, parameter in import_path.parameters(builder).items():
        if name in config.options and parameter.annotation is not parameter.empty:
            _check_type(name, config.options[name], inspect.formatannotation(parameter.annotation).strip("'"))


def takes_layouts(config: ModelConfig) -> bool:
    """Returns whether a builder of this package has a parameter for layouts; True for others."""
    return not is_own(config) or LAYOUTS in import_path.parameters(load(config.target))


def _check_type(name: str, value: Any, annotation: str) -> None:
    is_known = True
    is_match = False
    is_sizes = False
    for part in annotation.split("|"):
        kind = part.strip()
        if kind != "None" and _element(kind) not in _SCALARS:
            is_known = False
            continue
        if _matches(value, kind):
            is_match = True
            is_sizes |= isinstance(value, list) and _element(kind) == "int"
    if is_known and not is_match:
        raise invalid(
            f"model.{name}", value, problem=f"must be of type {annotation}", fix=f"set model.{name} to such a value"
        )
    # A list of integers is a list of sizes in every builder, and no layer has a size below 1.
    if is_sizes and any(number < 1 for number in value):
        raise invalid(f"model.{name}", value, problem="sizes must be at least 1", fix=f"set model.{name}=[128]")


def _element(kind: str) -> str:
    for prefix in _LIST_PREFIXES:
        if kind.startswith(prefix) and kind.endswith("]"):
            return kind[len(prefix) : -1].removesuffix(", ...")
    return kind


def _matches(value: Any, kind: str) -> bool:
    if kind == "None":
        return value is None
    element = _element(kind)
    if element != kind:
        return isinstance(value, list) and all(_matches(item, element) for item in value)
    # To Python True is an integer, but no option means it.
    if isinstance(value, bool) and kind != "bool":
        return False
    return isinstance(value, _SCALARS[kind])


def is_own(config: ModelConfig) -> bool:
    """Returns whether a builder is one of this package's, not a user's."""
    return config.target.startswith("runner.")


def load(path: str) -> Callable[..., Any]:
    """Imports a builder; see `runner.host.import_path.load`."""
    return import_path.load(path, _KEY)
