"""Checks what an import path of the config names by reading its source: nothing heavy is imported to invalid it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from runner.config.schema import ModelConfig
from runner.errors import invalid
from runner.host import definition, import_path

GIVEN = ("keras", "inputs", "outputs", "input_shape", "num_classes", "tokens")  # a builder takes those it names
LAYOUTS = "layouts"
_KEY = "model._target_"


def check(config: ModelConfig) -> None:
    """Checks that the builder is there, callable, and takes the options given to it.

    Raises:
      ConfigError: no such module or name, not callable, or options that the builder's signature refuses.
    """
    found = import_path.look_up(_KEY, config.target)
    if found.arguments is not None:
        _check_signature(config, config.target.rpartition(".")[2], found.arguments)


def takes(config: ModelConfig, name: str) -> bool:
    """Tells whether a builder that `check` has passed takes a parameter; True where its source does not tell."""
    found = definition.find(config.target)
    if found.arguments is None:
        return True
    return found.arguments.kwarg is not None or name in [
        argument.arg for argument in (*found.arguments.args, *found.arguments.kwonlyargs)
    ]


def _check_signature(config: ModelConfig, name: str, arguments: ast.arguments) -> None:
    by_place = [argument.arg for argument in arguments.posonlyargs]
    by_name = (*arguments.args, *arguments.kwonlyargs)
    names = [argument.arg for argument in by_name]
    if arguments.kwarg is None:
        inputs = ("inputs", "input_shape")
        outputs = ("outputs", "num_classes")
        if not {*inputs} & {*names} or not {*outputs} & {*names}:
            raise invalid(
                _KEY,
                config.target,
                problem=f"a builder takes {' or '.join(inputs)}, {' or '.join(outputs)}, and keras if it wants; "
                f"this one takes {', '.join([*by_place, *names]) or 'nothing'}",
                fix=f"write def {name}(keras, inputs, outputs, ...)",
            )
    for one in import_path.required(arguments):
        if one in by_place:
            raise invalid(_KEY, config.target, problem=f"{one} has no name to be given by", fix="drop the / behind it")
    import_path.check_options("model", config.target, arguments, config.options, (*GIVEN, LAYOUTS))
    for argument in by_name:
        if argument.arg in config.options and argument.annotation is not None:
            _check_type(argument.arg, config.options[argument.arg], ast.unparse(argument.annotation))


_SCALARS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


def _check_type(name: str, value: Any, annotation: str) -> None:
    """Checks a value against the plain annotations; one that it does not know passes."""
    kinds = [part.strip() for part in annotation.split("|")]
    known = [kind for kind in kinds if kind == "None" or _element(kind) in _SCALARS]
    if len(known) == len(kinds) and not any(_matches(value, kind) for kind in kinds):
        raise invalid(f"model.{name}", value, problem=f"a value of type {annotation}", fix=f"set model.{name} to one")
    # A list of whole numbers is one of sizes, and no layer has a size below 1.
    sizes = isinstance(value, list) and any(_element(kind) == "int" for kind in kinds)
    if sizes and any(number < 1 for number in value):
        raise invalid(f"model.{name}", value, problem="sizes of at least 1", fix=f"set model.{name}=[128]")


def _element(kind: str) -> str:
    for prefix in ("list[", "Sequence[", "tuple["):
        if kind.startswith(prefix) and kind.endswith("]"):
            return kind[len(prefix) : -1].removesuffix(", ...")
    return kind


def _matches(value: Any, kind: str) -> bool:
    if kind == "None":
        return value is None
    element = _element(kind)
    if element != kind:
        return isinstance(value, list) and all(_matches(each, element) for each in value)
    return isinstance(value, _SCALARS[kind]) and (kind == "bool" or not isinstance(value, bool))


def is_own(config: ModelConfig) -> bool:
    """Tells whether a builder is one of this package's, not a user's."""
    return config.target.startswith("runner.")


def load(path: str) -> Callable[..., Any]:
    """Imports a builder; see `runner.host.import_path.load`."""
    return import_path.load(path, _KEY)
