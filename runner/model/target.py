"""Checks of the import path `model._target_` by reading its source: nothing heavy is imported before an error."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from runner.config.schema import ModelConfig
from runner.errors import invalid
from runner.host import definition, import_path

# Packages whose models are Keras 3's.
_OF_KERAS_3 = ("keras", "keras_cv", "keras_hub", "keras_nlp")

# Arguments that a builder is called with if it has a parameter of that name.
_DATA_ARGUMENTS = ("keras", "inputs", "outputs", "input_shape", "num_classes", "tokens")
LAYOUTS = "layouts"
_KEY = "model._target_"

_SCALARS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
# Beginnings of annotations of lists, which end with `]`.
_LIST_PREFIXES = ("list[", "Sequence[", "tuple[")


def check(config: ModelConfig) -> None:
    """Checks that the builder exists and accepts the options of the config.

    Raises:
      ConfigError: no such module or name, not callable, or options that don't match the builder's signature.
    """
    found = import_path.look_up(_KEY, config.target)
    if found.arguments is not None:
        _check_signature(config, config.target.rpartition(".")[2], found.arguments, found.where)


def keras_3_name(config: ModelConfig) -> str:
    """Returns the name by which a builder's own source uses Keras 3, such as `keras` of `import keras`.

    Empty if it does not, or if the source is not known.
    """
    module, _, name = config.target.rpartition(".")
    source = definition.source_of(module)
    if is_own(config) or source is None:
        return ""
    # `check` has parsed it.
    tree = ast.parse(source.read_bytes())
    for item in tree.body:
        if isinstance(item, ast.FunctionDef | ast.ClassDef) and item.name == name:
            imported = {name for node in (tree, item) for name in _imported_of_keras_3(node)}
            # A parameter of the name hides the module's import.
            parameters = {node.arg for node in ast.walk(item) if isinstance(node, ast.arg)}
            used = {node.id for node in ast.walk(item) if isinstance(node, ast.Name)}
            return min((imported & used) - parameters, default="")
    return ""


def _imported_of_keras_3(node: ast.Module | ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """Yields the names that imports of Keras 3's packages bind: in a module at its top level, else anywhere."""
    for item in node.body if isinstance(node, ast.Module) else ast.walk(node):
        if isinstance(item, ast.Import):
            for alias in item.names:
                if alias.name.partition(".")[0] in _OF_KERAS_3:
                    yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(item, ast.ImportFrom) and (item.module or "").partition(".")[0] in _OF_KERAS_3:
            yield from (alias.asname or alias.name for alias in item.names)


def takes(config: ModelConfig, name: str) -> bool:
    """Returns whether a builder that `check` has passed takes a parameter.

    True if its source does not tell.
    """
    arguments = definition.find(config.target).arguments
    # A builder with `**kwargs` takes everything.
    if arguments is None or arguments.kwarg is not None:
        return True
    return name in _names([*arguments.args, *arguments.kwonlyargs])


def _names(parameters: Sequence[ast.arg]) -> list[str]:
    return [parameter.arg for parameter in parameters]


def _check_signature(config: ModelConfig, name: str, arguments: ast.arguments, module: str) -> None:
    """Checks the parameters of a builder against what it is called with.

    Args:
      config: the model's.
      name: the builder's, for a fix.
      arguments: the builder's, as its source has them.
      module: that defines it.
    """
    positional_only = _names(arguments.posonlyargs)
    named = [*arguments.args, *arguments.kwonlyargs]
    names = _names(named)
    required = import_path.required(arguments)
    # A builder that knows its shapes takes none of them. One that needs something else may call them by other names,
    # and a function of Python's own, such as os.abort, is none.
    is_filled = all(parameter in config.options or parameter in _DATA_ARGUMENTS for parameter in required)
    if arguments.kwarg is None and (not is_filled or module.partition(".")[0] in sys.stdlib_module_names):
        takes_inputs = "inputs" in names or "input_shape" in names
        takes_outputs = "outputs" in names or "num_classes" in names
        if not takes_inputs or not takes_outputs:
            raise invalid(
                _KEY,
                config.target,
                problem="a builder takes keras, inputs or input_shape, and outputs or num_classes by these names; "
                f"this one takes {', '.join([*positional_only, *names]) or 'nothing'}",
                fix=f"write def {name}(keras, inputs, outputs, ...)",
            )
    for parameter in required:
        if parameter in positional_only:
            raise invalid(
                _KEY,
                config.target,
                problem=f"parameter {parameter} is positional-only, but a builder is called by keyword",
                fix="remove the / behind it",
            )
    import_path.check_options("model", config.target, arguments, config.options, (*_DATA_ARGUMENTS, LAYOUTS))
    for argument in named:
        if argument.arg in config.options and argument.annotation is not None:
            _check_type(argument.arg, config.options[argument.arg], ast.unparse(argument.annotation))


def _check_type(name: str, value: Any, annotation: str) -> None:
    """Checks a value against an annotation of scalars and lists of these.

    Any other annotation passes.

    Args:
      name: the name of the option.
      value: the value of the option.
      annotation: as it is in the source.
    """
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
    """Returns the type of the elements of a list's annotation.

    That of a scalar is returned as it is.
    """
    for prefix in _LIST_PREFIXES:
        if kind.startswith(prefix) and kind.endswith("]"):
            return kind[len(prefix) : -1].removesuffix(", ...")
    return kind


def _matches(value: Any, kind: str) -> bool:
    """Returns whether a value is of one known kind."""
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
